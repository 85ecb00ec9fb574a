"""`windows` and `split`: what a custom loop runs over, so that nobody counts by hand.

Both are plain generators; neither touches a model, an optimizer or an accumulator. They run on Python 3.7 with
TensorFlow 1.14 and later.
"""

from __future__ import annotations

from typing import Any, Callable, Iterable, Iterator

import tensorflow as tf

from bigbatch.core.errors import AccumulationError, describe, require_positive
from bigbatch.core.windows import BatchesPerUpdate, Windows
from bigbatch.training import batches
from bigbatch.training.tensorflow_private import as_written


@as_written
def windows(
    dataset: Iterable[Any], *, batches_per_update: BatchesPerUpdate = 1, samples_per_update: int | None = None
) -> Iterator[Iterator[Any]]:
    """The windows of a dataset, each an iterator over its batches; the last one holds what is left.

        for window in windows(dataset, batches_per_update=4):
            for x, y in window:
                accumulator.add(...)
            accumulator.apply(optimizer)

    >>> [list(window) for window in windows(range(10), batches_per_update=4)]
    [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]

    Only one batch is in memory at a time, so a window can be iterated over only once, and only before the next window
    is asked for. Batches that the loop leaves unused are skipped; they do not become part of the next window.

    Args:
        dataset: any iterable of batches.
        batches_per_update: how many batches a window has: a number, or a callable that returns it for the number of the
            window. Windows are counted from 0 in every call of this function, so use
            `lambda window: schedule(made + window)` to continue after `made` updates.
        samples_per_update: a window closes when it has at least this many samples; for batches of any sizes.
    """
    settings = Windows(batches_per_update, samples_per_update)
    if not tf.executing_eagerly() and (isinstance(dataset, tf.data.Dataset) or hasattr(dataset, "get_next")):
        received = "a `tf.data.Dataset` in a traced function"
        remedy = "Call `windows` outside of the `tf.function`."
        raise AccumulationError(describe("`windows` must know where a dataset ends.", received, remedy))
    if not hasattr(dataset, "__iter__"):
        remedy = "Give a `tf.data.Dataset`, a list or a generator."
        raise TypeError(describe("`dataset` must be an iterable of batches.", f"dataset={dataset!r}", remedy))
    return _windows(iter(dataset), settings)


def _windows(following: Iterator[Any], settings: Windows) -> Iterator[Iterator[Any]]:
    for made, first in enumerate(following):
        num_batches, num_samples = settings.limit(made)
        if num_samples is None:
            window = _window(first, following, num_batches, lambda batch: 1)
        else:
            window = _window(first, following, num_samples, _num_samples)
        yield window
        for _ in window:
            pass


def _window(first: Any, following: Iterator[Any], limit: int, size_of: Callable[[Any], int]) -> Iterator[Any]:
    size = size_of(first)
    yield first
    while size < limit:
        batch = next(following, _END)
        if batch is _END:
            return
        size += size_of(batch)
        yield batch


@as_written
def split(batch: Any, micro_batch_size: int) -> Iterator[tuple[Any, int]]:
    """The micro-batches of a batch, each with its size; the last one holds what is left.

        for (x, y), size in split((x, y), 16):
            accumulator.add(..., weight=size)
        accumulator.apply(optimizer)

    >>> import numpy
    >>> [(part["x"].tolist(), size) for part, size in split({"x": numpy.arange(5)}, 2)]
    [([0, 1], 2), ([2, 3], 2), ([4], 1)]

    Args:
        batch: tensors or arrays in any nesting of tuples, lists and dictionaries, `None` allowed.
        micro_batch_size: the samples of a micro-batch.
    """
    require_positive("micro_batch_size", micro_batch_size, remedy="Give the number of samples that fit the memory.")
    return _parts(batch, _num_samples(batch), micro_batch_size)


def _parts(batch: Any, num_samples: int, micro_batch_size: int) -> Iterator[tuple[Any, int]]:
    for start in range(0, num_samples, micro_batch_size):
        size = min(micro_batch_size, num_samples - start)
        yield batches.take(batch, start, size), size


def _num_samples(batch: Any) -> int:
    size = batches.num_samples(batch)
    if tf.is_tensor(size) and not tf.executing_eagerly():
        raise AccumulationError(
            describe(
                "The number of samples must be known where a loop is unrolled.",
                "a batch whose first dimension is None, in a traced function",
                "Call this outside of the `tf.function`, or loop over `tf.range` inside of it.",
            )
        )
    return int(size)


_END = object()
