"""The state of an accumulated model: its settings, and the methods of Keras that it stands in for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from bigbatch.core.errors import AccumulationError, describe
from bigbatch.core.windows import Windows
from bigbatch.training import keras_private, optimizers
from bigbatch.training.fit import Progress, make_fit
from bigbatch.training.stream import Limit
from bigbatch.training.update import Update


class Accumulation:
    """Lives on the model from `accumulate` to `release`."""

    def __init__(self, model: keras.Model) -> None:
        self._model = model
        self._traced: tuple[int | None, bool] | None = None  # the settings that a trace depends on
        self._windows = Windows()
        self._progress = Progress(self._num_updates)

    def set(self, micro_batch_size: int | None, windows: Windows, *, pool: bool) -> None:
        """Changes the settings. The size of a window is data: changing it alone makes no new trace."""
        self._windows = windows
        if self._traced != (micro_batch_size, pool):
            self._traced = micro_batch_size, pool
            renew_train_function(self._model)

    def overrides(self) -> dict[str, Any]:
        """The methods of the model that are replaced."""
        methods: dict[str, Any] = {
            "make_train_function": self._make_train_function,
            "_assert_compile_called": self._assert_compile_called,
        }
        if type(self._model).fit is keras.Model.fit:
            methods["fit"] = make_fit(self._model, lambda: self._windows, self._progress)
        return methods

    def _make_train_function(self, force: bool = False) -> Any:
        model = self._model
        if model.train_function is None or force:
            assert self._traced is not None
            model.train_function = self._train_function(*self._traced)
        return model.train_function

    def _train_function(self, micro_batch_size: int | None, pool: bool) -> Callable[[Any], Any]:
        model = self._model
        if micro_batch_size is not None or not self._windows.are_batches:
            _require_one_replica(model)
        update = Update(model, micro_batch_size, pool)
        if micro_batch_size is None:
            type(model).make_train_function(model, force=True)
            on_batches = model.train_function
        else:
            on_batches = keras_private.make_function(model, update.on_batch)
        on_window = update.on_window
        if not model.run_eagerly:
            on_window = tf.function(on_window, reduce_retracing=True, autograph=False)

        def train_function(iterator: Any) -> Any:
            if self._windows.are_batches or not isinstance(iterator, tf.data.Iterator):
                self._progress.num_batches += model.steps_per_execution
                return on_batches(iterator)
            return self._train_on_windows(on_window, iterator)

        return train_function

    def _train_on_windows(self, on_window: Any, iterator: Any) -> Any:
        """As many updates as Keras asks for at a time, or as the data has. Context: eager."""
        logs = None
        for _ in range(self._model.steps_per_execution):
            # Only a schedule asks for the number of updates, and looking for the optimizer that counts them takes time.
            made = self._num_updates() if self._windows.are_scheduled else 0
            limit, rate = Limit(*map(tf.constant, self._windows.limit(made))), self._windows.rate(made)
            rate = None if rate is None else tf.constant(rate, tf.float64)
            try:
                logs, num_batches = on_window(iterator, limit, rate)
            except tf.errors.OutOfRangeError:
                if logs is None:
                    raise
                break
            self._progress.num_batches += int(num_batches)
        return logs

    def _num_updates(self) -> int:
        found = optimizers.optimizers_of(self._model)
        return int(tf.convert_to_tensor(found[0].iterations)) if found else 0

    def _assert_compile_called(self, method_name: str | None = None) -> None:
        if not self._model.compiled:
            raise ValueError(
                describe("A model must be compiled before it trains.", "compiled=False", "Call `model.compile` first.")
            )
        type(self._model)._assert_compile_called(self._model, method_name)


def renew_train_function(model: keras.Model) -> None:
    """Keras makes it once per `fit`: a callback that changes the settings must leave one behind."""
    if model.train_function is not None:
        model.make_train_function(force=True)


def _require_one_replica(model: keras.Model) -> None:
    num_replicas = model.distribute_strategy.num_replicas_in_sync
    if num_replicas > 1:
        raise AccumulationError(
            describe(
                "An accumulated model must train on one replica.",
                f"{type(model.distribute_strategy).__name__} with {num_replicas} replicas",
                "Several replicas are not supported yet; release the model or build it outside of the strategy.",
            )
        )
