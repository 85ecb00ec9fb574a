"""One update: a loop over the micro-batches of a batch, then one application of the optimizer.

    for micro_batch in split(batch, micro_batch_size):
        sums = sums + weight(micro_batch) * gradients(micro_batch)
    optimizer.apply(sums / sum_of_weights)

Two levels run inside one traced function: the *update*, and in its loop the *micro-batch*, a nested `tf.function` that
is traced once and compiled by XLA if the model is. XLA around the loop would cost many times the compiled micro-batch.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import keras
import tensorflow as tf

from bigbatch.core.split import head_size
from bigbatch.core.weighted import Moments, WeightedSum
from bigbatch.training import batch_norm, batches, gradients, keras_private, metrics
from bigbatch.training.micro_batch import Contribution, FromMetric, FromTensor, Outline, Weighted, run
from bigbatch.training.survey import survey


class Sums(NamedTuple):
    """The running sums of an update; the variables of its loop."""

    weight: Any
    gradients: list[list[Any]]
    numbers: list[WeightedSum]
    sample_weights: list[Any]
    moments: list[Moments]
    logs: list[Any]


class Update:
    """Stands in for `train_step`: takes a batch, returns its logs. Context: replica; eager or traced."""

    def __init__(self, model: keras.Model, micro_batch_size: int, pool: bool) -> None:
        self._model = model
        self._micro_batch_size = micro_batch_size
        self._pool = pool
        self._outline: Any = None
        self._run: Any = self._run_micro_batch
        if not model.run_eagerly:
            self._run = tf.function(self._run_micro_batch, autograph=False, jit_compile=model.jit_compile)

    def __call__(self, batch: Any) -> Any:
        num_samples = batches.num_samples(batch)
        head = head_size(num_samples, self._micro_batch_size)
        micro_batches = _MicroBatches(batch, num_samples, head, self._micro_batch_size)
        if self._outline is None:
            survey(self._model, lambda: self._run_micro_batch(*micro_batches.head(), ()))
        totals = self._totals(micro_batches) if self._outline.needs_totals else ()
        sums = self._sum(micro_batches, totals)
        # Nothing changes before all is known: a failed micro-batch must not leave half an update behind.
        with tf.control_dependencies(_tensors(sums)):
            return self._finish(self._outline, sums, num_samples)

    def _run_micro_batch(self, data: Any, share: Any, totals: tuple[Any, ...]) -> Contribution:
        self._outline, contribution = run(self._model, data, share=share, totals=totals, pool=self._pool)
        return contribution

    def _sum(self, micro_batches: _MicroBatches, totals: tuple[Any, ...]) -> Sums:
        """Every micro-batch once. Nothing of one is alive while the next one runs but the sums."""
        first = self._run(*micro_batches.head(), totals)
        sums = _start(first, micro_batches.head_weight, self._outline)

        def body(index: Any, sums: Sums) -> tuple[Any, Sums]:
            contribution = self._run(*micro_batches.whole(index), totals)
            return index + 1, _merge(sums, contribution, 1.0)

        return micro_batches.loop(body, sums)

    def _totals(self, micro_batches: _MicroBatches) -> tuple[Any, ...]:
        """The denominators of the whole batch. When traced, all but the masks' own operations is pruned."""

        def counts(data: Any, share: Any) -> list[Any]:
            with keras.StatelessScope():  # the seeds, metrics and statistics of this pass are not to last
                _, contribution = run(self._model, data, share=share, totals=(), pool=self._pool)
            return contribution.counts

        counts = counts if self._model.run_eagerly else tf.function(counts, autograph=False)

        def body(index: Any, sums: list[Any]) -> tuple[Any, list[Any]]:
            return index + 1, [a + b for a, b in zip(sums, counts(*micro_batches.whole(index)))]

        return tuple(micro_batches.loop(body, counts(*micro_batches.head())))

    def _finish(self, outline: Outline, sums: Sums, num_samples: Any) -> Any:
        """Applies the means, in the order in which `train_step` applied, and returns the logs of the batch."""
        for (optimizer, variables, present), totals in zip(outline.applications, sums.gradients):
            remaining = iter(totals)
            means = [
                gradients.mean(next(remaining), sums.weight, variable) if has_gradient else None
                for variable, has_gradient in zip(variables, present)
            ]
            optimizer.apply(means, variables)
        for call, moments in zip(outline.norms, sums.moments):
            batch_norm.move(call, moments)
        self._track(outline, sums, num_samples)
        return keras.tree.map_structure(lambda log: _log(log, sums.logs), outline.logs)

    def _track(self, outline: Outline, sums: Sums, num_samples: Any) -> None:
        by_static_size = {id(metric) for metric in keras_private.output_loss_trackers(self._model)}
        sample_weights = iter(sums.sample_weights)
        for (metric, given), number in zip(outline.tracked, sums.numbers):
            sample_weight = next(sample_weights) if given is Weighted else given
            if id(metric) in by_static_size:
                sample_weight = num_samples if isinstance(num_samples, int) else None
            metric.update_state(number.mean(), sample_weight=sample_weight)


