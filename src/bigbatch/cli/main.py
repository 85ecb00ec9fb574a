"""The command `bigbatch`: which subcommands there are. Each is imported when it is asked for."""

from __future__ import annotations

import argparse
import sys
from typing import Sequence

import bigbatch

DEMO = "train the same network plainly and accumulated, and compare"
LAUNCH = "run a script in several workers on this machine"


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bigbatch", description="The batch you want in the memory you have.")
    parser.add_argument("--version", action="version", version=f"bigbatch {bigbatch.__version__}")
    commands = parser.add_subparsers(dest="command", metavar="command", required=True)
    commands.add_parser("demo", help=DEMO)
    commands.add_parser("launch", help=LAUNCH)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a subcommand and returns its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    # What follows a subcommand is its own; of `launch`, most belongs to the script.
    options = build_parser().parse_args(words[:1] if words[:1] in (["demo"], ["launch"]) else words)
    if options.command == "launch":
        from bigbatch.cli import launch

        return launch.main(words[1:])
    from bigbatch.cli import demo

    return demo.main(words[1:])
