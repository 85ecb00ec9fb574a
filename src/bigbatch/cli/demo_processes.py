"""How the demo starts a run, with how much memory, and hears of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

from bigbatch.core.errors import describe

_QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "KERAS_BACKEND": "tensorflow", "CUDA_VISIBLE_DEVICES": "-1"}


def events(settings: dict[str, Any], budget: int | None) -> Iterator[dict[str, Any]]:
    """Starts a run with `budget` bytes, or with all there are, and yields what it tells; it ends with us.

    Raises:
        RuntimeError: if it fails of anything but memory.
    """
    command = [sys.executable, "-W", "ignore", "-m", "bigbatch.cli.demo_runs", json.dumps(settings)]
    environment = os.environ | _QUIET | _allocator(budget)
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True) as process,
    ):
        try:
            assert process.stdout is not None
            yield from map(json.loads, process.stdout)
            if process.wait() != 0:
                errors.seek(0)
                received = f"exit code {process.returncode}"
                raise RuntimeError(describe("Every run must end.", received, f"It said: {errors.read()[-2000:]}"))
        finally:
            process.kill()


def _allocator(budget: int | None) -> dict[str, str]:
    """TensorFlow's allocator for GPUs, on the CPU: it counts, and has a limit."""
    counting = {"TF_CPU_ALLOCATOR_USE_BFC": "1"}
    return counting if budget is None else {**counting, "TF_CPU_BFC_MEM_LIMIT_IN_MB": str(budget // 2**20)}
