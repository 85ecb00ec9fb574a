"""Every name of Keras and TensorFlow that we use and that they do not document.

Each has its reason here and a test in `tests/training/test_keras_private.py` that fails when it moves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

# A mask travels from layer to loss as an attribute of the tensor, and only Keras knows where.
from keras.src.backend.common.masking import get_keras_mask as get_keras_mask  # noqa: PLC0414

# The rule by which Keras merges a mask into sample weights decides what a loss is divided by.
from keras.src.losses.loss import apply_mask as apply_mask  # noqa: PLC0414

from bigbatch.training.overriding import overridden

# A graph that may be thrown away: what is traced in it never runs, but what is lazy gets built.
FuncGraph = tf.__internal__.FuncGraph


def compile_loss(model: keras.Model) -> Any:
    """The container of the compiled losses: the only place where the losses of several outputs can be told apart."""
    return model._compile_loss


def loss_trackers(model: keras.Model) -> list[keras.metrics.Metric]:
    """The means that Keras logs as `loss` and `<output>_loss`: a user may hide them by overriding `metrics`."""
    own = [model._loss_tracker] if model._loss_tracker is not None else []
    return own + output_loss_trackers(model)


def output_loss_trackers(model: keras.Model) -> list[keras.metrics.Metric]:
    """Keras weighs these by the static size of the batch, or not at all where the size is unknown at trace time."""
    return list(model._compile_loss.metrics) if model._compile_loss is not None else []


def flatten_layers(model: keras.Model) -> Iterator[keras.layers.Layer]:
    """All layers at any depth; the public `layers` stops at the first."""
    return iter(model._flatten_layers())


def has_losses_of_samples(model: keras.Model) -> bool:
    """Whether `add_loss` or an activity regularizer spoke in the last forward pass; weight regularizers are others."""
    return any(layer._losses for layer in model._flatten_layers())


def optimizer_variables(optimizer: keras.optimizers.Optimizer) -> list[Any]:
    """What `apply(gradients)` without variables applies to."""
    return list(optimizer._trainable_variables)


def make_function(model: keras.Model, step: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Keras' own driver of a step (strategy, `steps_per_execution`, iterators), with XLA left to the step itself."""
    with overridden(model, _jit_compile=False):
        return model._make_function(step)
