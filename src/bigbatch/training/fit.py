"""`model.fit` that counts updates: Keras' own, over an epoch whose turns are windows instead of batches."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import keras

from bigbatch.core.windows import Windows
from bigbatch.training import keras_private
from bigbatch.training.monitor import Monitor
from bigbatch.training.noise_scale import NoiseScale
from bigbatch.training.watching import Watching


class Progress:
    """What the train function and the epoch tell each other."""

    def __init__(self, update: Callable[[], int]) -> None:
        self.update = update
        self.num_batches = 0

    def take(self) -> int:
        """The number of batches used since the last call."""
        number, self.num_batches = self.num_batches, 0
        return number


def make_fit(
    model: keras.Model, windows: Callable[[], Windows], progress: Progress, watching: Watching
) -> Callable[..., Any]:
    """A `fit` for one model; `windows` may answer differently at every update."""

    def fit(*args: Any, **kwargs: Any) -> Any:
        made: list[_Epochs] = []

        def make_epochs(*args: Any, **kwargs: Any) -> Any:
            if made:  # the second is for validation
                return keras_private.TFEpochIterator(*args, **kwargs)
            made.append(_Epochs(windows, progress, *args, **kwargs))
            return made[0]

        bound = inspect.signature(keras.Model.fit).bind(model, *args, **kwargs)
        bound.apply_defaults()
        if not isinstance(bound.arguments["callbacks"], keras.callbacks.CallbackList):
            given = keras.tree.flatten(bound.arguments["callbacks"] or [])
            given.sort(key=lambda callback: not isinstance(callback, (Monitor, NoiseScale)))  # others read their logs
            bar = [_ProgressBar(made)] if bound.arguments["verbose"] != 0 else []
            bound.arguments["callbacks"] = given + bar
        progress.take()  # what a `fit` that was interrupted has left
        watching.begin()
        return keras_private.fit_with(make_epochs)(*bound.args, **bound.kwargs)

    return fit


class _Epochs(keras_private.TFEpochIterator):
    """Turns through an epoch update by update. All private attributes count batches, as in Keras."""

    def __init__(self, windows: Callable[[], Windows], progress: Progress, *args: Any, **kwargs: Any) -> None:
        self._windows = windows
        self._progress = progress
        super().__init__(*args, **kwargs)

    @property
    def num_batches(self) -> int | None:
        """What Keras shows as the number of turns: updates."""
        if self.steps_per_epoch or self._num_batches is None:
            return self.steps_per_epoch
        batch_size = getattr(self.data_adapter, "batch_size", None)
        return self._windows().num_updates(self._progress.update(), self._num_batches, batch_size)

    def _enumerate_iterator(self) -> Iterator[tuple[int, int, Any]]:
        self.data_adapter.on_epoch_begin()
        if self._current_iterator is None or not self.steps_per_epoch:
            self._restart()
        turn = 0
        while not self._is_over(turn):
            yield turn, turn + self.steps_per_execution - 1, self._current_iterator
            # Nothing is told by a model that a callback has released; then every turn is Keras' own.
            self._steps_seen += self._progress.take() or self.steps_per_execution
            turn += self.steps_per_execution
        # Once more, as in Keras: a shuffled dataset changes its order with every iterator that is made.
        if self._num_batches and self._steps_seen >= self._num_batches:
            self._restart()
        self.data_adapter.on_epoch_end()

    def _restart(self) -> None:
        self._current_iterator = iter(self._get_iterator())
        self._steps_seen = 0

    def _is_over(self, turn: int) -> bool:
        if self.steps_per_epoch and turn >= self.steps_per_epoch:
            return True
        if self._num_batches and self._steps_seen >= self._num_batches:
            if self.steps_per_epoch:
                self._interrupted_warning()
            return True
        return False


class _ProgressBar(keras.callbacks.ProgbarLogger):
    """Keras' own, with a total that may differ from epoch to epoch."""

    async_safe = True  # as Keras treats the one that it makes itself

    def __init__(self, epochs: list[_Epochs]) -> None:
        super().__init__()
        self._epochs = epochs

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.target = self._epochs[0].num_batches
        super().on_epoch_begin(epoch, logs)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.target = None  # Keras takes what it has seen: windows may have grown since the epoch began
        super().on_epoch_end(epoch, logs)
