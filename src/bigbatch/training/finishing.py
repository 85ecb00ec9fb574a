"""The end of an update: what its sums are applied to, tracked by and logged as."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from bigbatch.core.weighted import WeightedSum
from bigbatch.training import keras_private, metrics, noise
from bigbatch.training.figures import Watch, squared_norm
from bigbatch.training.micro_batch import FromMetric, FromTensor, Outline, Weighted
from bigbatch.training.sums import Sums, means


def apply(outline: Outline, sums: Sums, watch: Watch, micro_batch_size: int | None) -> None:
    """Applies the means, in the order in which `train_step` applied. Context: replica; eager or traced."""
    figures, squares = watch.figures, []
    of_micro_batches = noise.sum_of_squares(sums, outline) if watch.has_noise else None
    for optimizer, variables, handed in means(outline, sums):
        if figures:
            squares.append(squared_norm(optimizer, variables, handed))
        optimizer.apply(handed, variables)
    if figures:
        samples, micro_batches = sums.seen
        figures.record(samples, sums.weight if outline.counts else samples, micro_batches, squares)
        if watch.has_noise:
            of_both = of_micro_batches, tf.add_n(squares)
            figures.record_noise(*noise.noise_and_signal(sums, outline, micro_batch_size, *of_both))


def track(model: keras.Model, outline: Outline, sums: Sums, num_samples: Any) -> None:
    """Updates the trackers of losses, once. Context: as above."""
    by_static_size = {id(metric) for metric in keras_private.output_loss_trackers(model)}
    sample_weights = iter(sums.sample_weights)
    for (metric, given), number in zip(outline.tracked, sums.numbers):
        sample_weight = next(sample_weights) if given is Weighted else given
        if id(metric) in by_static_size:
            sample_weight = num_samples if isinstance(num_samples, int) else None
        metric.update_state(_value(number, outline), sample_weight=sample_weight)


def loose_logs(outline: Outline, sums: Sums) -> list[Any]:
    """The logged tensors that no metric holds. Context: as above."""
    return [_value(log, outline) if isinstance(log, WeightedSum) else log for log in sums.logs]


def logs(outline: Outline, loose: list[Any]) -> Any:
    """What `train_step` logs. Context: cross-replica, where a metric answers for all replicas."""

    def value(log: Any) -> Any:
        if isinstance(log, FromMetric):
            return metrics.current(log.metric, log.key)
        return loose[log.index] if isinstance(log, FromTensor) else log

    return keras.tree.map_structure(value, outline.logs)


def _value(number: WeightedSum, outline: Outline) -> Any:
    return number.total if outline.adds else number.mean()
