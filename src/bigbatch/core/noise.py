"""The gradient noise scale, smoothed over updates, with an interval.

A micro-batch of n samples has the gradient of all data plus noise of variance tr(Sigma) / n (McCandlish et al., 2018).
So from the K micro-batch gradients g of an update, of B samples together, and their mean G, without bias:

    noise  = tr(Sigma) = (sum(n * |g|^2) - B * |G|^2) / (K - 1)
    signal             = |G|^2 - noise / B

Their ratio is the noise scale: the number of samples at which the mean gradient is half noise. A ratio of two noisy
numbers is biased, and has no mean where the lower one may be zero; so both are smoothed first, and divided then.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

_FEWEST = 3  # updates, before there is an interval


@dataclass
class Smoothed:
    """Exponentially weighted sums of what updates measured; they tell as much as `2 / (1 - decay)` or so.

    >>> smoothed = Smoothed(decay=0.9)
    >>> for _ in range(8):
    ...     smoothed.add(noise=600.0, signal=2.0)
    >>> round(smoothed.value, 6)
    300.0

    Args:
        decay: how much of the past an update keeps; 1.0 keeps all.
        sums: of weights, of their squares, and weighted of noise, signal, and their three products.
    """

    decay: float = 0.98
    sums: list[float] = field(default_factory=lambda: [0.0] * 7)

    def add(self, noise: float, signal: float) -> None:
        """Adds what an update measured. One that measured nothing, for it had one micro-batch, is left out."""
        if math.isfinite(noise) and math.isfinite(signal):
            news = [1.0, 1.0, noise, signal, noise * noise, noise * signal, signal * signal]
            weight, of_squares, *others = (self.decay * old for old in self.sums)
            self.sums = [old + new for old, new in zip([weight, self.decay * of_squares, *others], news)]

    @property
    def value(self) -> float:
        """The noise scale in samples: infinite while the signal is lost in the noise, NaN while nothing is known."""
        noise, signal = self.sums[2:4]
        if self.sums[0] == 0 or (noise <= 0 and signal <= 0):
            return math.nan
        return max(noise, 0.0) / signal if signal > 0 else math.inf

    @property
    def num_updates(self) -> float:
        """How many updates of equal weight would tell as much."""
        return 0.0 if self.sums[0] == 0 else self.sums[0] ** 2 / self.sums[1]

    def interval(self, confidence: float = 0.95) -> tuple[float, float]:
        """Where the noise scale is, by Fieller's theorem: exact for a ratio of normal means.

        Every scale is in it for which `noise - scale * signal` may be zero. Without an end, if the signal may be zero.
        """
        freedom = self.num_updates - 1
        if freedom < _FEWEST - 1:
            return 0.0, math.inf
        noise, signal, *products = (total / self.sums[0] for total in self.sums[2:])
        pairs = noise * noise, noise * signal, signal * signal
        factor = _quantile(confidence, freedom) ** 2 / freedom
        noises, both, signals = (factor * (product - pair) for product, pair in zip(products, pairs))
        # |noise - scale * signal|^2 = quantile^2 * variance, a quadratic equation for the scale
        a, b, c = signal * signal - signals, noise * signal - both, noise * noise - noises
        root = math.sqrt(max(b * b - a * c, 0.0))
        if a > 0:
            return max(0.0, (b - root) / a), max(0.0, (b + root) / a)
        return (max(0.0, c / (b + root)) if c > 0 and b + root > 0 else 0.0), math.inf


def _quantile(confidence: float, freedom: float) -> float:
    """That of Student's distribution on both sides, by the expansion of Cornish and Fisher."""
    from statistics import NormalDist  # which imports decimal and fractions, and most users have no noise scale

    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
