"""The state of an accumulated model: its settings, and the methods of Keras that it stands in for."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from bigbatch.core.errors import describe
from bigbatch.core.windows import Windows
from bigbatch.training import batch_norm, keras_private, optimizers, replicas, schedule_state
from bigbatch.training.figures import NOBODY, Figures, Watch, on_whole_batch
from bigbatch.training.fit import Progress, make_fit
from bigbatch.training.stream import ONE_BATCH, Limit
from bigbatch.training.update import Update, traced
from bigbatch.training.watching import Observe, Watching, require_noise

if TYPE_CHECKING:
    from bigbatch.training.whole_batch import WholeBatch

MicroBatchSize = int | str | None  # a number, "auto", or whole batches
# What makes an update of the next batches, and what makes one of the next batch, if that may be told apart.
Drivers = tuple[Callable[..., Any], Callable[[Any], Any] | None]


class Accumulation:
    """Lives on the model from `accumulate` to `release`."""

    def __init__(self, model: keras.Model) -> None:
        self._model = model
        self._traced: tuple[MicroBatchSize, bool, bool] | None = None  # the settings that a trace depends on
        self._windows = Windows()
        self.watching = Watching(model)
        self._progress = Progress(self._num_updates)

    def set(self, micro_batch_size: MicroBatchSize, windows: Windows, *, pool: bool, whole_batch_loss: bool) -> None:
        """Changes the settings. The size of a window is data: changing it alone makes no new trace."""
        self._windows = windows
        self.watching.follow(windows.batches_per_update)
        if self._traced != (micro_batch_size, pool, whole_batch_loss):
            self._traced = micro_batch_size, pool, whole_batch_loss
            renew_train_function(self._model)

    def settings(self) -> tuple[MicroBatchSize, int | None]:
        """The micro-batch size, and the batches of the next update; `None` if they are counted in samples."""
        assert self._traced is not None
        number, samples = self._windows.limit(self._num_updates())
        return self._traced[0], number if samples is None else None

    def samples_per_update(self, batch_size: float) -> float:
        """Those of the next update, of batches of so many."""
        number, samples = self._windows.limit(self._num_updates())
        return batch_size * (number if samples is None else math.ceil(samples / batch_size))

    @property
    def has_whole_batch_loss(self) -> bool:
        return self._traced is not None and self._traced[2]

    def update(self, size: int | None, watch: Watch = NOBODY) -> Any:
        """An update as the model makes them, with micro-batches of any size."""
        assert self._traced is not None
        _, pool, whole_batch_loss = self._traced
        if whole_batch_loss:
            from bigbatch.training.whole_batch import WholeBatch  # here, as "auto" below: few need its time to import

            assert size is not None
            return WholeBatch(self._model, size, pool, watch.figures)
        return Update(self._model, size, pool, watch=watch)

    def observe_noise(self, observe: Observe) -> None:
        """Has a function called after every update, if there is something to tell."""
        assert self._traced is not None
        size, _, whole_batch_loss = self._traced
        require_noise(self._model, size, self._windows, whole_batch_loss)
        self.watching.observe(observe)

    def overrides(self) -> dict[str, Any]:
        """The methods of the model that are replaced."""
        methods: dict[str, Any] = {
            "make_train_function": self._make_train_function,
            "make_test_function": self._make_test_function,
            "_assert_compile_called": self._assert_compile_called,
            "_maybe_symbolic_build": self._build,
            **schedule_state.methods(self._model, lambda: self.watching.schedule),
        }
        if type(self._model).fit is keras.Model.fit:
            methods["fit"] = make_fit(self._model, lambda: self._windows, self._progress, self.watching)
        return methods

    def _make_train_function(self, force: bool = False) -> Any:
        model = self._model
        if model.train_function is None or force:
            assert self._traced is not None
            model.train_function = self._train_function(*self._traced[:2])
        return model.train_function

    def _make_test_function(self, force: bool = False) -> Any:
        """Keras' own. With several workers it takes the mean of the logs along an axis, which scalars do not have."""
        model = self._model

        def step_of_vectors(data: Any) -> Any:
            with replicas.alone():
                return tf.nest.map_structure(lambda log: tf.reshape(log, [1]), model.test_step(data))

        if not isinstance(model.distribute_strategy, tf.distribute.MultiWorkerMirroredStrategy):
            return type(model).make_test_function(model, force)
        if model.test_function is None or force:
            model.test_function = keras_private.make_function(model, step_of_vectors)
        return model.test_function

    def _train_function(self, micro_batch_size: MicroBatchSize, pool: bool) -> Callable[[Any], Any]:
        model = self._model
        if model.distribute_strategy.num_replicas_in_sync > 1:
            replicas.require_scope(model.distribute_strategy, model.variables)
            optimizers.require_built(model)
            batch_norm.refuse_synchronized(model)
        drivers = self._auto_drivers(pool) if micro_batch_size == "auto" else self._drivers(micro_batch_size)
        drivers(NOBODY)  # now, for Keras leaves a function of its own on the model

        def train_function(iterator: Any) -> Any:
            if micro_batch_size != "auto":  # which is careful with memory, and makes all of it in an attempt
                optimizers.build(model)  # not before, for a callback may freeze layers when `fit` begins
            watch = self.watching.wanted()
            on_window, on_batches = drivers(watch)
            if watch.has_noise:  # that of every update is looked at, and Keras' own driver may make several at a time
                on_batches = None
            if on_batches and (self._windows.are_batches or not isinstance(iterator, tf.data.Iterator)):
                self._progress.num_batches += model.steps_per_execution
                return on_batches(iterator)
            if not isinstance(iterator, (tf.data.Iterator, tf.distribute.DistributedIterator)):
                iterator = replicas.dealt(model, next(iterator))  # of `train_on_batch`
            return self._train_on_windows(on_window, iterator)

        return train_function

    def _drivers(self, size: Any) -> Callable[[Watch], Drivers]:
        model = self._model

        @functools.cache
        def drivers(watch: Watch) -> Drivers:
            update = self.update(size, watch)
            is_alone = model.distribute_strategy.num_replicas_in_sync == 1
            on_batches = self._on_batches(update, size, watch.figures) if is_alone else None
            return traced(model, update.on_window), on_batches

        return drivers

    def _auto_drivers(self, pool: bool) -> Callable[[Watch], Drivers]:
        from bigbatch.training.auto import Auto

        # One for all, for what it has found out holds with and without a monitor.
        auto = Auto(self._model, pool, lambda: self._windows.are_batches, self.watching.wanted)
        return lambda watch: (auto.on_window, None)

    def _on_batches(
        self, update: Update | WholeBatch, size: int | None, figures: Figures | None
    ) -> Callable[[Any], Any]:
        """Keras' own driver, for updates of one batch on one replica."""
        model = self._model
        if size is not None:
            return keras_private.make_function(model, update.on_batch)
        if figures is not None:
            return keras_private.make_function(model, on_whole_batch(model, figures))
        type(model).make_train_function(model, force=True)
        return model.train_function

    def _train_on_windows(self, on_window: Any, iterator: Any) -> Any:
        """As many updates as Keras asks for at a time, or as the data has. Context: eager."""
        logs = None
        for _ in range(self._model.steps_per_execution):
            # Only a schedule asks for the number of updates, and looking for the optimizer that counts them takes time.
            made = self._num_updates() if self._windows.are_scheduled else 0
            limit, rate = self._limit(made), _constant(self._windows.rate(made))
            try:
                with replicas.scope_of(self._model):
                    logs, num_batches = on_window(iterator, limit, rate)
            except tf.errors.OutOfRangeError:
                if logs is None:
                    raise
                break
            self._progress.num_batches += int(num_batches)
            self.watching.tell(int(num_batches))
        return logs

    def _limit(self, made: int) -> Limit:
        return ONE_BATCH if self._windows.are_batches else Limit(*map(_constant, self._windows.limit(made)))

    def _build(self, iterator: Any = None, data_batch: Any = None) -> None:
        """What Keras builds before it trains, from the first replica's part of a batch.

        Keras takes the mean over replicas instead: it fails for parts of unequal size and for several workers, and its
        sum is written over the part of the first replica, which may be memory of a NumPy array.
        """
        if self._model.distribute_strategy.num_replicas_in_sync > 1:
            optimizers.require_scope(self._model)
            if iterator is not None:
                with replicas.scope_of(self._model):
                    data_batch, iterator = replicas.of_first(next(next(iter(iterator))[2])), None
        keras_private.build(self._model, iterator=iterator, data_batch=data_batch)

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


def _constant(number: float | None) -> Any:
    """An argument of a traced function, which must not be a Python number."""
    return None if number is None else tf.constant(number, tf.float64 if isinstance(number, float) else tf.int32)
