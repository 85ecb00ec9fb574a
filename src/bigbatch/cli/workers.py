"""Processes that live and die together: their output, the signals they get, the exit code of the first that fails.

One thread does it all, so lines cannot mix and an exception anywhere passes the place where processes are killed.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, Callable, Iterator, Mapping, Sequence

from bigbatch.cli.output import Output
from bigbatch.core.errors import describe

# Under `MultiWorkerMirroredStrategy`, TensorFlow takes SIGTERM for a notice of preemption and goes on: there it is the
# kill after this time that ends a worker.
GRACE_SECONDS = 5.0
POLL_SECONDS = 0.05
PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class Worker:
    """One process in a session of its own, whose keyboard is not ours: a Ctrl-C reaches it only through `send`."""

    def __init__(self, index: int, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self.index = index
        # Before there is a process that an exception here could leave behind.
        sinks = sys.stdout.buffer, sys.stderr.buffer
        self.process = subprocess.Popen(
            command,
            env=environment,
            bufsize=0,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        prefix = f"[worker {index}] ".encode()
        pipes = self.process.stdout, self.process.stderr
        self.outputs = [Output(pipe, sink, prefix) for pipe, sink in zip(pipes, sinks) if pipe is not None]

    @property
    def running(self) -> bool:
        return self.process.returncode is None

    def send(self, number: int) -> None:
        """Signals the worker and what it has started, unless it was seen to end: its id may be another's by now."""
        if self.running:
            _signal_group(self.process.pid, number)

    def reap(self) -> bool:
        """Whether the worker has ended just now: then its last output is printed and what it has started is killed."""
        if not self.running or self.process.poll() is None:
            return False
        _signal_group(self.process.pid, signal.SIGKILL)
        for output in self.outputs:
            output.drain()
        return True

    def close(self) -> None:
        self.process.wait()
        for output in self.outputs:
            output.close()


class Workers:
    """All of them, and what is known of their end."""

    def __init__(self, grace_seconds: float) -> None:
        self.exit_code = 0
        self._grace_seconds = grace_seconds
        self._workers: list[Worker] = []
        self._signal: int | None = None
        self._deadline = float("inf")

    def start(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        worker = Worker(len(self._workers), command, environment)
        self._workers.append(worker)
        # A signal that came meanwhile has gone to the others only.
        if self._signal is not None:
            worker.send(self._signal)

    def stop(self, number: int, _frame: FrameType | None = None) -> None:
        """Passes a signal on; the second kills. As a signal handler it runs anywhere: it may not print nor raise."""
        if self._signal is not None:
            number = signal.SIGKILL
        self._signal = number
        self._deadline = min(self._deadline, time.monotonic() + self._grace_seconds)
        self._send(number)

    def wait(self) -> None:
        """Prints what the workers print until the last has ended."""
        while any(worker.running for worker in self._workers):
            outputs = [output for worker in self._workers for output in worker.outputs if not output.closed]
            for output in select.select(outputs, [], [], POLL_SECONDS)[0]:
                output.forward()
            for worker in self._workers:
                if worker.reap() and worker.process.returncode != 0 and self.exit_code == 0:
                    self._fail(worker)
            if time.monotonic() > self._deadline:
                self._send(signal.SIGKILL)

    def kill(self) -> None:
        self._send(signal.SIGKILL)
        for worker in self._workers:
            worker.close()

    def _fail(self, worker: Worker) -> None:
        code = worker.process.returncode
        self.exit_code = code if code > 0 else 128 - code
        cause = "" if code > 0 else f" (signal {-code})"
        received = f"worker {worker.index} failed with exit code {self.exit_code}{cause}"
        remedy = "Its output is above; the other workers are told to end."
        print(describe("Every worker must end with exit code 0.", received, remedy), file=sys.stderr, flush=True)
        # After a signal from outside they are stopping already, and a second one would kill them.
        if self._signal is None:
            self.stop(signal.SIGTERM)

    def _send(self, number: int) -> None:
        for worker in self._workers:
            worker.send(number)


def run_together(command: Sequence[str], environments: Sequence[Mapping[str, str]], grace_seconds: float) -> int:
    """Runs a command once in every environment; returns 0 or the exit code of the first failure."""
    workers = Workers(grace_seconds)
    with _handling(workers.stop):
        try:
            for environment in environments:
                workers.start(command, environment)
            workers.wait()
        finally:
            workers.kill()
    return workers.exit_code


@contextmanager
def _handling(handler: Callable[[int, FrameType | None], Any]) -> Iterator[None]:
    # What is ignored stays ignored, here and in the workers: `nohup` asked for it.
    before = {number: signal.getsignal(number) for number in PASSED_ON}
    before = {number: theirs for number, theirs in before.items() if theirs is not signal.SIG_IGN}
    for number in before:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number, theirs in before.items():
            signal.signal(number, theirs)


def _signal_group(group: int, number: int) -> None:
    # macOS says "not permitted" of a group whose processes have all ended, Linux "no such process".
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
