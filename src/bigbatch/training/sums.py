"""The running sums of one update: what its micro-batches have contributed so far."""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf

from bigbatch.core.weighted import Moments, WeightedSum
from bigbatch.training import gradients
from bigbatch.training.micro_batch import Contribution, Outline


class Sums(NamedTuple):
    """The variables of the loop over micro-batches."""

    weight: Any
    gradients: list[list[Any]]
    numbers: list[WeightedSum]
    sample_weights: list[Any]
    moments: list[Moments]
    logs: list[Any]


def start(contribution: Contribution, samples: Any, outline: Outline) -> Sums:
    """The sums after the first micro-batch; `samples` is its weight if its loss divides by samples."""
    weight = samples if contribution.weight is None else contribution.weight
    return Sums(
        weight=float64(weight),
        gradients=[
            [
                gradients.start(gradient, weight, variable)
                for gradient, variable in zip(of_optimizer, _with_gradient(variables, present))
            ]
            for of_optimizer, (_, variables, present) in zip(contribution.gradients, outline.applications)
        ],
        numbers=[_weighted(number, weight) for number in contribution.numbers],
        sample_weights=contribution.sample_weights,
        moments=contribution.moments,
        logs=[_weighted(log, weight) if log.dtype.is_floating else log for log in contribution.logs],
    )


def merge(sums: Sums, contribution: Contribution, samples: Any) -> Sums:
    """The sums after one more micro-batch; the old ones must not be used any more."""
    weight = samples if contribution.weight is None else contribution.weight
    return Sums(
        weight=sums.weight + float64(weight),
        gradients=[
            [gradients.add(total, gradient, weight) for total, gradient in zip(totals, of_optimizer)]
            for totals, of_optimizer in zip(sums.gradients, contribution.gradients)
        ],
        numbers=[a.merge(_weighted(b, weight)) for a, b in zip(sums.numbers, contribution.numbers)],
        sample_weights=[a + b for a, b in zip(sums.sample_weights, contribution.sample_weights)],
        moments=[a.merge(b) for a, b in zip(sums.moments, contribution.moments)],
        logs=[
            a.merge(_weighted(b, weight)) if isinstance(a, WeightedSum) else b
            for a, b in zip(sums.logs, contribution.logs)
        ],
    )


def tensors(structure: Any) -> list[Any]:
    """The tensors of a structure, to wait for."""
    return [leaf for leaf in tf.nest.flatten(structure) if tf.is_tensor(leaf)]


def float64(value: Any) -> Any:
    """Weights, losses and shares are few, and their rounding would reach every gradient."""
    return tf.cast(value, tf.float64)


def _weighted(value: Any, weight: Any) -> WeightedSum:
    return WeightedSum.of(float64(value), float64(weight))


def _with_gradient(variables: list[Any], present: list[bool]) -> list[Any]:
    return [variable for variable, has_gradient in zip(variables, present) if has_gradient]
