"""The names of Keras and TensorFlow that we call and that they do not document.

Each has its reason here and a test in `tests/training/test_keras_private.py` that fails when it moves. Names that we
override stand where they are overridden (`losses.py`, `fit.py`, `accumulation.py`, `optimizers.py`) and are guarded by
the same tests. What custom loops use must not import Keras: `gradient_checks.py`, `tensorflow_private.py`.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import keras
import tensorflow as tf

# A mask travels from layer to loss as an attribute of the tensor, and only Keras knows where.
from keras.src.backend.common.masking import get_keras_mask as get_keras_mask  # noqa: PLC0414
from keras.src.backend.common.masking import set_keras_mask as set_keras_mask  # noqa: PLC0414

# How Keras walks through an epoch. It counts batches, which an update may join several of.
from keras.src.backend.tensorflow.trainer import TFEpochIterator as TFEpochIterator  # noqa: PLC0414

# The rule by which Keras merges a mask into sample weights decides what a loss is divided by.
from keras.src.losses.loss import apply_mask as apply_mask  # noqa: PLC0414

from bigbatch.training.overriding import overridden

# A graph that may be thrown away: what is traced in it never runs, but what is lazy gets built.
FuncGraph = tf.__internal__.FuncGraph


@functools.cache
def mask_epsilon() -> float:
    """What Keras adds to the number of valid positions before it divides by it: 1e-7 up to Keras 3.12, then nothing."""
    with tf.init_scope():
        weight, _ = apply_mask(None, tf.constant([True, False]), dtype="float64", reduction="mean").numpy()
    return float(2.0 / weight - 1.0)


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


def needs_no_loss_trackers(model: keras.Model) -> bool:
    """Whether the compiled losses have what they make when they are first called: a tracker for each of several."""
    compiled = model._compile_loss
    has_one = len(getattr(model, "outputs", None) or []) == 1
    return compiled is None or compiled.built or has_one


def build(model: keras.Model, **data: Any) -> None:
    """What Keras builds of a model before it trains."""
    type(model)._maybe_symbolic_build(model, **data)


def flatten_layers(model: keras.Model) -> Iterator[keras.layers.Layer]:
    """All layers at any depth; the public `layers` stops at the first."""
    return iter(model._flatten_layers())


def seed_generators(layer: keras.layers.Layer) -> list[Any]:
    """Where a layer's random numbers come from: their seeds are variables, so that draws can be repeated."""
    return list(layer._seed_generators)


def losses_of_samples(layer: keras.layers.Layer) -> list[Any]:
    """What one layer said with `add_loss`, or its activity regularizer, in the last forward pass."""
    return list(layer._losses)


def has_losses_of_samples(model: keras.Model) -> bool:
    """Whether `add_loss` or an activity regularizer spoke in the last forward pass; weight regularizers are others."""
    return any(layer._losses for layer in model._flatten_layers())


def logits_of(output: Any) -> Any:
    """What a softmax or sigmoid was made of, or `None`: crossentropies look for it, and clip what comes without."""
    if hasattr(output, "_keras_logits"):
        return output._keras_logits
    is_made = not tf.executing_eagerly() and output.op.type in ("Softmax", "Sigmoid")
    return output.op.inputs[0] if is_made else None


def set_logits(output: Any, logits: Any) -> None:
    output._keras_logits = logits


def take_losses_of_samples(layer: keras.layers.Layer) -> list[Any]:
    """What a layer and those in it said with `add_loss` in the last forward pass; they forget it."""
    taken = []
    for each in layer._flatten_layers():
        taken += each._losses
        each._losses.clear()
    return taken


def set_losses(layer: keras.layers.Layer, losses: list[Any]) -> None:
    """What `add_loss` would add, and nothing else; functional models refuse it."""
    layer._losses.clear()
    layer._losses.extend(losses)


def seed_generators_of(model: keras.Model) -> list[Any]:
    """Those of all layers, each once."""
    found = [each for layer in flatten_layers(model) for each in seed_generators(layer)]
    return list({id(each): each for each in found}.values())


@contextmanager
def without_effects(model: keras.Model) -> Iterator[None]:
    """Seeds, metrics and statistics that change in here do not last."""
    # Keras asks a stateless scope for the weights to regularize, and gets None for those that did not change.
    with keras.StatelessScope(), overridden(model, _get_regularization_losses=list):
        yield


def optimizer_variables(optimizer: keras.optimizers.Optimizer) -> list[Any]:
    """What `apply(gradients)` without variables applies to."""
    return list(optimizer._trainable_variables)


def strategy_of(optimizer: keras.optimizers.Optimizer) -> Any:
    """The strategy in whose scope it was made: elsewhere, every replica would apply to the same variables."""
    return optimizer._distribution_strategy


def moving_averages(optimizer: keras.optimizers.Optimizer) -> list[Any]:
    """The averages of an optimizer with `use_ema`, one per trainable variable."""
    return list(optimizer._model_variables_moving_average)


def current_learning_rate(optimizer: keras.optimizers.Optimizer) -> Any:
    """What the optimizer's next application multiplies with, whether it has a rate, a schedule or a callable."""
    return optimizer._get_current_learning_rate()


def fit_with(make_epoch_iterator: Callable[..., Any]) -> Callable[..., Any]:
    """A copy of Keras' `fit` that makes its epochs by another function; the original is not touched."""
    original = inspect.unwrap(keras.Model.fit)
    names = original.__globals__ | {"TFEpochIterator": make_epoch_iterator}
    return types.FunctionType(original.__code__, names, "fit", original.__defaults__, original.__closure__)


def make_function(model: keras.Model, step: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Keras' own driver of a step (strategy, `steps_per_execution`, iterators), with XLA left to the step itself."""
    with overridden(model, _jit_compile=False):
        return model._make_function(step)
