"""Tiny scripts for `bigbatch launch`, and how tests wait for them: on what happens, never for a time."""

import fcntl
import os
import subprocess
import sys
import time
from contextlib import contextmanager
from textwrap import dedent

LAUNCH = [sys.executable, "-m", "bigbatch", "launch"]
# There is no option for `grace_seconds`.
WITH_GRACE = """
import sys
from bigbatch.cli.launch import launch
sys.exit(launch(sys.argv[2:], num_workers=2, grace_seconds=float(sys.argv[1])))
"""
# Whoever runs the tests may have switched buffers off; here they are on, to see that they are flushed.
ENVIRONMENT = {**os.environ, "PYTHONUNBUFFERED": "", "PYTHONWARNINGS": "default::ResourceWarning"}
TIMEOUT = 30
# Who runs the tests in the background, or under `nohup`, hands down that signals are ignored.
HEARING = [
    sys.executable,
    "-c",
    "import os, signal, sys\n"
    "for name in ('SIGINT', 'SIGHUP', 'SIGQUIT'): signal.signal(getattr(signal, name), signal.SIG_DFL)\n"
    "os.execv(sys.argv[1], sys.argv[1:])",
]

# A lock is free when its holder is gone, even if nobody has asked for its exit code yet.
PRELUDE = """
import fcntl, json, os, signal, subprocess, sys, time
from pathlib import Path

folder = Path(__file__).parent
index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]

def hold(name):
    fcntl.flock(os.open(folder / f"{name}.lock", os.O_CREAT), fcntl.LOCK_EX)

# What waits does so for longer than any test, and yet ends if one fails.

def wait_for(name):
    end = time.monotonic() + 100
    while not (folder / name).exists():
        time.sleep(0.01)
        assert time.monotonic() < end

def forever():
    print("ready")
    (folder / f"ready{index}").touch()
    time.sleep(100)

hold(index)
"""


def write(folder, code):
    path = folder / "script.py"
    path.write_text(PRELUDE + dedent(code))
    return str(path)


def with_grace(seconds, script):
    return [sys.executable, "-c", WITH_GRACE, str(seconds), sys.executable, script]


def run(command, *, stderr=subprocess.PIPE, text=True, **environment):
    environment = {**ENVIRONMENT, **environment}
    return subprocess.run(
        command, stdout=subprocess.PIPE, stderr=stderr, text=text, env=environment, timeout=TIMEOUT, check=False
    )


@contextmanager
def started(command):
    """A running command; killed if the test has failed before its end."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([*HEARING, *command], **pipes, text=True, env=ENVIRONMENT) as process:
        try:
            yield process
        finally:
            process.kill()


def read_until(stream, expected):
    """Reads lines until all of those expected have come."""
    missing = set(expected)
    while missing:
        line = stream.readline()
        assert line, f"never printed: {missing}"
        missing.discard(line.rstrip("\n"))


def is_gone(folder, name):
    with open(folder / f"{name}.lock") as lock:  # fails if the process has never been
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def eventually(condition):
    end = time.monotonic() + TIMEOUT
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True
