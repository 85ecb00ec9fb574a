"""The batches of one window, pulled from an iterator inside one traced function.

A window is never in memory as a whole, with one exception: where the denominators of its losses must be known before
its first micro-batch (`hold`), its inputs are kept, not its activations.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from bigbatch.training import batches
from bigbatch.training.sums import tensors


class Limit(NamedTuple):
    """Where a window closes: after so many batches, or when it has so many samples. Scalar tensors, never constants."""

    num_batches: Any
    num_samples: Any


class _Count(NamedTuple):
    num_batches: Any
    num_samples: Any

    def plus(self, batch: Any) -> _Count:
        return _Count(self.num_batches + 1, self.num_samples + batches.num_samples(batch))


def fold(iterator: Any, first: Any, limit: Limit, add: Callable[[Any, Any], Any]) -> tuple[Any, Any]:
    """Folds `add(batch, value)` over a window that begins with `first`; also returns the number of its batches."""

    def body(count: _Count, following: Any, value: Any) -> tuple[_Count, Any, Any]:
        batch = batches.without_optionals(following.get_value())
        value = add(batch, value)
        count = count.plus(batch)
        return count, _following(iterator, limit, count, value), value

    value = add(first, None)
    count = _Count(tf.constant(0), tf.constant(0)).plus(first)
    following = _following(iterator, limit, count, value)
    count, _, value = tf.while_loop(
        lambda count, following, value: following.has_value(), body, (count, following, value), parallel_iterations=1
    )
    return value, count.num_batches


def _following(iterator: Any, limit: Limit, count: _Count, value: Any) -> Any:
    """The next batch of the window, or nothing where the window or the data ends."""
    # The next batch is pulled when the last one is done with, so that only one is in memory.
    with tf.control_dependencies(tensors(value)):
        is_open = (count.num_batches < limit.num_batches) & (count.num_samples < limit.num_samples)
        return tf.cond(
            is_open,
            iterator.get_next_as_optional,
            lambda: tf.experimental.Optional.empty(iterator.element_spec),
        )


class Held(NamedTuple):
    """A whole window and the sums of its denominators."""

    batches: Any
    structure: Any
    num_batches: Any
    num_samples: Any
    totals: tuple[Any, ...]

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


def hold(iterator: Any, first: Any, limit: Limit, count: Callable[[Any], tuple[Any, ...]]) -> Held:
    """Pulls a window that begins with `first`, and sums `count(batch)` over it."""

    def add(batch: Any, value: Any) -> Any:
        parts = [part for part in tf.nest.flatten(batch, expand_composites=True) if part is not None]
        counts = (batches.num_samples(batch), *count(batch))
        if value is None:
            return [_array(part).write(0, part) for part in parts], tf.constant(1), counts
        arrays, index, totals = value
        arrays = [array.write(index, part) for array, part in zip(arrays, parts)]
        return arrays, index + 1, tuple(a + b for a, b in zip(totals, counts))

    (arrays, _, (num_samples, *totals)), number = fold(iterator, first, limit, add)
    return Held(arrays, first, number, num_samples, tuple(totals))


def _array(part: Any) -> tf.TensorArray:
    # Batches of a window may differ in size and length.
    return tf.TensorArray(part.dtype, 1, dynamic_size=True, infer_shape=False)


def _as_known(part: Any, like: Any) -> Any:
    # A traced array forgets what the trace knew of shapes; an eager batch has the shape that it has.
    return part if tf.executing_eagerly() else tf.ensure_shape(part, like.shape)
