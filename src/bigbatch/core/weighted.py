"""Weighted sums that merge, and are divided once, at the end.

Everything that a batch needs from its micro-batches is one of two sums: a `WeightedSum` (gradients, losses) or
`Moments` (batch-norm statistics). Both merge in any order and any grouping, so no micro-batch needs to know of the
others. The values may be numbers, arrays or tensors: only `+`, `-`, `*` and `/` are used.
"""

from __future__ import annotations

from typing import Any, NamedTuple

# What weighs nothing (an empty batch, a micro-batch without one valid token) weighs next to nothing instead: a sum of
# only such values still has a mean, so that an update without a token gets its regularizers, as it does in Keras.
NEXT_TO_NOTHING = 1e-30


class WeightedSum(NamedTuple):
    """The sum of `weight * value` and the sum of `weight`.

    >>> WeightedSum.of(2.0, 3).merge(WeightedSum.of(6.0, 1)).mean()
    3.0
    """

    total: Any
    weight: Any

    @classmethod
    def of(cls, value: Any, weight: Any) -> WeightedSum:
        return cls(value * weight, weight)

    def merge(self, other: WeightedSum) -> WeightedSum:
        return WeightedSum(self.total + other.total, self.weight + other.weight)

    def mean(self) -> Any:
        return self.total / self.weight


class Moments(NamedTuple):
    """Weight, mean and (biased) variance of a set of values.

    The variance of a union is the mean of the variances plus the variance of the means. Merged as in Chan, Golub and
    LeVeque (1979), which subtracts means and never large squares, and so keeps its precision in float32.

    >>> Moments(2.0, 1.0, 0.0).merge(Moments(2.0, 3.0, 0.0))
    Moments(weight=4.0, mean=2.0, variance=1.0)
    """

    weight: Any
    mean: Any
    variance: Any

    def merge(self, other: Moments) -> Moments:
        weight = self.weight + other.weight
        share = other.weight / weight
        delta = other.mean - self.mean
        within = self.variance + (other.variance - self.variance) * share
        return Moments(weight, self.mean + delta * share, within + delta * delta * share * (1 - share))
