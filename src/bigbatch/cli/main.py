"""The command `bigbatch`: which subcommands there are. Each is imported when it is asked for."""

from __future__ import annotations

import argparse
import sys
import traceback
from importlib import import_module
from typing import Sequence

import bigbatch

COMMANDS = {
    "demo": "train the same network plainly and accumulated, and compare",
    "verify": "compare the accumulated update of your model with that of the whole batch",
    "plan": "measure your model and recommend a micro-batch size",
    "launch": "run a script in several workers on this machine",
    "doctor": "tell what can work here, and why not",
}
EXAMPLE = """example:
  bigbatch plan train.py:build --batch-size 4096 --memory 8GB
  bigbatch plan --help

exit codes: 1 where a promise is broken, 2 for a command line that is not understood, 3 for a crash"""
CRASHED = 3


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bigbatch",
        description="The batch you want in the memory you have.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"bigbatch {bigbatch.__version__}")
    commands = parser.add_subparsers(dest="command", metavar="command", required=True)
    for name, purpose in COMMANDS.items():
        commands.add_parser(name, help=purpose)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a subcommand and returns its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    # What follows the subcommand is hidden from our parser: each has one of its own.
    options = build_parser().parse_args(words[:1])
    try:
        return int(import_module(f"bigbatch.cli.{options.command}").main(words[1:]))
    except Exception:  # Python would end with 1, as if a promise had been tested and found broken
        traceback.print_exc()
        return CRASHED
