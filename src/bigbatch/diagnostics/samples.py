"""What diagnostics are given: a model that can train, and samples to train on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from itertools import islice
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from bigbatch.core.errors import AccumulationError, describe
from bigbatch.training import batches, keras_private, replicas
from bigbatch.training.optimizers import optimizers_of
from bigbatch.training.update import Update


def require_compiled(model: Any) -> None:
    if not isinstance(model, keras.Model) or not model.compiled:
        raise ValueError(
            describe("`model` must be a compiled Keras 3 model.", f"model={model!r}", "Call `model.compile` first.")
        )


def require_one_replica(model: keras.Model, expected: str, remedy: str) -> None:
    number = model.distribute_strategy.num_replicas_in_sync
    if number > 1:
        raise AccumulationError(describe(expected, f"a model of {number} replicas", remedy))


def tensors(batch: Any) -> Any:
    """A batch of arrays and tensors, as tensors; `None` stays."""
    return tf.nest.map_structure(lambda leaf: leaf if leaf is None or tf.is_tensor(leaf) else tf.constant(leaf), batch)


def read(x: Any, y: Any, sample_weight: Any, *, num_batches: int) -> list[Any]:
    """Batches, as `fit` would hand them on: the first ones of a dataset, or arrays cut into so many.

    Their leaves are arrays or `None`.
    """
    if isinstance(x, tf.data.Dataset):
        _require(y is None and sample_weight is None, "A dataset must hold targets and weights itself.", "y or weights")
        found = [_arrays(batch) for batch in islice(iter(x), num_batches)]
        _require(bool(found), "`x` must hold samples.", "an empty dataset")
        return found
    parts = [part for part in tf.nest.flatten((x, y, sample_weight)) if part is not None]
    are_arrays = all(hasattr(part, "shape") or np.ndim(part) for part in parts)
    _require(are_arrays, "`x` must be arrays or a `tf.data.Dataset`.", f"x={type(x).__name__}")
    given = (x, y) if sample_weight is None else (x, y, sample_weight)
    whole = tf.nest.map_structure(_as_keras_casts, _arrays(given))
    _require(batches.num_samples(whole) > 0, "`x` must hold samples.", "none")
    size = -(-batches.num_samples(whole) // num_batches)
    return [batches.take(whole, start, size) for start in range(0, batches.num_samples(whole), size)]


def _require(holds: bool, expected: str, received: str) -> None:
    if not holds:
        raise ValueError(describe(expected, received, "Give what `fit` trains on, as arrays or a batched dataset."))


def build(model: keras.Model, batch: Any) -> None:
    """Builds what Keras would build at the first update (layers, optimizers, losses, metrics), and changes nothing."""
    one = tensors(batches.take(batch, 0, 1))
    with replicas.scope_of(model):
        keras_private.build(model, data_batch=one)
        for optimizer in optimizers_of(model) if replicas.number() > 1 else ():
            if not optimizer.built:
                optimizer.build(model.trainable_variables)
    if model.distribute_strategy.num_replicas_in_sync == 1:
        with _somewhere(model):
            Update(model, None, pool=True).look_at(one)


@contextmanager
def _somewhere(model: keras.Model) -> Iterator[None]:
    """In a graph that never runs, unless the model must run eagerly."""
    with nullcontext() if model.run_eagerly else keras_private.FuncGraph("build").as_default():
        yield


def _arrays(batch: Any) -> Any:
    return tf.nest.map_structure(lambda leaf: None if leaf is None else np.asarray(leaf), batch)


def _as_keras_casts(leaf: Any) -> Any:
    if leaf is None or not np.issubdtype(leaf.dtype, np.floating):
        return leaf
    return leaf.astype(keras.config.floatx())
