"""Logs of the whole batch.

Most metrics add up samples, so seeing every micro-batch is the same as seeing the batch. A `Mean` that is handed one
number per batch (the loss) is not: it gets the batch's number, once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import keras
import tensorflow as tf

from bigbatch.training import keras_private
from bigbatch.training.overriding import overridden


@dataclass(frozen=True)
class Tracked:
    """One number for one `Mean`, as a micro-batch's `train_step` would have recorded it."""

    metric: keras.metrics.Mean
    value: Any
    sample_weight: Any


@dataclass
class Results:
    """Which metric a logged tensor came from."""

    origins: dict[int, tuple[keras.metrics.Metric, str | None]] = field(default_factory=dict)
    alive: list[Any] = field(default_factory=list)  # an id is only unique while its tensor lives

    def note(self, metric: keras.metrics.Metric, key: str | None, result: Any) -> None:
        self.origins[id(result)] = (metric, key)
        self.alive.append(result)


@contextmanager
def tracked(model: keras.Model) -> Iterator[tuple[list[Tracked], Results]]:
    """Holds back single numbers handed to a `Mean`, and notes what each metric's `result` returned."""
    held: list[Tracked] = []
    results = Results()
    with ExitStack() as stack:
        for metric in _metrics_of(model):
            stack.enter_context(overridden(metric, result=_noting(metric, results)))
            if type(metric).update_state is keras.metrics.Mean.update_state:
                stack.enter_context(overridden(metric, update_state=_holding(metric, held)))
        yield held, results


def _metrics_of(model: keras.Model) -> list[keras.metrics.Metric]:
    metrics = [*keras_private.loss_trackers(model), *model.metrics]
    return list({id(metric): metric for metric in metrics}.values())


def _holding(metric: keras.metrics.Mean, held: list[Tracked]) -> Any:
    update_state = metric.update_state

    def hold(values: Any, sample_weight: Any = None) -> None:
        if tf.convert_to_tensor(values).shape.rank == 0:
            held.append(Tracked(metric, tf.convert_to_tensor(values), sample_weight))
        else:
            update_state(values, sample_weight=sample_weight)

    return hold


def _noting(metric: keras.metrics.Metric, results: Results) -> Any:
    compute = metric.result

    def result() -> Any:
        value = compute()
        for key, part in value.items() if isinstance(value, dict) else [(None, value)]:
            results.note(metric, key, part)
        return value

    return result


def current(metric: keras.metrics.Metric, key: str | None) -> Any:
    """The metric's result now."""
    result = metric.result()
    return result if key is None else result[key]
