"""What `verify`, `plan` and `doctor` have in common: options, where output goes, and exit codes.

0: all is well. 1: a promise is broken, here or by the model. 2: the command line was not understood.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from typing import Any

from bigbatch.cli import tables
from bigbatch.cli.target import TargetError, no_exit
from bigbatch.core.errors import AccumulationError, describe


def build_parser(name: str, description: str, example: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        f"bigbatch {name}",
        description=description,
        epilog=f"example:\n{example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--json", action="store_true", help="print JSON, and nothing else, to stdout")
    return parser


def positive(text: str) -> int:
    """An argument that counts something."""
    if text.isdecimal() and int(text) > 0:
        return int(text)
    message = describe("It must be a positive integer.", repr(text), "Use 1 for the smallest.")
    raise argparse.ArgumentTypeError(message)


def run(
    parser: argparse.ArgumentParser, as_json: bool, measure: Callable[[], Any], show: Callable[[Any, Any], None]
) -> Any:
    """Prints what `measure` returns, as JSON or by `show(console, result)`; returns it, or `None` if it was refused."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    try:
        with no_exit(), redirect_stdout(sys.stderr):  # what the user's code prints is not ours to show
            result = measure()
    except TargetError as error:
        parser.error(str(error))
    except AccumulationError as error:
        print(error, file=sys.stderr)
        if as_json:
            print(json.dumps({"error": str(error)}))
        return None
    if as_json:
        print(result.to_json())
    elif console := tables.console():
        show(console, result)
    else:
        print(result)
    return result
