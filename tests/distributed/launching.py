"""Starts workers as a user would: `bigbatch launch`."""

import subprocess
import sys


def launched(num_workers, *words):
    command = [sys.executable, "-W", "ignore", "-m", "bigbatch", "launch", "--workers", str(num_workers)]
    return subprocess.run([*command, *map(str, words)], capture_output=True, text=True, check=False, timeout=600)
