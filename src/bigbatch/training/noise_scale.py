"""`NoiseScale`: the gradient noise scale in Keras' logs, for whatever reads them."""

from __future__ import annotations

import logging
import math
from typing import Any

import keras

from bigbatch.core.errors import require_fraction
from bigbatch.core.noise import Smoothed
from bigbatch.training.monitor import accumulation_of, put

_logger = logging.getLogger("bigbatch")


class NoiseScale(keras.callbacks.Callback):
    """Puts the gradient noise scale into the logs that Keras hands to all callbacks.

        bigbatch.accumulate(model, micro_batch_size=16)
        model.fit(x, y, batch_size=256, callbacks=[bigbatch.NoiseScale()])

    - `noise_scale`: the number of samples at which an update's gradient is half noise; smoothed over updates. Much
      smaller batches waste updates, and much larger ones waste samples.
    - `noise_scale_low`, `noise_scale_high`: the ends of its confidence interval.

    All are NaN or infinite while too little is known; after an epoch without a measurement, a warning tells why. They
    are measured from the micro-batches of an update, at the cost of their gradients' norms. An update of only one
    micro-batch is run in two halves, which does not change the update.

    Args:
        decay: how much of the past an update keeps, between 0 and 1.
        confidence: how often the interval is to hold the truth, between 0 and 1.

    Raises:
        ValueError: when training begins, if the model is not accumulated, has `whole_batch_loss`, or has batch
            normalisation and only one micro-batch per update; and for a log that has one of these names.
    """

    def __init__(self, *, decay: float = 0.98, confidence: float = 0.95) -> None:
        super().__init__()
        require_fraction("decay", decay)
        require_fraction("confidence", confidence)
        self._confidence = confidence
        self._decay = decay
        self._of: Any = None  # whose noise it is
        self._smoothed = Smoothed(decay)
        self._has_warned = False

    @property
    def value(self) -> float:
        """The noise scale, in samples."""
        return self._smoothed.value

    @property
    def interval(self) -> tuple[float, float]:
        """Where it lies, with the given confidence."""
        return self._smoothed.interval(self._confidence)

    def on_train_begin(self, logs: Any = None) -> None:
        if self._of is not self.model:
            self._of, self._smoothed = self.model, Smoothed(self._decay)
        accumulation_of(self.model, "NoiseScale").observe_noise(self._observe)

    def on_train_end(self, logs: Any = None) -> None:
        if "_accumulation" in vars(self.model):
            accumulation_of(self.model, "NoiseScale").watching.stop_observing(self._observe)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._put(logs)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._put(logs)
        if self._smoothed.num_updates == 0 and not self._has_warned:
            self._has_warned = True
            _logger.warning(
                "No update of epoch %d measured its noise: that takes finite gradients of at least two micro-batches, "
                "and batches of a model with batch normalisation are not halved for it. Use a smaller "
                "`micro_batch_size`, or `batches_per_update` of 2 or more.",
                epoch + 1,
            )

    def _observe(self, noise: float, signal: float, batch_size: float) -> None:
        self._smoothed.add(noise, signal)

    def _put(self, logs: dict[str, Any]) -> None:
        low, high = self.interval
        known = not math.isnan(self.value)
        put(
            logs,
            {
                "noise_scale": self.value,
                "noise_scale_low": low if known else math.nan,
                "noise_scale_high": high if known else math.nan,
            },
        )
