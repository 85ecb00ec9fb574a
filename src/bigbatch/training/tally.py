"""What came since the last reset: the weight, how many micro-batches, and which variables they brought gradients for.

All of it is one vector, because counting is most of what a small micro-batch costs: one operation instead of five.
Runs on Python 3.7 with TensorFlow 1.14 and later.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

# What came for a variable; the larger one wins.
NOTHING, ROWS, DENSE = 0, 1, 2


def summed_variable(value: Any, name: str) -> Any:
    """A variable whose value is the sum of the replicas' own; a checkpoint keeps the sum."""
    synchronization, aggregation = tf.VariableSynchronization.ON_READ, tf.VariableAggregation.SUM
    return tf.Variable(value, trainable=False, name=name, synchronization=synchronization, aggregation=aggregation)


class Tally(tf.Module):
    """The vector `[weight, micro-batches, rows for variable 1, ..., dense for variable 1, ...]` of sums and counts."""

    def __init__(self, num_variables: int) -> None:
        super().__init__(name="tally")
        self._num_variables = num_variables
        self.counts = summed_variable(self._zeros(), "counts")

    def add(self, weight: Any, kinds: list[int]) -> None:
        """Counts one micro-batch; its weight is a float or a scalar of type float64."""
        came = [float(kind == each) for each in (ROWS, DENSE) for kind in kinds]
        if isinstance(weight, float):
            counts = tf.constant([weight, 1.0, *came], tf.float64)
        else:
            counts = tf.concat([tf.reshape(weight, [1]), tf.constant([1.0, *came], tf.float64)], 0)
        tf.raw_ops.AssignAddVariableOp(resource=self.counts.handle, value=counts)

    def skip(self) -> None:
        """Counts a micro-batch that brought nothing."""
        self.add(0.0, [NOTHING] * self._num_variables)

    def reset(self) -> None:
        self.counts.assign(self._zeros(), read_value=False)

    def read(self) -> Counts:
        """This replica's; outside of the replicas, the sums over all of them."""
        return Counts(tf.identity(self.counts))

    def _zeros(self) -> Any:
        return tf.zeros([2 + 2 * self._num_variables], tf.float64)


class Counts:
    """What such a vector says."""

    def __init__(self, vector: Any) -> None:
        self.vector = vector

    def weight(self) -> Any:
        return self.vector[0]

    def num_added(self) -> Any:
        return tf.cast(tf.round(self.vector[1]), tf.int64)

    def kinds(self) -> Any:
        rows, dense = tf.split(self.vector[2:] > 0, 2)
        nothing = tf.zeros_like(rows, tf.int32)
        return tf.where(dense, nothing + DENSE, tf.where(rows, nothing + ROWS, nothing + NOTHING))
