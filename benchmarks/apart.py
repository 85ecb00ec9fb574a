"""Runs a part of a benchmark in a process of its own, because TensorFlow chooses its allocator when it starts."""

import os
import subprocess
import sys


def run_apart(program, **environment):
    """What a program prints that may import the benchmarks, with the allocator that counts."""
    settings = {"TF_CPU_ALLOCATOR_USE_BFC": "1", "TF_CPP_MIN_LOG_LEVEL": "3"} | environment
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | settings,
        cwd=os.path.dirname(os.path.abspath(__file__)),
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout
