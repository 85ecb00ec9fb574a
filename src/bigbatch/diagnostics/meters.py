"""Where figures of memory come from: the allocator of a device, or what the operating system says of the process."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import tensorflow as tf

from bigbatch.core.errors import AccumulationError, describe
from bigbatch.training.memory import device, peak

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


class Meter(Protocol):
    """Measures the peak of what happens between `begin` and `end`."""

    name: str

    def begin(self) -> None: ...

    def end(self) -> int: ...


class Allocator:
    """Exact to the byte."""

    def __init__(self, where: str) -> None:
        self.name = f"the allocator of {where}"
        self._where = where

    def begin(self) -> None:
        tf.config.experimental.reset_memory_stats(self._where)

    def end(self) -> int:
        return int(tf.config.experimental.get_memory_info(self._where)["peak"])


class Resident:
    """What the process has of the machine's memory; what it does not give back at once counts, too."""

    name = "resident memory of the process"

    def begin(self) -> None:
        _CLEAR.write_text("5")

    def end(self) -> int:
        [line] = [line for line in _STATUS.read_text().splitlines() if line.startswith("VmHWM:")]
        return int(line.split()[1]) * 1024


def of_this_process() -> Meter:
    """The best that there is here."""
    if peak(device()) is not None:
        return Allocator(device())
    if not os.access(_CLEAR, os.W_OK):
        raise AccumulationError(
            describe(
                "Memory must be measurable to plan with it.",
                f"{device()}, whose allocator does not count, on a system without {_CLEAR}",
                "Set TF_CPU_ALLOCATOR_USE_BFC=1 before TensorFlow is imported.",
            )
        )
    return Resident()


def free_bytes() -> int:
    """What the device has free."""
    if device() == "GPU:0":
        from bigbatch.training.tensorflow_private import device_memory

        return device_memory("GPU:0") - int(tf.config.experimental.get_memory_info("GPU:0")["current"])
    limits = []
    if limit := os.environ.get("TF_CPU_BFC_MEM_LIMIT_IN_MB"):
        limits.append(int(limit) * 2**20)
    with suppress(OSError, ValueError):  # of a container
        limits.append(int(Path("/sys/fs/cgroup/memory.max").read_text()))
    with suppress(OSError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        limits += [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    return min(limits) if limits else os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
