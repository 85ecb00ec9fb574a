"""The running sum of gradients over the micro-batches of one update.

A dense gradient is one running sum. `IndexedSlices` would have to become dense to be added, which for a large embedding
costs far more than the micro-batch itself, so their rows are kept in order and added up once, at the end.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf


class Rows(NamedTuple):
    """The weighted rows of all micro-batches, one entry per micro-batch."""

    indices: tf.TensorArray
    values: tf.TensorArray


class Largest(NamedTuple):
    """The running maximum of a value that replaces its variable (float8 scales), for which no mean makes sense."""

    value: Any


def start(gradient: Any, weight: Any, variable: Any, num_micro_batches: Any) -> Any:
    """The sum after the first micro-batch."""
    if getattr(variable, "overwrite_with_gradient", False):
        return Largest(gradient)
    if not isinstance(gradient, tf.IndexedSlices):
        return _scaled(gradient, weight)
    row = gradient.values.shape[1:].as_list()
    rows = Rows(
        _array(gradient.indices.dtype, [None], num_micro_batches),
        _array(accumulation_dtype(gradient.values.dtype), [None, *row], num_micro_batches),
    )
    return add(rows, gradient, weight, 0)


def add(total: Any, gradient: Any, weight: Any, index: Any) -> Any:
    """The sum after micro-batch `index`."""
    if isinstance(total, Largest):
        return Largest(tf.maximum(total.value, gradient))
    if isinstance(total, Rows):
        return Rows(
            total.indices.write(index, gradient.indices),
            total.values.write(index, _scaled(gradient.values, weight)),
        )
    return total + _scaled(gradient, weight)


def mean(total: Any, weight: Any, variable: Any) -> Any:
    """What the optimizer is handed: dense, so that every optimizer sees each row once."""
    if isinstance(total, Largest):
        return total.value
    if isinstance(total, Rows):
        slices = tf.IndexedSlices(total.values.concat(), total.indices.concat(), tf.constant(variable.shape.as_list()))
        total = tf.convert_to_tensor(slices)
    return tf.cast(total / tf.cast(weight, total.dtype), variable.dtype)


def accumulation_dtype(dtype: tf.DType) -> tf.DType:
    """Sums are kept in float32 or wider."""
    return tf.float32 if dtype in (tf.float16, tf.bfloat16) else dtype


def _scaled(gradient: Any, weight: Any) -> Any:
    gradient = tf.cast(gradient, accumulation_dtype(gradient.dtype))
    # Most micro-batches weigh 1, as a Python number. A product would read and write every gradient for nothing.
    return gradient if isinstance(weight, float) and weight == 1.0 else gradient * tf.cast(weight, gradient.dtype)


def _array(dtype: tf.DType, element_shape: list[int | None], size: Any) -> tf.TensorArray:
    return tf.TensorArray(dtype, size=size, element_shape=element_shape, infer_shape=False)
