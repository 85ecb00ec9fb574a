"""The batches of one window, pulled from an iterator inside one traced function.

A window is never in memory as a whole, with one exception: where the denominators of its losses must be known before
its first micro-batch (`hold`), its inputs are kept, not its activations.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from bigbatch.training import batches, replicas
from bigbatch.training.sums import tensors


class Limit(NamedTuple):
    """Where a window closes: after so many batches, or when it has so many samples, or `None`.

    Scalar tensors, never constants.
    """

    num_batches: Any
    num_samples: Any

    def is_open(self, count: _Count) -> Any:
        """Whether there is room for one more batch."""
        if self.num_samples is None:
            return count.num_batches < self.num_batches
        return count.num_samples < self.num_samples


class _Count(NamedTuple):
    num_batches: Any
    num_samples: Any

    def plus(self, batch: Any, limit: Limit) -> _Count:
        # Counting the samples of all workers takes a collective.
        more = 0 if limit.num_samples is None else replicas.num_samples(batch)
        return _Count(self.num_batches + 1, self.num_samples + more)


def fold(iterator: Any, first: Any, limit: Limit, add: Callable[[Any, Any], Any]) -> tuple[Any, Any]:
    """Folds `add(batch, value)` over a window that begins with `first`; also returns the number of its batches."""

    def body(count: _Count, following: Any, value: Any) -> tuple[_Count, Any, Any]:
        batch = batches.without_optionals(following.get_value())
        value = add(batch, value)
        count = count.plus(batch, limit)
        return count, _following(iterator, limit, count, value), value

    value = add(first, None)
    count = _Count(tf.constant(0), tf.constant(0)).plus(first, limit)
    following = _following(iterator, limit, count, value)
    count, _, value = tf.while_loop(
        lambda count, following, value: following.has_value(), body, (count, following, value), parallel_iterations=1
    )
    return value, count.num_batches


def _following(iterator: Any, limit: Limit, count: _Count, value: Any) -> Any:
    """The next batch of the window, or nothing where the window or the data ends."""
    # The next batch is pulled when the last one is done with, so that only one is in memory.
    with tf.control_dependencies(tensors(value)):
        return tf.cond(
            limit.is_open(count),
            iterator.get_next_as_optional,
            lambda: tf.experimental.Optional.empty(iterator.element_spec),
        )


class Held(NamedTuple):
    """A whole window."""

    batches: Any
    structure: Any
    num_batches: Any

    def fold(self, add: Callable[[Any, Any], Any]) -> Any:
        """Folds `add(batch, value)` over the batches."""

        def body(index: Any, value: Any) -> tuple[Any, Any]:
            return index + 1, add(self._read(index), value)

        value = add(self._read(0), None)
        with tf.control_dependencies(tensors(value)):
            index = tf.constant(1) + 0
        return tf.while_loop(lambda i, _: i < self.num_batches, body, (index, value), parallel_iterations=1)[1]

    def _read(self, index: Any) -> Any:
        arrays = iter(self.batches)
        parts = [
            None if like is None else _as_known(next(arrays).read(index), like)
            for like in tf.nest.flatten(self.structure, expand_composites=True)
        ]
        return tf.nest.pack_sequence_as(self.structure, parts, expand_composites=True)


def hold(iterator: Any, first: Any, limit: Limit, count: Callable[[Any, Any], Any]) -> tuple[Held, Any]:
    """Pulls a window that begins with `first`, and folds `count(batch, value)` over it."""

    def add(batch: Any, value: Any) -> Any:
        parts = [part for part in tf.nest.flatten(batch, expand_composites=True) if part is not None]
        if value is None:
            return [_array(part).write(0, part) for part in parts], tf.constant(1), count(batch, None)
        arrays, index, counts = value
        arrays = [array.write(index, part) for array, part in zip(arrays, parts)]
        return arrays, index + 1, count(batch, counts)

    (arrays, _, counts), number = fold(iterator, first, limit, add)
    return Held(arrays, first, number), counts


def _array(part: Any) -> tf.TensorArray:
    # Batches of a window may differ in size and length.
    return tf.TensorArray(part.dtype, 1, dynamic_size=True, infer_shape=False)


def _as_known(part: Any, like: Any) -> Any:
    # A traced array forgets what the trace knew of shapes; an eager batch has the shape that it has.
    return part if tf.executing_eagerly() else tf.ensure_shape(part, like.shape)
