"""The running sums of one update: what its micro-batches have contributed so far."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import tensorflow as tf

from bigbatch.core.weighted import Moments, WeightedSum
from bigbatch.training import gradients, noise, replicas
from bigbatch.training.micro_batch import Contribution, Outline


class Sums(NamedTuple):
    """The variables of the loop over micro-batches."""

    weight: Any
    gradients: list[list[Any]]
    having: list[list[Any]]  # eagerly, how many micro-batches had a gradient of each
    numbers: list[WeightedSum]
    sample_weights: list[Any]
    moments: list[Moments]
    logs: list[Any]
    seen: list[Any]  # samples and micro-batches, if somebody watches
    squares: list[Any]  # of each application, those of the micro-batches' gradients, if their noise is measured

    def having_seen(self, more: list[Any]) -> Sums:
        """The same, with one more batch counted."""
        return self._replace(seen=[a + b for a, b in zip(self.seen, more)])


def start(contribution: Contribution, samples: Any, outline: Outline, seen: list[Any], has_noise: bool) -> Sums:
    """The sums after the first micro-batch; `samples` is its weight if its loss divides by samples."""
    weight = contribution.weight_of(samples)
    return Sums(
        weight=float64(weight),
        gradients=[
            [gradients.start(gradient, weight, variable) for gradient, variable in zip(of_optimizer, variables)]
            for of_optimizer, variables in zip(contribution.gradients, outline.with_gradient())
        ],
        having=contribution.having,
        numbers=[_weighted(number, weight) for number in contribution.numbers],
        sample_weights=contribution.sample_weights,
        moments=contribution.moments,
        logs=[_weighted(log, weight) if log.dtype.is_floating else log for log in contribution.logs],
        seen=seen,
        squares=noise.squares(contribution, samples, outline) if has_noise else [],
    )


def merge(sums: Sums, contribution: Contribution, samples: Any, outline: Outline) -> Sums:
    """The sums after one more micro-batch; the old ones must not be used any more."""
    weight = contribution.weight_of(samples)
    return Sums(
        weight=sums.weight + float64(weight),
        gradients=[
            [gradients.add(total, gradient, weight) for total, gradient in zip(totals, of_optimizer)]
            for totals, of_optimizer in zip(sums.gradients, contribution.gradients)
        ],
        having=[[a + b for a, b in zip(*pair)] for pair in zip(sums.having, contribution.having)],
        numbers=[a.merge(_weighted(b, weight)) for a, b in zip(sums.numbers, contribution.numbers)],
        sample_weights=[a + b for a, b in zip(sums.sample_weights, contribution.sample_weights)],
        moments=[a.merge(b) for a, b in zip(sums.moments, contribution.moments)],
        logs=[
            a.merge(_weighted(b, weight)) if isinstance(a, WeightedSum) else b
            for a, b in zip(sums.logs, contribution.logs)
        ],
        seen=sums.seen,
        squares=sums.squares and [a + b for a, b in zip(sums.squares, noise.squares(contribution, samples, outline))],
    )


def added_up(sums: Sums) -> Sums:
    """The sums over all replicas, on each of them. Context: replica, outside of any loop or condition."""
    if replicas.number() == 1:
        return sums
    additive = sums._replace(
        moments=[moments_as_sums(moments) for moments in sums.moments],
        sample_weights=[float64(weight) for weight in sums.sample_weights],
    )
    parts = tf.nest.flatten(additive)
    # An integer that a `train_step` logs counts something that is the same on every replica.
    floating = [part.dtype.is_floating for part in parts]
    reduced = iter(replicas.all_reduce([part for part, is_floating in zip(parts, floating) if is_floating]))
    parts = [next(reduced) if is_floating else part for part, is_floating in zip(parts, floating)]
    of_all = tf.nest.pack_sequence_as(additive, parts)
    return of_all._replace(moments=[moments_of_sums(*parts) for parts in of_all.moments])


def means(outline: Outline, sums: Sums) -> Iterator[tuple[Any, list[Any], list[Any]]]:
    """What each optimizer is handed, and for which variables."""
    weight = 1.0 if outline.adds else sums.weight
    for place, (optimizer, variables, present) in enumerate(outline.applications):
        remaining = iter(sums.gradients[place])
        handed = [
            gradients.mean(next(remaining), weight, variable) if has_gradient else None
            for variable, has_gradient in zip(variables, present)
        ]
        if sums.having:
            handed = [mean if bool(number) else None for mean, number in zip(handed, sums.having[place])]
        yield optimizer, variables, handed


def total(values: list[Any]) -> list[Any]:
    """The sums of numbers over all replicas, on each of them. Context: as above."""
    return values if replicas.number() == 1 else replicas.all_reduce([float64(value) for value in values])


def tensors(structure: Any) -> list[Any]:
    """The tensors of a structure, to wait for. Eagerly there is nothing to wait for."""
    if tf.executing_eagerly():
        return []
    # Whoever waits for the call of a `tf.function` waits for what it writes, not for what it returns.
    leaves = tf.nest.flatten(structure, expand_composites=True)
    return [tf.identity(leaf) for leaf in leaves if tf.is_tensor(leaf)]


def float64(value: Any) -> Any:
    """Weights, losses and shares are few, and their rounding would reach every gradient."""
    return tf.cast(value, tf.float64)


def _weighted(value: Any, weight: Any) -> WeightedSum:
    return WeightedSum.of(float64(value), float64(weight))


def moments_as_sums(moments: Moments) -> Any:
    """The sums of weights, of values and of squares."""
    weight, mean, variance = map(float64, moments)
    return weight, weight * mean, weight * (variance + tf.square(mean))


def moments_of_sums(weight: Any, total: Any, squares: Any) -> Moments:
    """The inverse of `moments_as_sums`."""
    mean = total / weight
    return Moments(weight, mean, squares / weight - tf.square(mean))
