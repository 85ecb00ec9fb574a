"""What an update tells of the noise in its gradient: one more sum beside the gradients, a scalar."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from bigbatch.training import gradients, optimizers
from bigbatch.training.micro_batch import Contribution, Outline

if TYPE_CHECKING:
    from bigbatch.training.sums import Sums


def squares(contribution: Contribution, samples: Any, outline: Outline) -> list[Any]:
    """Of each application: `weight * |gradient|^2`, where a mean weighs what it divided by, and a sum its samples."""
    weight = tf.cast(samples if outline.adds else contribution.weight_of(samples), tf.float64)
    totals = [
        tf.add_n([gradients.squared_norm(*pair) for pair in zip(of_optimizer, variables)])
        for of_optimizer, variables in zip(contribution.gradients, outline.with_gradient())
    ]
    return [total / weight if outline.adds else total * weight for total in totals]


def sum_of_squares(sums: Sums, outline: Outline) -> Any:
    """Over all applications, without the factor that optimizers have put on the loss, which applying may change."""
    scales = [optimizers.loss_scale(optimizer) for optimizer, _, _ in outline.applications]
    return tf.add_n([square / tf.square(scale) for square, scale in zip(sums.squares, scales)])


def noise_and_signal(
    sums: Sums, outline: Outline, micro_batch_size: int | None, of_micro_batches: Any, of_all: Any
) -> tuple[Any, Any]:
    """What `core.noise` smooths, given the two sums of squares. Not finite if there was one micro-batch."""
    samples, number = sums.seen
    if outline.adds:  # a sum weighs its samples, which are counted in micro-batches
        weight = samples / (micro_batch_size or 1)
        of_all /= tf.square(weight)
    else:
        weight = sums.weight
    spread = (of_micro_batches - weight * of_all) / (number - 1.0)
    return spread * samples / weight, of_all - spread / weight
