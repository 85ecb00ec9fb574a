"""The running sum of one variable's gradients, kept between calls.

One buffer of the variable's shape takes both kinds of gradients. `IndexedSlices` (the gradient of an embedding) touch
only their rows of it, and the touched rows are remembered: so adding, averaging and resetting cost what the rows cost,
duplicate rows are added up, and an optimizer that treats rows lazily still sees rows.

Runs on Python 3.7 with TensorFlow 1.14 and later, eagerly and traced. Raw operations stand where the methods of
variables would read the variable again, make a temporary or take twice the time to call.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from bigbatch.training import replicas
from bigbatch.training.gradients import sum_dtype
from bigbatch.training.tally import DENSE, NOTHING, ROWS, summed_variable


def kind_of(gradient: Any) -> int:
    if gradient is None:
        return NOTHING
    return ROWS if isinstance(gradient, tf.IndexedSlices) else DENSE


def sum_for(variable: Any) -> GradientSum:
    if not getattr(variable, "overwrite_with_gradient", False):
        return GradientSum(variable)
    replicas.refuse_float8(variable)
    return LargestGradient(variable)


class GradientSum(tf.Module):
    """The sum of `weight * gradient`, in float32 or wider."""

    def __init__(self, variable: Any) -> None:
        super().__init__(name="gradient_sum")
        self._dtype = tf.as_dtype(variable.dtype)
        self._total_dtype = sum_dtype(self._dtype)
        self._shape = [int(size) for size in variable.shape]
        self.total = summed_variable(self._zeros(), "total")
        self.touched = summed_variable(self._untouched(), "touched")  # a number, for a sum over replicas

    def add(self, gradient: Any, weight: Any) -> None:
        """Adds a gradient that is not `None`; the weight is a float, or a scalar where it is traced."""
        if not tf.executing_eagerly():
            # A number must not take the way over float32.
            known = isinstance(weight, float)
            weight = tf.constant(weight, self._total_dtype) if known else tf.cast(weight, self._total_dtype)
        if isinstance(gradient, tf.IndexedSlices):
            rows = self._wide(gradient.values) * weight
            tf.raw_ops.ResourceScatterAdd(resource=self.total.handle, indices=gradient.indices, updates=rows)
            self._write(self.touched, gradient.indices, tf.ones(tf.shape(gradient.indices), tf.float32))
        else:
            # One pass and no temporary, where `assign_add(weight * gradient)` needs both.
            tf.raw_ops.ResourceApplyGradientDescent(var=self.total.handle, alpha=-weight, delta=self._wide(gradient))

    def read(self, kind: int) -> Any:
        """The sum as a gradient of the given kind."""
        if kind == NOTHING:
            return None
        if kind == DENSE:
            return tf.identity(self.total)
        indices = self._touched_rows()
        return tf.IndexedSlices(tf.gather(self.total, indices), indices, tf.constant(self._shape, tf.int64))

    def mean(self, total: Any, weight: Any) -> Any:
        """A sum that was read, over `weight`, in the variable's own dtype."""
        if isinstance(total, tf.IndexedSlices):
            rows = self._divided(total.values, weight)
            rows.set_shape([None, *self._shape[1:]])  # not known of rows that came from other replicas
            return tf.IndexedSlices(rows, total.indices, total.dense_shape)
        return None if total is None else self._divided(total, weight)

    def reset(self, kind: int) -> None:
        if kind == DENSE:
            self.total.assign(self._zeros(), read_value=False)
        if kind == ROWS:
            indices = self._touched_rows()
            blank = tf.zeros([tf.size(indices), *self._shape[1:]], self._total_dtype)
            self._write(self.total, indices, blank)
        if kind != NOTHING:
            self.touched.assign(self._untouched(), read_value=False)

    def _write(self, variable: Any, indices: Any, rows: Any) -> None:
        """Values for all rows: one scalar for all of them takes TensorFlow three times as long."""
        tf.raw_ops.ResourceScatterUpdate(resource=variable.handle, indices=indices, updates=rows)

    def _wide(self, gradient: Any) -> Any:
        return gradient if gradient.dtype == self._total_dtype else tf.cast(gradient, self._total_dtype)

    def _touched_rows(self) -> Any:
        return tf.where(tf.identity(self.touched) > 0)[:, 0]

    def _divided(self, total: Any, weight: Any) -> Any:
        return tf.cast(total / tf.cast(weight, self._total_dtype), self._dtype)

    def _zeros(self) -> Any:
        return tf.zeros(self._shape, self._total_dtype)

    def _untouched(self) -> Any:
        return tf.zeros(self._shape[:1], tf.float32)


class LargestGradient(GradientSum):
    """For values that replace their variable (float8 scales, never negative): no mean of them makes sense."""

    def add(self, gradient: Any, weight: Any) -> None:
        self.total.assign(tf.maximum(self.total, gradient), read_value=False)

    def _divided(self, total: Any, weight: Any) -> Any:
        return total
