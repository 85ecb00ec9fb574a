"""Samples of several replicas: each has its own, and sees those of all."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from bigbatch.training import batches, replicas


class Mine:
    """The place of this replica's samples among those of all. Context: replica, outside of any loop or condition.

    Args:
        batch: this replica's samples.
    """

    def __init__(self, batch: Any) -> None:
        self._size = tf.convert_to_tensor(batches.num_samples(batch))
        rank = tf.distribute.get_replica_context().replica_id_in_sync_group
        row = tf.one_hot(rank, replicas.number(), dtype=tf.float64) * tf.cast(self._size, tf.float64)
        [self._sizes] = replicas.all_reduce([row])
        self._start = tf.cast(tf.reduce_sum(self._sizes[:rank]), tf.int32)
        self.total = tf.cast(tf.reduce_sum(self._sizes), tf.int32)
        present = [leaf for leaf in tf.nest.flatten(batch) if leaf is not None]
        gathered = iter(self.gathered(present))
        self.of_all = tf.nest.map_structure(lambda leaf: None if leaf is None else next(gathered), batch)

    def num_micro_batches(self, size: int) -> Any:
        """Of all replicas."""
        return tf.reduce_sum(tf.math.ceil(self._sizes / size))

    def gathered(self, parts: list[Any]) -> list[Any]:
        """The same tensors with the rows of all replicas, in order."""
        # Strategies add up and nothing else, and what is no number cannot be added up.
        widened = [part if part.dtype.is_floating else tf.cast(part, tf.float64) for part in parts]
        with replicas.together():
            sums = replicas.all_reduce([self._among_zeros(part) for part in widened])
        return [self._like(part, total) for part, total in zip(parts, sums)]

    def taken(self, structure: Any) -> Any:
        """This replica's rows of tensors that have those of all."""
        return batches.take(structure, self._start, self._size)

    def added_up(self, parts: list[Any]) -> list[Any]:
        """The sums of tensors over all replicas."""
        with replicas.together():
            return replicas.all_reduce(parts)

    def any(self, flags: list[bool]) -> list[bool]:
        """Of each, whether it is true on some replica. Context: eager."""
        [numbers] = self.added_up([tf.constant([float(flag) for flag in flags], tf.float64)])
        return [number > 0 for number in numbers.numpy()]

    def _among_zeros(self, part: Any) -> Any:
        behind = self.total - self._start - self._size
        return tf.pad(part, [[self._start, behind], *[[0, 0]] * (part.shape.rank - 1)])

    def _like(self, part: Any, total: Any) -> Any:
        return tf.ensure_shape(tf.cast(total, part.dtype), [None, *part.shape[1:]])
