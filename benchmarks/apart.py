"""Runs a part of a benchmark in a process of its own, because TensorFlow chooses its allocator when it starts.

    python benchmarks/apart.py trials.peak_of '["cnn", 16, "limit"]'

With several workers, all of them run it and the first one answers.
"""

import importlib
import json
import os
import subprocess
import sys


def call(function, *arguments, python=sys.executable, workers=1, **environment):
    """What `"module.function"` of the benchmarks returns there, where TensorFlow's allocator counts."""
    settings = {"TF_CPU_ALLOCATOR_USE_BFC": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    settings["ONEDNN_MAX_CPU_ISA"] = "AVX512_CORE_FP16"  # some virtual machines show AMX and forbid it
    launcher = []
    if workers > 1:
        launcher = ["-m", "bigbatch", "launch", "--workers", str(workers)]
        settings["TF_NUM_INTRAOP_THREADS"] = "1"  # a core for each
    done = subprocess.run(
        [python, *launcher, __file__, function, json.dumps(arguments)],
        env=os.environ | settings | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["killed"]
        raise RuntimeError(([line for line in lines if "Error" in line] or lines)[-1][:300])
    return json.loads(done.stdout.split("RESULT", 1)[1])


def attempt(function, *arguments, **settings):
    """As `call`; what it raises is a result, too."""
    try:
        return call(function, *arguments, **settings)
    except RuntimeError as error:
        return {"raises": str(error)}


def is_first():
    """Whether this process is the first of its workers, or the only one."""
    return not json.loads(os.environ.get("TF_CONFIG", "{}")).get("task", {}).get("index")


def main(function, arguments):
    module, name = function.split(".")
    found = getattr(importlib.import_module(module), name)(*json.loads(arguments))
    if is_first():
        print("RESULT", json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
