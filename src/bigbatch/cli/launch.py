"""`bigbatch launch`: a cluster of workers on this machine, to try `tf.distribute.MultiWorkerMirroredStrategy`.

    bigbatch launch --workers 2 train.py --epochs 3
    bigbatch launch --workers 2 -m package.train --epochs 3

is, with ports that are free,

    TF_CONFIG='{"cluster": {"worker": ["127.0.0.1:4001", "127.0.0.1:4002"]}, "task": {"type": "worker", "index": 0}}' \\
        python train.py --epochs 3 &
    TF_CONFIG='{"cluster": {"worker": ["127.0.0.1:4001", "127.0.0.1:4002"]}, "task": {"type": "worker", "index": 1}}' \\
        python train.py --epochs 3 &
    wait

except that all workers end when one fails. What is run and in which environment is decided here; how processes live
and die together is left to `bigbatch.cli.workers`. Nothing imports TensorFlow.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Sequence

from bigbatch.cli.workers import GRACE_SECONDS, run_together
from bigbatch.core.errors import describe

HOST = "127.0.0.1"
DESCRIPTION = "Runs a script in several workers on this machine, each with its TF_CONFIG. Needs Linux or macOS."
EXAMPLE = "example:\n  bigbatch launch --workers 2 train.py --epochs 3"
USAGE = "bigbatch launch [-h] [--workers WORKERS] [--] (script | -m module) ..."


def free_ports(number: int) -> list[int]:
    """Ports that nobody listens on; all are held until the last is chosen, so no two are the same."""
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(number)]
        for each in sockets:
            each.bind((HOST, 0))
        return [each.getsockname()[1] for each in sockets]


def tf_config(ports: Sequence[int], index: int) -> str:
    """What TensorFlow wants to know of the cluster in worker `index`."""
    cluster = {"worker": [f"{HOST}:{port}" for port in ports]}
    return json.dumps({"cluster": cluster, "task": {"type": "worker", "index": index}})


def launch(command: Sequence[str], *, num_workers: int, grace_seconds: float = GRACE_SECONDS) -> int:
    """Runs a command in every worker of a cluster and waits for all.

    Args:
        command: the program and its arguments.
        num_workers: how many processes.
        grace_seconds: how long a worker may take to end when it is told to, before it is killed.

    Returns:
        0, or the exit code of the first worker that failed; 128 + n if signal n killed it.
    """
    ports = free_ports(num_workers)
    # Unbuffered, for Python would hold back what it writes to a pipe until it has 8 KiB.
    environments = [
        dict(os.environ, TF_CONFIG=tf_config(ports, index), PYTHONUNBUFFERED="1") for index in range(num_workers)
    ]
    return run_together(command, environments, grace_seconds)


def require_workers(text: str) -> int:
    """The number of workers that was asked for."""
    if text.isdecimal() and int(text) > 0:
        return int(text)
    raise ValueError(
        describe("`--workers` must be a positive integer.", f"--workers={text!r}", "Use 2 for the smallest cluster.")
    )


def require_command(words: Sequence[str], *, module: bool) -> list[str]:
    """The command of every worker, or an error before any is started."""
    if not words:
        expected = "`bigbatch launch` must be told what to run."
        raise ValueError(describe(expected, "no script", "Use `bigbatch launch train.py` or `-m package.train`."))
    # A module is left to the worker: to look for it imports its packages.
    if not module and not Path(words[0]).exists():
        remedy = f"Check the path, which is relative to {Path.cwd()}; a module needs `-m` before its name."
        raise ValueError(describe("The script must exist.", f"script={words[0]!r}", remedy))
    return [sys.executable, *(["-m"] if module else []), *words]


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "bigbatch launch",
        usage=USAGE,
        description=DESCRIPTION,
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--workers", default="2", help="how many processes to start (default: 2)")
    parser.add_argument("-m", dest="module", action="store_true", help="run a module, as `python -m` does")
    # The remainder, so that an option behind the script is the script's even if it has the name of one of ours.
    parser.add_argument("words", nargs=argparse.REMAINDER, metavar="script ...", help="the script and its arguments")
    return parser


def main(arguments: Sequence[str]) -> int:
    """Runs the command line and returns the exit code."""
    parser = build_parser()
    options = parser.parse_args(arguments)
    words = options.words[1:] if options.words[:1] == ["--"] else options.words
    try:
        num_workers, command = require_workers(options.workers), require_command(words, module=options.module)
    except ValueError as error:
        parser.error(str(error))
    try:
        return launch(command, num_workers=num_workers)
    except BrokenPipeError:  # whoever read our output has gone, as in `bigbatch launch train.py | head`
        # Python flushes stdout once more when it ends and would complain there.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
