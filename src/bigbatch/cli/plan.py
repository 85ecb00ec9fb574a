"""`bigbatch plan`: which micro-batch size a model should train with, and what it takes."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from bigbatch.cli import tables
from bigbatch.cli.running import build_parser, positive, run, usage
from bigbatch.cli.target import HELP, load
from bigbatch.core.bytes import num_bytes, readable

DESCRIPTION = "Measures what updates take, and recommends a micro-batch size; fails if not even one sample fits."
EXAMPLE = "  bigbatch plan train.py:build --batch-size 4096 --memory 8GB"


def main(arguments: Sequence[str]) -> int:
    """Runs the command line; returns 1 if nothing fits."""
    parser = build_parser("plan", DESCRIPTION, EXAMPLE)
    parser.add_argument("target", help=HELP)
    parser.add_argument("--batch-size", type=positive, metavar="N", required=True, help="samples of an update")
    parser.add_argument(
        "--memory", type=_memory, metavar="8GB", help="what there is; default: what the device has free"
    )
    options = parser.parse_args(arguments)

    def measure() -> Any:
        model, x, y = load(options.target)
        from bigbatch import plan

        with usage():
            return plan(model, x, y, batch_size=options.batch_size, memory=options.memory)

    return 1 if run(parser, options.json, measure, show) is None else 0


def _memory(text: str) -> int:
    try:
        return num_bytes("--memory", text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def show(console: Any, plan: Any) -> None:
    columns = ("micro-batch", "peak", "predicted", "s/update")
    made = tables.table(*columns, f"fits in {readable(plan.memory)}", right=columns)
    for row in plan.table:
        is_best = row.micro_batch_size == plan.micro_batch_size
        fits = tables.verdict(row.fits, "yes", "no") + (" <-" if is_best else "")
        made.add_row(*row.cells(), fits, style="bold" if is_best else None)
    console.print(made)
    for line in plan.parts():
        console.print(tables.plain(line), soft_wrap=True)
    size = f"[bold green]micro_batch_size={plan.micro_batch_size}[/]"
    console.print(f"recommended for batches of {plan.batch_size}: {size}", soft_wrap=True)
