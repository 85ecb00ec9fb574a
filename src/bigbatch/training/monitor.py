"""`Monitor`: figures of every update in Keras' logs, for whatever reads them."""

from __future__ import annotations

from time import perf_counter
from typing import Any

import keras

from bigbatch.core.errors import describe
from bigbatch.training.figures import Figure
from bigbatch.training.memory import forget_peak, largest_peak


class Monitor(keras.callbacks.Callback):
    """Puts figures of every update into the logs that Keras hands to all callbacks.

        bigbatch.accumulate(model, micro_batch_size=16)
        model.fit(x, y, batch_size=256, callbacks=[bigbatch.Monitor(), keras.callbacks.CSVLogger("log.csv")])

    - `samples`, `micro_batches`: how many the update had, on all replicas.
    - `weight`: what its loss was divided by: samples, valid tokens or summed sample weights.
    - `gradient_norm`: of the mean gradient as the optimizers are handed it, before they clip it; all variables.
    - `samples_per_second`: the first update also traces.
    - `peak_memory`: bytes on the fullest device of this worker; absent where the allocator does not count.

    The logs of an epoch have the means over its updates, except that `samples_per_second` is all samples over all
    seconds, and `peak_memory` the largest peak. The place of the monitor among the callbacks does not matter, unless
    the model has its own `fit`. With `steps_per_execution`, Keras calls callbacks once for several updates: they see
    the figures of the last one, and the speed of all.

    Raises:
        ValueError: when training begins, if the model is not accumulated; and for a log that has one of these names.
    """

    def on_train_begin(self, logs: Any = None) -> None:
        self._figures = accumulation_of(self.model, "Monitor").watching.monitor()

    def on_train_end(self, logs: Any = None) -> None:
        if "_accumulation" in vars(self.model):
            accumulation_of(self.model, "Monitor").watching.stop_monitoring()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._figures.reset()
        self._num_updates, self._samples, self._seconds, self._peak = 0, 0.0, 0.0, 0

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        forget_peak()
        self._began = perf_counter()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        seconds = perf_counter() - self._began
        num_updates, last, sums = self._figures.read()
        if num_updates == self._num_updates:  # by a model that another callback has released
            return
        peak = largest_peak(self.model)
        _put(logs, last, (sums.samples - self._samples) / seconds, peak)
        self._num_updates, self._samples = num_updates, sums.samples
        self._seconds, self._peak = self._seconds + seconds, max(self._peak, peak)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        num_updates, _, sums = self._figures.read()
        if num_updates:
            means = Figure(*(total / num_updates for total in sums))
            _put(logs, means, self._samples / self._seconds, self._peak)


def _put(logs: dict[str, Any], figure: Figure, samples_per_second: float, peak: int) -> None:
    figures = figure._asdict() | {"samples_per_second": samples_per_second}
    if peak:
        figures["peak_memory"] = float(peak)
    put(logs, figures)


def put(logs: dict[str, Any], figures: dict[str, float]) -> None:
    """Adds figures to logs that do not have them yet."""
    if taken := sorted(figures.keys() & logs.keys()):
        raise ValueError(
            describe(
                "The names of a callback's figures must be free in the logs.",
                f"a log named {taken[0]!r}",
                "Give the metric another name, and pass `fit` only one callback of each kind.",
            )
        )
    logs.update(figures)


def accumulation_of(model: keras.Model, name: str) -> Any:
    """What `accumulate` has put on a model; `name` is who asks for it."""
    if "_accumulation" not in vars(model):
        raise ValueError(
            describe(
                f"`{name}` must watch an accumulated model.",
                f"model={model.name!r}, which is plain Keras",
                "Call `bigbatch.accumulate(model)` first; without other arguments it only adds what can be watched.",
            )
        )
    return vars(model)["_accumulation"]
