"""Moving statistics of the whole batch for `BatchNormalization`.

Keras moves the statistics once per forward pass, so with K micro-batches K times per update and by K different moments.
Here each pass only tells its moments; they are pooled (law of total variance) and the statistics move once:

    moving = moving * momentum + moments(batch) * (1 - momentum)

What stays different from the whole batch: each micro-batch is still normalised by its own moments.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from bigbatch.core.errors import AccumulationError, describe
from bigbatch.core.weighted import NEXT_TO_NOTHING, Moments
from bigbatch.training import keras_private
from bigbatch.training.overriding import overridden

_BatchNormalization = keras.layers.BatchNormalization


@dataclass(frozen=True)
class Call:
    """One call of a layer in a forward pass."""

    layer: keras.layers.BatchNormalization
    masked: bool


@dataclass(frozen=True)
class Observation:
    """The moments that one call of a layer saw."""

    call: Call
    moments: Moments


@contextmanager
def observed(model: keras.Model) -> Iterator[list[Observation]]:
    """Keeps the moving statistics of poolable layers still and notes the moments that would have moved them."""
    observations: list[Observation] = []
    graph = tf.compat.v1.get_default_graph()
    with ExitStack() as stack:
        for layer in _layers_of(model):
            if _is_poolable(layer):
                stack.enter_context(overridden(layer, call=_observing(layer, observations, graph)))
        yield observations


def move(call: Call, moments: Moments) -> None:
    """Moves the statistics of a layer as Keras does after one forward pass."""
    layer = call.layer
    _, mean, variance = _as_keras_divides(moments) if call.masked else moments
    for variable, value in ((layer.moving_mean, mean), (layer.moving_variance, variance)):
        old = tf.cast(variable, value.dtype)
        variable.assign(old * layer.momentum + value * (1.0 - layer.momentum))


def refuse_synchronized(model: keras.Model) -> None:
    """On several replicas, such a layer would wait for the others inside a loop that each runs at its own pace."""
    names = [layer.name for layer in _layers_of(model) if layer.synchronized]
    if names:
        raise AccumulationError(
            describe(
                "On several replicas, BatchNormalization must not be synchronized.",
                f"synchronized=True in {', '.join(names)}",
                "Use synchronized=False: the moving statistics cover all replicas anyway.",
            )
        )


def warn_of(model: keras.Model) -> None:
    """Says once, when accumulation is switched on, which layers normalise by the micro-batch."""
    if names := layers_in_training(model):
        warnings.warn(
            "BatchNormalization normalises each micro-batch by its own moments, so the update of this model is close "
            f"to that of the whole batch but not equal to it. Received: {', '.join(names)}. Freeze these layers "
            "(`layer.trainable = False`) or use GroupNormalization to be exact; pass `batch_norm` to silence this.",
            UserWarning,
            stacklevel=3,
        )


def layers_in_training(model: keras.Model) -> list[str]:
    """The layers that normalise a batch by its own moments."""
    return [layer.name for layer in _layers_of(model) if layer.trainable]


def _layers_of(model: keras.Model) -> list[keras.layers.BatchNormalization]:
    return [layer for layer in keras_private.flatten_layers(model) if isinstance(layer, _BatchNormalization)]


def _is_poolable(layer: keras.layers.BatchNormalization) -> bool:
    # A subclass with its own `call`, or batch renormalisation, may use its moving statistics while training.
    return type(layer).call is _BatchNormalization.call and not getattr(layer, "renorm", False)


def _observing(layer: keras.layers.BatchNormalization, observations: list[Observation], graph: Any) -> Any:
    original = layer.call

    def call(inputs: Any, training: Any = None, mask: Any = None) -> Any:
        if tf.compat.v1.get_default_graph() is not graph:
            # Inside another `tf.function` or `tf.cond`: its moments could not leave, and its trace would outlive us.
            return original(inputs, training=training, mask=mask)
        seen: list[Any] = []
        # With no momentum, what Keras assigns is the moment itself.
        with (
            overridden(layer, momentum=0.0),
            overridden(layer.moving_mean, assign=seen.append),
            overridden(layer.moving_variance, assign=seen.append),
        ):
            outputs = original(inputs, training=training, mask=mask)
        if seen:
            mean, variance = seen
            weight = tf.cast(_num_values(layer, inputs, mask), mean.dtype) + NEXT_TO_NOTHING
            moments = Moments(weight, mean, variance)
            masked = mask is not None
            observations.append(Observation(Call(layer, masked), _true_moments(moments) if masked else moments))
        return outputs

    return call


def _num_values(layer: keras.layers.BatchNormalization, inputs: Any, mask: Any) -> Any:
    if mask is not None:
        return tf.math.count_nonzero(mask)
    return tf.size(inputs, out_type=tf.int64) // inputs.shape[layer.axis]


def _true_moments(seen: Moments) -> Moments:
    """Undoes that Keras divides the sums of a masked layer by `weight + epsilon`."""
    weight, mean, variance = seen
    divisor = weight + keras.config.epsilon()
    true_mean = mean * divisor / weight
    return Moments(weight, true_mean, variance * divisor / weight - tf.square(true_mean - mean))


def _as_keras_divides(moments: Moments) -> Moments:
    """The inverse of `_true_moments`."""
    weight, true_mean, true_variance = moments
    divisor = weight + keras.config.epsilon()
    mean = true_mean * weight / divisor
    return Moments(weight, mean, (true_variance + tf.square(true_mean - mean)) * weight / divisor)
