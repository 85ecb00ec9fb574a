"""Runs a program under a limit of memory."""

import os
import pickle
import subprocess
import sys
from tempfile import TemporaryDirectory


def run_limited(program, limit_in_mb, *words, **environment):
    """What the program leaves in the file that is its last argument. TensorFlow reads the limit when it is imported.

    With more threads, one replica may wait until another one has given back its memory, and then nothing fails.
    """
    limit = {"TF_CPU_ALLOCATOR_USE_BFC": "1", "TF_CPU_BFC_MEM_LIMIT_IN_MB": str(limit_in_mb)}
    limit |= {"TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "1"}
    with TemporaryDirectory() as folder:
        command = [sys.executable, "-W", "ignore", program, *words, f"{folder}/result"]
        done = subprocess.run(
            command, env=os.environ | limit | environment, capture_output=True, text=True, check=False, timeout=300
        )
        assert done.returncode == 0, done.stderr[-3000:]
        with open(f"{folder}/result", "rb") as file:
            return pickle.load(file)
