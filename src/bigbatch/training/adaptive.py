"""`schedules.noise_scale`: the window grows when the noise in the gradient says that it pays."""

from __future__ import annotations

import json
import logging
from typing import Any

import tensorflow as tf

from bigbatch.core.errors import describe, require_positive
from bigbatch.core.noise import Smoothed
from bigbatch.core.schedules import step_plot

_logger = logging.getLogger("bigbatch")


class Adaptive(tf.train.experimental.PythonState):
    """Made by `noise_scale`. A part of a `tf.train.Checkpoint`, and of the weights that the model saves."""

    def __init__(self, minimum: int, maximum: int, *, decay: float = 0.98, confidence: float = 0.95) -> None:
        for name, number in (("minimum", minimum), ("maximum", maximum)):
            require_positive(name, number, remedy="Batches are counted from 1.")
        if maximum < minimum:
            received = f"minimum={minimum}, maximum={maximum}"
            raise ValueError(describe("`maximum` must not be less than `minimum`.", received, "Swap them."))
        settings = {"minimum": minimum, "maximum": maximum, "decay": decay, "confidence": confidence}
        self._settings: dict[str, Any] = settings
        self._smoothed = Smoothed(decay)
        self._batches = minimum
        self._batch_size = 0.0  # the largest seen
        self._num_updates = 0
        self.decisions: list[dict[str, Any]] = []

    def __call__(self, update: int) -> int:
        return self._batches

    @property
    def minimum(self) -> int:
        """What the learning rate is relative to."""
        return self._settings["minimum"]

    @property
    def value(self) -> float:
        """The noise scale, in samples."""
        return self._smoothed.value

    def observe(self, noise: float, signal: float, batch_size: float) -> None:
        """Learns of an update, and doubles the window if all of the interval lies beyond the doubled one."""
        self._smoothed.add(noise, signal)
        self._num_updates += 1
        self._batch_size = max(self._batch_size, batch_size)
        larger = min(2 * self._batches, self._settings["maximum"])
        if larger == self._batches:
            return
        low, high = self._smoothed.interval(self._settings["confidence"])
        if low >= larger * self._batch_size:
            decision = {"updates": self._num_updates, "batches": larger, "value": self.value, "interval": [low, high]}
            _logger.warning(
                "%d batches per update instead of %d: the noise scale is %.0f (%.0f to %.0f), "
                "and an update will have %.0f samples.",
                *(larger, self._batches, self.value, low, high, larger * self._batch_size),
            )
            self.decisions.append(decision)
            self._batches = larger

    def get_config(self) -> dict[str, Any]:
        """Settings and state, for JSON."""
        state = {"batches": self._batches, "batch_size": self._batch_size, "num_updates": self._num_updates}
        return {**self._settings, "state": {**state, "sums": self._smoothed.sums, "decisions": self.decisions}}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Adaptive:
        settings = dict(config)
        state = settings.pop("state", None)
        schedule = cls(**settings)
        if state is not None:
            schedule._restore(state)
        return schedule

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Adaptive) and self.get_config() == other.get_config()

    __hash__ = object.__hash__

    def __reduce__(self) -> Any:
        return Adaptive.from_config, (self.get_config(),)

    def serialize(self) -> str:
        """For `tf.train.Checkpoint`."""
        return json.dumps(self.get_config()["state"])

    def deserialize(self, string_value: str) -> None:
        """For `tf.train.Checkpoint`."""
        self._restore(json.loads(string_value))

    def _restore(self, state: dict[str, Any]) -> None:
        self._batches = min(max(state["batches"], self.minimum), self._settings["maximum"])
        self._batch_size = state["batch_size"]
        self._num_updates, self.decisions = state["num_updates"], list(state["decisions"])
        self._smoothed.sums = list(state["sums"])

    def plot(self, ax: Any = None) -> Any:
        """Draws the decisions so far and returns the axes; `ax=None` makes new ones."""
        steps = [(0, self.minimum), *((each["updates"], each["batches"]) for each in self.decisions)]
        updates, batches = zip(*steps, (self._num_updates, self._batches))
        return step_plot(updates, batches, ax)