class _MicroBatches:
    """The micro-batches of one batch: a ragged head (index 0), then whole ones (index 1 and on)."""

    def __init__(self, batch: Any, num_samples: Any, head: Any, micro_batch_size: int) -> None:
        self._batch = batch
        self._num_samples = num_samples
        self._head = head
        self._size = micro_batch_size
        self.number = (num_samples - head) // micro_batch_size + 1
        # Weights are counted in whole micro-batches, so that all but the head weigh exactly 1.
        self.head_weight = _float64(head) / micro_batch_size
        if isinstance(head, int) and head == micro_batch_size:
            self.head_weight = 1.0

    def head(self) -> tuple[Any, Any]:
        return batches.take(self._batch, 0, self._head), _float64(self._head) / _float64(self._num_samples)

    def whole(self, index: Any) -> tuple[Any, Any]:
        start = self._head + (index - 1) * self._size
        return batches.take(self._batch, start, self._size), self._size / _float64(self._num_samples)

    def loop(self, body: Any, initial: Any) -> Any:
        """Runs `body(index, value)` for every whole micro-batch, one after the other."""
        if isinstance(self.number, int) and self.number == 1:
            return initial
        # Without the dependency the loop may begin beside the head, with the memory of both.
        with tf.control_dependencies(_tensors(initial)):
            index = tf.constant(1) + 0
        return tf.while_loop(lambda index, _: index < self.number, body, (index, initial), parallel_iterations=1)[1]


def _start(contribution: Contribution, head_weight: Any, outline: Outline) -> Sums:
    weight = head_weight if contribution.weight is None else contribution.weight
    return Sums(
        weight=_float64(weight),
        gradients=[
            [
                gradients.start(gradient, weight, variable)
                for gradient, variable in zip(of_optimizer, _with_gradient(variables, present))
            ]
            for of_optimizer, (_, variables, present) in zip(contribution.gradients, outline.applications)
        ],
        numbers=[WeightedSum.of(_float64(number), _float64(weight)) for number in contribution.numbers],
        sample_weights=contribution.sample_weights,
        moments=contribution.moments,
        logs=[_weighted_log(log, weight) for log in contribution.logs],
    )


def _merge(sums: Sums, contribution: Contribution, weight: Any) -> Sums:
    weight = weight if contribution.weight is None else contribution.weight
    return Sums(
        weight=sums.weight + _float64(weight),
        gradients=[
            [gradients.add(total, gradient, weight) for total, gradient in zip(totals, of_optimizer)]
            for totals, of_optimizer in zip(sums.gradients, contribution.gradients)
        ],
        numbers=[
            total.merge(WeightedSum.of(_float64(number), _float64(weight)))
            for total, number in zip(sums.numbers, contribution.numbers)
        ],
        sample_weights=[a + b for a, b in zip(sums.sample_weights, contribution.sample_weights)],
        moments=[a.merge(b) for a, b in zip(sums.moments, contribution.moments)],
        logs=[
            total.merge(_weighted_log(log, weight)) if isinstance(total, WeightedSum) else log
            for total, log in zip(sums.logs, contribution.logs)
        ],
    )


def _with_gradient(variables: list[Any], present: list[bool]) -> list[Any]:
    return [variable for variable, has_gradient in zip(variables, present) if has_gradient]


def _weighted_log(log: Any, weight: Any) -> Any:
    return WeightedSum.of(_float64(log), _float64(weight)) if log.dtype.is_floating else log


def _log(log: Any, tensors: list[Any]) -> Any:
    if isinstance(log, FromMetric):
        return metrics.current(log.metric, log.key)
    if isinstance(log, FromTensor):
        tensor = tensors[log.index]
        return tensor.mean() if isinstance(tensor, WeightedSum) else tensor
    return log


def _tensors(structure: Any) -> list[Any]:
    return [leaf for leaf in tf.nest.flatten(structure) if tf.is_tensor(leaf)]


def _float64(value: Any) -> Any:
    return tf.cast(value, tf.float64)
