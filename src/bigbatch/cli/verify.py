"""`bigbatch verify`: does the accumulated update of a model equal the update of the whole batch?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bigbatch.cli import tables
from bigbatch.cli.running import build_parser, positive, run, usage
from bigbatch.cli.target import HELP, load

DESCRIPTION = "Compares the accumulated update of a model with that of the whole batch; fails if they differ."
EXAMPLE = "  bigbatch verify train.py:build --micro-batch-size 16"


def main(arguments: Sequence[str]) -> int:
    """Runs the command line; returns 1 for an update that is not exact."""
    parser = build_parser("verify", DESCRIPTION, EXAMPLE)
    parser.add_argument("target", help=HELP)
    parser.add_argument("--micro-batch-size", type=positive, metavar="N", help="samples in memory at a time")
    parser.add_argument("--batches-per-update", type=positive, metavar="N", help="batches that are joined")
    options = parser.parse_args(arguments)

    def measure() -> Any:
        model, x, y = load(options.target)
        from bigbatch import verify

        sizes = {"micro_batch_size": options.micro_batch_size, "batches_per_update": options.batches_per_update}
        with usage():
            return verify(model, x, y, **sizes)

    report = run(parser, options.json, measure, show)
    return 0 if report is not None and report.exact else 1


def show(console: Any, report: Any) -> None:
    """What `print(report)` says, with a table that names the worst of each kind."""
    verdict, _, *rest = str(report).split("\n\n")
    console.print(verdict, style="green" if report.exact else "red", markup=False, soft_wrap=True)
    console.print()
    console.print(_kinds(report))
    for each in rest:
        console.print(f"\n{each}", markup=False, soft_wrap=True)


def _kinds(report: Any) -> Any:
    made = tables.table("", "compared", "worst", "error", "rounding", "", right=("compared", "error", "rounding"))
    for kind, rows in report.by_kind().items():
        worst, exact = rows[0], tables.verdict(all(row.exact for row in rows), "exact", "not exact")
        numbers = f"{worst.error:.1e}", f"{worst.rounding:.1e}"
        made.add_row(kind, str(len(rows)), tables.plain(worst.name), *numbers, exact)
    return made
