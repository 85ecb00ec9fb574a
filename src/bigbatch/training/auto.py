"""`micro_batch_size="auto"`: a size that does not fit is reduced, and the same window is run again.

    window = pull(iterator)
    while not fits(update, window, size):
        restore(what the attempt has touched)
        size = size // 2

So no sample is lost or seen twice, and the weights are those of a run that was given the sizes from the start. The
inputs of a window stay in memory until its update is made; nothing else is kept.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from bigbatch.core.errors import AccumulationError, describe
from bigbatch.core.sizes import Shape, Sizes
from bigbatch.training import batches, replicas, stream
from bigbatch.training.attempts import Alone, Together
from bigbatch.training.figures import Watch
from bigbatch.training.memory import LESS, OutOfMemory, forget_peak
from bigbatch.training.update import traced

_logger = logging.getLogger("bigbatch")


class _Kind(NamedTuple):
    """What windows have in common that need the same memory."""

    shape: Shape
    num_samples: int  # of the largest batch
    has_many: bool  # batches


class Auto:
    """Stands in for an `Update`, with a size of its own choice.

    Args:
        model: what is trained.
        pool: whether batch-norm statistics move once.
        are_batches: tells whether every update is one batch.
        watch: tells what is watched.
    """

    def __init__(
        self,
        model: keras.Model,
        pool: bool,
        are_batches: Callable[[], bool],
        watch: Callable[[], Watch],
    ) -> None:
        self._model = model
        self._pool = pool
        self._are_batches = are_batches
        self._watch = watch
        self._sizes = Sizes()
        self._attempts: dict[tuple[int, bool, Watch], Alone | Together] = {}
        self._proven: set[tuple[_Kind, Alone | Together]] = set()
        self._pull = traced(model, _pull)

    def on_window(self, iterator: Any, limit: stream.Limit, rate: Any) -> tuple[Any, Any]:
        """One update on the next batches of an iterator. Context: eager."""
        packed, number, shapes = self._pull(iterator, limit)
        kind = _kind(shapes, int(number))
        window = iterator, packed, number, rate
        failed: list[int] = []
        while True:
            size = self._sizes.size(kind.shape, kind.num_samples)
            attempt = self._attempt(size)
            is_proven = (kind, attempt) in self._proven
            if not is_proven:
                forget_peak()
            failure, logs = attempt.run(window, is_proven)
            if not failure:
                break
            gc.collect()  # what failed may still hold memory
            failed.append(min(size, kind.num_samples))
            if self._sizes.reduce(kind.shape, kind.num_samples) is None:
                _refuse(kind.shape, failure)
        self._proven.add((kind, attempt))
        if failed:
            _tell(kind, size, failed)
        return logs, number

    def _attempt(self, size: int) -> Alone | Together:
        watch = self._watch()
        key = size, self._are_batches(), watch
        if key not in self._attempts:
            if self._model.distribute_strategy.num_replicas_in_sync > 1:
                self._attempts[key] = Together(self._model, self._pool, size, watch)
            else:
                self._attempts[key] = Alone(self._model, self._pool, *key)
        return self._attempts[key]


def _pull(iterator: Any, limit: stream.Limit) -> tuple[Any, Any, Any]:
    """A window, the number of its batches and the largest shape of each of its tensors, on any replica.

    All of them must decide alike: a micro-batch weighs its part of a whole one, and nobody may give up alone. Context:
    cross-replica, or the only replica.
    """
    held = stream.hold(iterator, batches.without_optionals(iterator.get_next()), limit)

    def largest(batch: Any, shapes: Any) -> list[Any]:
        more = [batches.shape(leaf) for leaf in tf.nest.flatten(batch) if leaf is not None]
        return more if shapes is None else [tf.maximum(a, b) for a, b in zip(shapes, more)]

    shapes = held.fold(lambda *state: replicas.each(largest, *state))
    return held.packed(), held.num_batches, replicas.each(replicas.largest, shapes)


def _kind(shapes: list[Any], num_batches: int) -> _Kind:
    largest = [shape.numpy() for shape in replicas.of_first(shapes)]
    shape = tuple(tuple(int(size) for size in each[1:]) for each in largest)
    return _Kind(shape, max(1, int(largest[0][0])), num_batches > 1)


def _tell(kind: _Kind, size: int, failed: list[int]) -> None:
    _logger.warning(
        "%d samples at a time do not fit, %d do (samples of shape %s; %d failed). "
        "Pass `micro_batch_size=%d` to begin with it.",
        failed[0],
        min(size, kind.num_samples),
        _shapes(kind.shape),
        len(failed),
        min(size, kind.num_samples),
    )


def _refuse(shape: Shape, failure: OutOfMemory) -> None:
    raise AccumulationError(
        describe(
            "One sample at a time must fit the memory of every device.",
            f"a sample of shape {_shapes(shape)}, which needs {failure.needed()}",
            f"Nothing has changed since the last update. {LESS}",
        )
    )


def _shapes(shape: Shape) -> str:
    return ", ".join(str(each) for each in shape)
