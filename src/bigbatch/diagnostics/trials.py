"""Updates of a model that are measured and then forgotten."""

from __future__ import annotations

import time
from math import ceil
from statistics import median_low
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from bigbatch.core.split import num_micro_batches
from bigbatch.diagnostics.meters import Meter
from bigbatch.training import batches, replicas, snapshot
from bigbatch.training.memory import running_out
from bigbatch.training.update import Update, traced

# Operations that run side by side by chance make the peak of one update in ten a third larger. Where memory is short,
# the allocator lets one of them wait for the other: what an update needs is its usual peak.
_REPEATS = 5
# Long updates are of large operations that do not meet: after so many seconds, three tell a peak, and two a time.
_PATIENCE, _LEAST_FOR_A_PEAK, _LEAST_FOR_A_TIME = 2.0, 3, 2
# All but the first micro-batch take the same memory, so two tell the peak. More tell the time of the others: those of
# half a second, so that a moment's delay does not count for all.
_FEW, _MORE, _MANY = 2, 4, 16
_SECONDS = 0.5


class Measurement(NamedTuple):
    """One micro-batch size: the peak of an update in bytes, and its time."""

    peak: int
    seconds_per_update: float


class Trials:
    """Measures in this process. Everything that an update changes is as before when a measurement is over.

    Args:
        model: a compiled model.
        data: at least one sample of what `fit` is given: inputs, targets and weights.
        batch_size: samples of an update.
        meter: how memory is measured.
    """

    def __init__(self, model: keras.Model, data: Any, batch_size: int, meter: Meter) -> None:
        self._model = model
        self._data = data
        self._batch_size = batch_size
        self._meter = meter

    def measure(self, size: int) -> Measurement | None:
        """One size, or `None` if memory runs out. Context: eager."""
        update = Update(self._model, size, pool=True)
        step = traced(self._model, update.on_batch)
        kept = snapshot.Snapshot([], replicas.copies(snapshot.held_by(self._model)))
        measurement = None
        try:
            with running_out():
                measurement = self._measure(step, size)
        finally:
            kept.restore(with_large=True)
        return measurement

    def _measure(self, step: Any, size: int) -> Measurement:
        """From updates of few micro-batches and of more: the others take as long, and no more memory."""
        total = num_micro_batches(self._batch_size, size)
        few = min(_FEW, total)
        peak, first = self._run(step, few * size, _LEAST_FOR_A_PEAK)
        more = min(total, _MANY, max(_MORE, ceil(few * _SECONDS / first)))
        seconds = first
        if more > few:
            seconds = self._run(step, more * size, _LEAST_FOR_A_TIME)[1]
            # Whatever held up all of the few would make the others look fast.
            first = min(first, self._run(step, few * size, _LEAST_FOR_A_TIME)[1])
        # On a busy machine, more may take less time than few; then their mean must do.
        per_micro_batch = (seconds - first) / max(1, more - few) if seconds > first else seconds / more
        not_seen = max(0, self._batch_size - few * size) * self._bytes_per_sample()
        return Measurement(peak + not_seen, seconds + per_micro_batch * (total - more))

    def _run(self, step: Any, num_samples: int, at_least: int) -> tuple[int, float]:
        """The usual peak of an update, and the least time; a long one is not repeated more than it must be."""
        batch = self._batch(min(num_samples, self._batch_size))
        step(batch)  # traces
        peaks: list[int] = []
        times: list[float] = []
        while len(times) < at_least or (len(times) < _REPEATS and sum(times) < _PATIENCE):
            peak, seconds = self._once(step, batch)
            peaks.append(peak)
            times.append(seconds)
        return median_low(peaks), min(times)

    def _once(self, step: Any, batch: Any) -> tuple[int, float]:
        self._meter.begin()
        start = time.perf_counter()
        tf.nest.map_structure(np.asarray, step(batch))
        return self._meter.end(), time.perf_counter() - start

    def _batch(self, num_samples: int) -> Any:
        rows = np.arange(num_samples) % batches.num_samples(self._data)
        # In memory of TensorFlow, where `fit` has it, and not in that of NumPy.
        return tf.nest.map_structure(lambda leaf: None if leaf is None else tf.gather(leaf, rows), self._data)

    def _bytes_per_sample(self) -> int:
        leaves = [leaf for leaf in tf.nest.flatten(self._data) if leaf is not None]
        return sum(leaf[:1].nbytes for leaf in leaves)
