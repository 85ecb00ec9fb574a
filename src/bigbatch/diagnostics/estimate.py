"""The result of `noise_scale`."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from typing import Any

_STEP = 4  # by how much the batch of the advice differs


@dataclass(frozen=True)
class Estimate:
    """The gradient noise scale, in samples, and what it says about updates of a given size.

    `interval` holds the truth as often as `confidence` says; infinite ends say that more samples are needed.
    """

    value: float
    interval: tuple[float, float]
    confidence: float
    samples_per_update: float
    num_samples: int
    num_micro_batches: int

    def updates_needed(self, samples_per_update: float) -> float:
        """How many updates of a size make the progress of one without noise.

        >>> Estimate(900.0, (800.0, 1000.0), 0.95, 64.0, 6400, 400).updates_needed(900)
        2.0
        """
        return 1 + self.value / samples_per_update

    @property
    def advice(self) -> str:
        """One sentence."""
        size, ratio = f"updates of {self.samples_per_update:.0f}", self.value / self.samples_per_update
        if not math.isfinite(self.interval[1]):
            return f"{size}: too few samples to tell; give more, or use a larger `micro_batch_size`."
        if ratio >= 2:
            fewer = self._ratio(self.samples_per_update, _STEP * self.samples_per_update)
            return (
                f"{size} are {ratio:.3g} times smaller than the noise scale: four times larger batches should need "
                f"about {fewer:.2g} times fewer updates."
            )
        if ratio <= 0.5:
            more = self._ratio(self.samples_per_update / _STEP, self.samples_per_update)
            return (
                f"{size} are {_inverse(ratio)} times larger than the noise scale: four times smaller batches should "
                f"need only {more:.2g} times as many updates, and {_STEP / more:.2g} times fewer samples."
            )
        return f"{size} are about as large as the noise scale, where neither updates nor samples are wasted."

    def _ratio(self, smaller: float, larger: float) -> float:
        return self.updates_needed(smaller) / self.updates_needed(larger)

    def __str__(self) -> str:
        low, high = self.interval
        return (
            f"noise scale {self.value:.4g} samples ({low:.4g} to {high:.4g} with {self.confidence:.0%} confidence, "
            f"from {self.num_samples} samples in {self.num_micro_batches} micro-batches)\n{self.advice}"
        )

    def to_json(self) -> str:
        """Infinite ends are `null`."""
        numbers = asdict(self) | {"advice": self.advice}
        finite = {name: _finite(number) for name, number in numbers.items()}
        return json.dumps(finite, allow_nan=False)

    def plot(self, ax: Any = None) -> Any:
        """Updates and samples needed against the samples of an update; returns the axes. Needs matplotlib."""
        from bigbatch.diagnostics.plots import plot_estimate

        return plot_estimate(self, ax)


def _inverse(ratio: float) -> str:
    return f"{1 / ratio:.3g}" if ratio else "infinitely many"


def _finite(number: Any) -> Any:
    if isinstance(number, tuple):
        return [_finite(each) for each in number]
    return None if isinstance(number, float) and not math.isfinite(number) else number
