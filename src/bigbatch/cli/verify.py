"""`bigbatch verify`: does the accumulated update of a model equal the update of the whole batch?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bigbatch.cli import tables
from bigbatch.cli.running import build_parser, positive, run
from bigbatch.cli.target import HELP, load

DESCRIPTION = "Compares the accumulated update of a model with that of the whole batch; fails if they differ."
EXAMPLE = "  bigbatch verify train.py:build --micro-batch-size 16"
KINDS = ("gradient", "weight", "optimizer", "statistic", "log")


def main(arguments: Sequence[str]) -> int:
    """Runs the command line; returns 1 for an update that is not exact."""
    parser = build_parser("verify", DESCRIPTION, EXAMPLE)
    parser.add_argument("target", help=HELP)
    parser.add_argument("--micro-batch-size", type=positive, metavar="N", help="samples in memory at a time")
    parser.add_argument("--batches-per-update", type=positive, metavar="N", default=1, help="batches that are joined")
    options = parser.parse_args(arguments)

    def measure() -> Any:
        model, x, y = load(options.target)
        from bigbatch import verify

        sizes = {"micro_batch_size": options.micro_batch_size, "batches_per_update": options.batches_per_update}
        return verify(model, x, y, **sizes)

    report = run(parser, options.json, measure, show)
    return 0 if report is not None and report.exact else 1


def show(console: Any, report: Any) -> None:
    """The worst of each kind, then what it comes from and the way out."""
    made = tables.table("", "compared", "worst", "error", "rounding", "", right=("compared", "error", "rounding"))
    for kind in KINDS:
        rows = [row for row in report.table if row.kind == kind]
        if rows:
            worst = max(rows, key=lambda row: (not row.exact, row.error))
            exact = tables.verdict(all(row.exact for row in rows), "exact", "not exact")
            numbers = f"{worst.error:.1e}", f"{worst.rounding:.1e}"
            made.add_row(kind, str(len(rows)), tables.plain(worst.name), *numbers, exact)
    console.print(made)
    for cause in report.causes:
        console.print(f"[bold]{tables.plain(cause.what)}[/]", soft_wrap=True)
        for name, share in cause.parts:
            console.print(f"  {tables.plain(name)}: {share:.0%}", soft_wrap=True)
        console.print(f"  {tables.plain(cause.remedy)}", soft_wrap=True)
    same = "The accumulated update equals that of the whole batch."
    console.print(
        tables.verdict(report.exact, same, "The accumulated update differs from that of the whole batch."),
        soft_wrap=True,
    )
