"""Who watches the updates of a model, and what must be found out for them."""

from __future__ import annotations

from collections.abc import Callable

import keras

from bigbatch.core.errors import describe
from bigbatch.core.windows import Windows
from bigbatch.training import batch_norm
from bigbatch.training.adaptive import Adaptive
from bigbatch.training.figures import NOBODY, Figures, Watch

Observe = Callable[[float, float, float], None]  # of the noise, the signal and the samples per batch of an update


class Watching:
    """Callbacks from the beginning of a `fit` to its end, and a schedule that adapts."""

    def __init__(self, model: keras.Model) -> None:
        self._model = model
        self._figures: Figures | None = None  # made once, for a trace depends on them
        self._is_monitored = False
        self._observers: list[Observe] = []
        self.schedule: Adaptive | None = None

    def begin(self) -> None:
        """Forgets what a `fit` that was interrupted has left."""
        self._is_monitored, self._observers = False, []

    def follow(self, schedule: object) -> None:
        """Tells a schedule of updates, if it asks for that."""
        self.schedule = schedule if isinstance(schedule, Adaptive) else None

    def monitor(self) -> Figures:
        """Has every update leave its figures."""
        self._is_monitored = True
        return self._made()

    def stop_monitoring(self) -> None:
        self._is_monitored = False

    def observe(self, observe: Observe) -> None:
        """Has a function called after every update."""
        self._observers.append(observe)

    def stop_observing(self, observe: Observe) -> None:
        if observe in self._observers:
            self._observers.remove(observe)

    def wanted(self) -> Watch:
        """What the next update is to find out."""
        has_noise = bool(self._observers or self.schedule)
        return Watch(self._made(), has_noise) if has_noise or self._is_monitored else NOBODY

    def tell(self, num_batches: int) -> None:
        """Tells of the update that was made. Context: eager."""
        observers = [*self._observers, *([self.schedule.observe] if self.schedule else [])]
        if observers:
            _, last, _ = self._made().read()
            found = *self._made().read_noise(), last.samples / num_batches
            for observe in observers:
                observe(*found)

    def _made(self) -> Figures:
        if self._figures is None:
            self._figures = Figures(self._model)
        return self._figures


def require_noise(model: keras.Model, size: object, windows: Windows, whole_batch_loss: bool) -> None:
    """Refuses to measure noise where no update would tell of it."""
    if whole_batch_loss:
        raise ValueError(
            describe(
                "Micro-batches must have gradients of their own for their noise to be measured.",
                "whole_batch_loss=True",
                "Measure it with a loss that is a mean over samples.",
            )
        )
    layers = batch_norm.layers_in_training(model)
    if layers and size is None and windows.samples_per_update is None and windows.num_batches(0) == 1:
        raise ValueError(
            describe(
                "An update must have at least two micro-batches for its noise to be measured.",
                f"one batch in one piece, which {layers[0]} normalises as a whole",
                "Pass `micro_batch_size`, or `batches_per_update` of 2 or more.",
            )
        )
