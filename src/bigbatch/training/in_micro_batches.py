"""`in_micro_batches`: the forward pass of a loop of your own, for a loss that couples the samples of a batch."""

from __future__ import annotations

from typing import Any

import keras

from bigbatch.core.errors import AccumulationError, describe, require_positive
from bigbatch.training import keras_private, replicas
from bigbatch.training.two_passes import TwoPasses


def in_micro_batches(model: keras.Model, inputs: Any, *, micro_batch_size: int, training: bool = True) -> Any:
    """Calls a model on a whole batch with the memory of a micro-batch; the outputs can be differentiated.

        with tf.GradientTape() as tape:
            outputs = bigbatch.in_micro_batches(model, x, micro_batch_size=32)
            loss = contrastive_loss(outputs)                                    # every sample with every other
        gradients = tape.gradient(loss, model.trainable_variables)

    is, but for the memory, the same as

        with tf.GradientTape() as tape:
            outputs = tf.concat([model(part, training=True) for part, _ in bigbatch.split(x, 32)], 0)
            loss = contrastive_loss(outputs)
        gradients = tape.gradient(loss, model.trainable_variables)

    Micro-batches run forward, and their activations are forgotten; when the tape asks for gradients, each runs forward
    again, with the same random draws, and backward. Eager or traced.

    Args:
        model: a built model whose outputs have one row for each sample.
        inputs: what the model is called with.
        micro_batch_size: samples at a time.
        training: as for the call of a model.

    Raises:
        ValueError, TypeError: for a `micro_batch_size` that is out of range, and for a model that is not built.
        AccumulationError: on several replicas.

    The gradients are those of trainable variables, not of the inputs, and are computed once per tape.
    """
    require_positive("micro_batch_size", micro_batch_size, remedy="Use the number of samples that fit.")
    if not model.built:
        raise ValueError(
            describe("`model` must be built.", f"model={model.name!r}, which is not", "Call it on a sample first.")
        )
    if replicas.number() > 1:
        raise AccumulationError(
            describe(
                "`in_micro_batches` must run on one replica.",
                f"{replicas.number()} replicas",
                "Use `accumulate(model, whole_batch_loss=True)`, which gathers the outputs of all.",
            )
        )
    passes = TwoPasses(model, model.__call__, micro_batch_size)
    outputs = passes(inputs, training=training)
    keras_private.set_losses(model, [] if passes.loss is None else [passes.loss])
    return outputs
