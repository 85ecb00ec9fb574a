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
    """Where a window closes: after so many batches, or when it has so many samples; without either, after one batch.

    Scalar tensors, never constants.
    """

    num_batches: Any = None
    num_samples: Any = None

    def is_open(self, count: _Count) -> Any:
        """Whether there is room for one more batch."""
        if self.num_samples is None:
            return count.num_batches < self.num_batches
        return count.num_samples < self.num_samples


ONE_BATCH = Limit()  # known to the trace, which then has no loop over batches


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
        # The next batch is pulled beside this one, although it waits in memory then. If it waited for gradients, the
        # order of the graph, in which oneDNN's kernels replace others, might begin with the backward pass: in one
        # process of six, a convolutional network lost kernels.
        batch = batches.without_optionals(following.get_value())
        count = count.plus(batch, limit)
        return count, _following(iterator, limit, count), add(batch, value)

    value = add(first, None)
    if limit.num_batches is None:
        return value, 1
    count = _Count(tf.constant(0), tf.constant(0)).plus(first, limit)
    # Without the dependency the loop may begin beside the first batch, with the memory of both.
    with tf.control_dependencies(tensors(value)):
        following = _following(iterator, limit, count)
    count, _, value = tf.while_loop(
        lambda count, following, value: following.has_value(), body, (count, following, value), parallel_iterations=1
    )
    return value, count.num_batches


def _following(iterator: Any, limit: Limit, count: _Count) -> Any:
    """The next batch of the window, or nothing where the window or the data ends."""
    return tf.cond(
        limit.is_open(count),
        iterator.get_next_as_optional,
        lambda: tf.experimental.Optional.empty(iterator.element_spec),
    )


class Held(NamedTuple):
    """A whole window.

    Args:
        arrays: for every tensor of a batch, those of all batches.
        structure: a batch, or what the iterator tells of one.
        num_batches: how many there are; the Python number 1 if the trace knows.
    """

    arrays: list[Any]
    structure: Any
    num_batches: Any

    def fold(self, add: Callable[[Any, Any], Any]) -> Any:
        """Folds `add(batch, value)` over the batches."""

        def body(index: Any, value: Any) -> tuple[Any, Any]:
            return index + 1, add(self.read(index), value)

        value = add(self.read(0), None)
        if isinstance(self.num_batches, int):
            return value
        with tf.control_dependencies(tensors(value)):
            index = tf.constant(1) + 0
        return tf.while_loop(lambda i, _: i < self.num_batches, body, (index, value), parallel_iterations=1)[1]

    def read(self, index: Any) -> Any:
        """One of the batches."""
        arrays = iter(self.arrays)
        parts = [
            None if like is None else _as_known(next(arrays).read(index), like) for like in _flatten(self.structure)
        ]
        return tf.nest.pack_sequence_as(self.structure, parts, expand_composites=True)

    def joined(self) -> Any:
        """All of them as one batch, on every replica; dense tensors only."""
        arrays = iter(self.arrays)
        parts = [None if like is None else _all_of(next(arrays), like) for like in _flatten(self.structure)]
        return tf.nest.pack_sequence_as(self.structure, parts, expand_composites=True)

    def packed(self) -> list[Any]:
        """The arrays, so that they can leave a `tf.function`."""
        return self.arrays if tf.executing_eagerly() else [array.flow for array in self.arrays]

    @classmethod
    def unpacked(cls, packed: list[Any], iterator: Any, num_batches: Any) -> Held:
        """A window of an iterator, in another `tf.function`."""
        structure = batches.without_optionals(iterator.element_spec)
        parts = [part for part in _flatten(structure) if part is not None]
        if not tf.executing_eagerly():
            packed = [_array(part, flow) for part, flow in zip(parts, packed)]
        return cls(packed, structure, num_batches)


def hold(iterator: Any, first: Any, limit: Limit) -> Held:
    """Pulls a window that begins with `first`."""

    def add(batch: Any, value: Any) -> Any:
        parts = [part for part in _flatten(batch) if part is not None]
        arrays, index = value or ([_array(part) for part in parts], tf.constant(0))
        return [array.write(index, part) for array, part in zip(arrays, parts)], index + 1

    (arrays, _), number = fold(iterator, first, limit, add)
    return Held(arrays, first, number)


def _flatten(structure: Any) -> list[Any]:
    return tf.nest.flatten(structure, expand_composites=True)


def _array(part: Any, flow: Any = None) -> tf.TensorArray:
    # Batches of a window may differ in size and length.
    size = {"size": 1, "dynamic_size": True} if flow is None else {"flow": flow}
    return tf.TensorArray(part.dtype, infer_shape=False, clear_after_read=False, **size)


def _as_known(part: Any, like: Any) -> Any:
    # A traced array forgets what the trace knew of shapes; an eager batch has the shape that it has.
    return part if tf.executing_eagerly() else tf.ensure_shape(part, like.shape)


def _all_of(array: tf.TensorArray, like: Any) -> Any:
    whole = array.concat()
    return whole if tf.executing_eagerly() else tf.ensure_shape(whole, [None, *like.shape[1:]])
