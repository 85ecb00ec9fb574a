"""What `verify`, `plan` and `doctor` have in common: options, where output goes, and exit codes.

0: all is well. 1: a promise is broken, here or by the model. 2: the command line was not understood. `main` ends what
crashes with 3.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Any

from bigbatch.cli import tables
from bigbatch.cli.target import TargetError, no_exit
from bigbatch.core.errors import AccumulationError, describe


class UsageError(Exception):
    """What bigbatch says of arguments that were typed."""


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


@contextmanager
def usage() -> Iterator[None]:
    """Tells arguments that bigbatch refuses from what Keras and the model raise, which have a traceback to keep."""
    try:
        yield
    except (TypeError, ValueError) as error:
        # Keras, too, says "Received: ": what counts is who raised it.
        *_, (frame, _) = traceback.walk_tb(error.__traceback__)
        is_ours = frame.f_globals["__name__"].startswith("bigbatch.")
        if not is_ours or "Received: " not in str(error):
            raise
        raise UsageError(str(error)) from error


@contextmanager
def _quiet() -> Iterator[None]:
    # What the user's code prints is not ours to show: neither its own words nor those of processes that it starts.
    sys.stdout.flush()
    ours = os.dup(1)
    os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        sys.stdout.flush()
        os.dup2(ours, 1)
        os.close(ours)


def run(
    parser: argparse.ArgumentParser, as_json: bool, measure: Callable[[], Any], show: Callable[[Any, Any], None]
) -> Any:
    """Prints what `measure` returns, as JSON or by `show(console, result)`; returns it, or `None` if it was refused."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    try:
        with no_exit(), _quiet():
            result = measure()
    except (TargetError, UsageError) as error:
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
