"""Runs a part of a benchmark in a process of its own, because TensorFlow chooses its allocator when it starts."""

import json
import os
import subprocess
import sys
from pathlib import Path


def call(function, *arguments, python=sys.executable, **environment):
    """What `"module.function"` of the benchmarks returns there, where TensorFlow's allocator counts."""
    module = function.split(".")[0]
    program = f"import json, {module}; print('RESULT', json.dumps({function}(*{arguments!r})))"
    settings = {"TF_CPU_ALLOCATOR_USE_BFC": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    settings["ONEDNN_MAX_CPU_ISA"] = "AVX512_CORE_FP16"  # some virtual machines show AMX and forbid it
    done = subprocess.run(
        [python, "-c", program],
        env=os.environ | settings | environment,
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or ["killed"])[-1][:300])
    return json.loads(done.stdout.split("RESULT", 1)[1])


def attempt(function, *arguments, python=sys.executable):
    """As `call`; what it raises is a result, too."""
    try:
        return call(function, *arguments, python=python)
    except RuntimeError as error:
        return {"raises": str(error)}
