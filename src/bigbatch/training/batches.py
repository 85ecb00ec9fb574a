"""Cutting a batch of any nested structure along its samples.

Runs on Python 3.7 with TensorFlow 1.14 and later.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from bigbatch.core.errors import AccumulationError, describe

_UNEQUAL = "The tensors of a batch must agree in their number of samples."


def num_samples(batch: Any) -> Any:
    """The size of a batch: an integer where the shapes tell it, else a scalar tensor that is checked when it runs."""
    leaves = [leaf for leaf in tf.nest.flatten(batch) if leaf is not None]
    if not leaves:
        raise AccumulationError(describe("A batch must hold at least one tensor.", f"{batch!r}", "Give it samples."))
    sizes = [_static_size(leaf) for leaf in leaves]
    static = {size for size in sizes if size is not None}
    if len(static) > 1:
        _raise_unequal(sorted(static))
    dynamic = [_first_dimension(leaf) for leaf, size in zip(leaves, sizes) if size is None]
    candidates: list[Any] = [*static, *dynamic]
    size, *others = candidates
    checks = [tf.debugging.assert_equal(size, other, message=_UNEQUAL) for other in others]
    if static and not dynamic:
        return size
    with tf.control_dependencies([check for check in checks if check is not None]):
        return size if static else tf.identity(size)


def static_num_samples(batch: Any) -> int | None:
    """The size of a batch, if the shapes of all its tensors tell it, and tell the same."""
    sizes = {_static_size(leaf) for leaf in tf.nest.flatten(batch) if leaf is not None}
    return sizes.pop() if len(sizes) == 1 else None


def without_optionals(batch: Any) -> Any:
    """Keras puts an empty `Optional` where a generator yields `None`; in what tells of batches, too."""
    optional = (tf.experimental.Optional, tf.OptionalSpec)
    return tf.nest.map_structure(lambda leaf: None if isinstance(leaf, optional) else leaf, batch)


def shape(leaf: Any) -> Any:
    """The dimensions of a tensor of a batch, as a vector; of a ragged one, those of the dense one around it."""
    if isinstance(leaf, tf.RaggedTensor):
        return tf.cast(leaf.bounding_shape(), tf.int32)
    return tf.cast(leaf.dense_shape, tf.int32) if isinstance(leaf, tf.SparseTensor) else tf.shape(leaf)


def take(batch: Any, start: Any, size: Any) -> Any:
    """Samples `start` to `start + size`; the result's first dimension is static if `size` is an integer."""
    return tf.nest.map_structure(lambda leaf: None if leaf is None else _take(leaf, start, size), batch)


def _take(leaf: Any, start: Any, size: Any) -> Any:
    if isinstance(leaf, tf.RaggedTensor) or not tf.is_tensor(leaf):
        return leaf[start : start + size]
    rank = leaf.shape.rank
    if isinstance(leaf, tf.SparseTensor):
        offset = tf.concat([[start], tf.zeros([rank - 1], tf.int32)], 0)
        extent = tf.concat([tf.cast([size], tf.int64), leaf.dense_shape[1:]], 0)
        part = tf.sparse.slice(leaf, tf.cast(offset, tf.int64), extent)
        if not tf.executing_eagerly():
            part.set_shape([_static(size), *leaf.shape.as_list()[1:]])
        return part
    if _static(size) is not None and _static_size(leaf) == size:
        return leaf
    part = tf.slice(leaf, [start] + [0] * (rank - 1), [size] + [-1] * (rank - 1))
    part.set_shape([_static(size), *leaf.shape.as_list()[1:]])
    return part


def _static_size(leaf: Any) -> int | None:
    shape = tf.TensorShape(getattr(leaf, "shape", ()))
    if not shape.rank:
        raise AccumulationError(
            describe(
                "Every tensor of a batch must have the samples as its first dimension.",
                f"{'a scalar' if shape.rank == 0 else 'a tensor of unknown rank'}, {leaf!r}",
                "Repeat a scalar once per sample; give an `output_signature` to a generator of unknown shapes.",
            )
        )
    return shape.as_list()[0]


def _static(size: Any) -> int | None:
    return size if isinstance(size, int) else None


def _first_dimension(leaf: Any) -> Any:
    if isinstance(leaf, tf.RaggedTensor):
        return tf.cast(leaf.nrows(), tf.int32)
    if isinstance(leaf, tf.SparseTensor):
        return tf.cast(leaf.dense_shape[0], tf.int32)
    return tf.shape(leaf)[0]


def _raise_unequal(sizes: list[int]) -> None:
    raise AccumulationError(
        describe(
            _UNEQUAL,
            f"first dimensions {sizes}",
            "Give every input, target and weight one row per sample.",
        )
    )
