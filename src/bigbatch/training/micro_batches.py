"""The micro-batches of one batch: a ragged head, then whole ones, each with its weight."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import tensorflow as tf

from bigbatch.core.split import head_size
from bigbatch.core.weighted import NEXT_TO_NOTHING
from bigbatch.training import batches, replicas
from bigbatch.training.sums import float64, tensors

Value = TypeVar("Value")


class MicroBatch(NamedTuple):
    """A part of a batch.

    Args:
        data: its samples.
        share: its samples over those of the update, or `None` while the update's are unknown.
        weight: its samples, counted in whole micro-batches; the Python number 1.0 for a whole one.
    """

    data: Any
    share: Any
    weight: Any


class MicroBatches:
    """Cuts one batch.

    Args:
        batch: what the dataset yielded.
        size: samples in a whole micro-batch; `None`: the batch is the only micro-batch.
        of_update: the samples of the update; `None`: unknown.
        part: where to begin, and how many samples to take; `None`: all.
        may_be_empty: whether there may be no sample.
    """

    def __init__(
        self,
        batch: Any,
        size: int | None,
        of_update: Any,
        part: tuple[Any, Any] | None = None,
        may_be_empty: bool = False,
    ) -> None:
        self._batch = batch
        self._size = size
        self._of_update = of_update
        start_and_number: tuple[Any, Any] = (0, batches.num_samples(batch)) if part is None else part
        self._start, self.num_samples = start_and_number
        self._is_all = part is None
        self.may_be_empty = replicas.number() > 1 or may_be_empty
        self._head = self.num_samples if size is None else _smaller(self.num_samples, head_size(self.num_samples, size))
        self.number = 1 if size is None else (self.num_samples - self._head) // size + 1

    def head(self) -> MicroBatch:
        """The first micro-batch."""
        samples = tf.maximum(float64(self._head), NEXT_TO_NOTHING)
        weight = samples if self._size is None else samples / self._size
        is_whole = isinstance(self._head, int) and self._head == self._size
        return self._part(0, self._head, 1.0 if is_whole else weight)

    def halves(self) -> list[MicroBatches]:
        """Two, of which the second has no sample if there is only one; or all, if that is known to be several parts."""
        if isinstance(self.number, int) and self.number > 1:
            return [self]
        first = -(-self.num_samples // 2)
        second = self._start + first, self.num_samples - first
        return [
            MicroBatches(self._batch, self._size, self._of_update, (self._start, first)),
            MicroBatches(self._batch, self._size, self._of_update, second, may_be_empty=True),
        ]

    def seen(self) -> list[Any]:
        """How many samples and micro-batches there are."""
        return [float64(self.num_samples), float64(self.number)]

    def loop(self, body: Callable[[MicroBatch, Value], Value], initial: Value) -> Value:
        """Folds `body` over the other micro-batches, one after the other."""
        if isinstance(self.number, int) and self.number == 1:
            return initial
        # Without the dependency the loop may begin beside the head, with the memory of both.
        with tf.control_dependencies(tensors(initial)):
            first = tf.constant(1) + 0

        def turn(index: Any, value: Value) -> tuple[Any, Value]:
            start = self._head + (index - 1) * self._size
            return index + 1, body(self._part(start, self._size, 1.0), value)

        return tf.while_loop(lambda index, _: index < self.number, turn, (first, initial), parallel_iterations=1)[1]

    def _part(self, start: Any, size: Any, weight: Any) -> MicroBatch:
        share = None
        if self._of_update is not None:
            share = float64(size) / tf.maximum(float64(self._of_update), 1.0)
        data = self._batch
        if self._size is not None or not self._is_all:
            data = batches.take(data, self._start + start, size)
        return MicroBatch(data, share, weight)


def _smaller(a: Any, b: Any) -> Any:
    return min(a, b) if isinstance(a, int) else tf.minimum(a, b)
