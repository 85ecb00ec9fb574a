"""Running out of memory: how it is told from other failures, and what is known of how much was needed."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from math import prod
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from bigbatch.core.bytes import num_bytes, readable

if TYPE_CHECKING:
    import keras

# What TensorFlow and XLA call the tensor that was one too many.
_TENSOR = re.compile(r"shape\[([\d,]*)\] and type (\w+) on \S*/device:(\w+:\d+)")
_AMOUNT = re.compile(r"allocat\w* (?:request for )?([\d.]+ ?(?:[KMGT]i)?B)")
# Libraries below TensorFlow report as internal errors that they got no memory.
_INSIDE = ("RESOURCE_EXHAUSTED", "out of memory", "Out of memory", "ALLOC_FAILED")
# What a worker says whose own attempt went well.
ELSEWHERE = "another worker ran out of memory"
LESS = "Use mixed precision, rematerialisation (`keras.RematScope`), an optimizer with fewer slots or a smaller model."


class OutOfMemory:
    """Whether something failed for lack of memory, and in which words."""

    def __init__(self) -> None:
        self.message: str | None = None

    def __bool__(self) -> bool:
        return self.message is not None

    def needed(self) -> str:
        """What is known of the memory that would have been enough."""
        if self.message == ELSEWHERE:
            return "more than another worker has"
        message = self.message or ""
        tensor, amount = _TENSOR.search(message), _AMOUNT.search(message.replace("bytes", "B"))
        where = tensor[3] if tensor else device()
        more = num_bytes("memory", amount[1]) if amount else 0
        if tensor:
            more = prod(int(size) for size in tensor[1].split(",") if size) * tf.as_dtype(tensor[2]).size
        return f"more than {readable((peak(where) or 0) + more)} on {where}"


@contextmanager
def running_out() -> Iterator[OutOfMemory]:
    """Swallows the failure to get memory, and only that; ask the result afterwards."""
    outcome = OutOfMemory()
    try:
        yield outcome
    except tf.errors.ResourceExhaustedError as error:
        outcome.message = str(error)
    except (tf.errors.InternalError, tf.errors.UnknownError) as error:
        if not any(words in str(error) for words in _INSIDE):
            raise
        outcome.message = str(error)


def peak(where: str) -> int | None:
    """The largest number of bytes in use since `forget_peak`, or `None` where the allocator does not count."""
    # That of oneDNN, which newer CPUs have, answers, but counts large tensors only.
    if where.startswith("CPU") and os.environ.get("TF_CPU_ALLOCATOR_USE_BFC", "").lower() not in ("1", "true"):
        return None
    with suppress(ValueError):
        return int(tf.config.experimental.get_memory_info(where)["peak"])
    return None


def largest_peak(model: keras.Model) -> int:
    """The largest `peak` of the devices that a model trains on, or 0 where no allocator counts."""
    strategy = model.distribute_strategy
    replicated = strategy.num_replicas_in_sync > 1
    devices = map(_short, strategy.extended.worker_devices) if replicated else [device()]
    return max(peak(each) or 0 for each in devices)


def forget_peak() -> None:
    """Lets peaks begin anew."""
    for each in tf.config.list_logical_devices():
        with suppress(ValueError):
            tf.config.experimental.reset_memory_stats(_short(each.name))


def device() -> str:
    """Where models train."""
    gpus = tf.config.list_logical_devices("GPU")
    return _short((gpus or tf.config.list_logical_devices("CPU"))[0].name)


def _short(name: Any) -> str:
    return name.split("/device:")[-1]
