"""The largest micro-batch that fits, from some that were measured.

    peak = fixed + per_sample * samples

holds from some size on. Below it, another moment of the update takes the most: applying the optimizer, or the work of a
convolution. So only the largest sizes that were measured tell the line. A size is predicted by those around it, or by
the two largest that are far enough apart, and what should fit is measured next, until a prediction comes true.

Only sizes are tried that split the batch evenly. A smaller one that makes as many micro-batches takes as long in less
memory; and where both are powers of two, tensors fit the pieces of memory that others leave: an allocator does not
split a piece of less than twice what is asked for (26 million weights in layers of 1024, TensorFlow 2.21: 637 MiB with
2048 samples, 708 with 2040).
"""

from __future__ import annotations

from typing import Callable, NamedTuple

from bigbatch.core.split import even_size

_NUM_POINTS = 4
_MAX_CHECKS = 6
_TRUE = 0.05
# Sizes grow by this after a prediction that came true, and after one that did not.
_LONG, _SHORT = 4, 2
# Where to look for what is behind a bend with the largest size: at such parts of it.
_BEHIND = 0.5, 0.25
# Where a prediction that fits leaves more of the memory unused, a better one is worth a trial.
_CLOSE = 0.95
# What an allocator can use of a limit, if its free memory is in pieces.
_SQUEEZED = 0.85


class Line(NamedTuple):
    """Bytes as a function of samples.

    >>> Line.fitted([(1, 30.0), (3, 50.0), (6, 80.0)])
    Line(fixed=20.0, per_sample=10.0)
    >>> Line.fitted([(1, 10.0), (4, 100.0)]).fixed
    0.0
    """

    fixed: float
    per_sample: float

    @classmethod
    def fitted(cls, points: list[tuple[int, float]]) -> Line:
        """By least squares of relative errors."""
        if len(points) < 2:
            return cls(sum(peak for _, peak in points), 0.0)
        weights = [max(peak, 1.0) ** -2.0 for _, peak in points]
        total = sum(weights)
        mean_size = sum(w * size for w, (size, _) in zip(weights, points)) / total
        mean_peak = sum(w * peak for w, (_, peak) in zip(weights, points)) / total
        above = sum(w * (size - mean_size) * (peak - mean_peak) for w, (size, peak) in zip(weights, points))
        steepness = above / sum(w * (size - mean_size) ** 2 for w, (size, _) in zip(weights, points))
        # Neither part is less than nothing, however the peaks scatter.
        per_sample = min(max(0.0, steepness), mean_peak / mean_size)
        return cls(round(mean_peak - per_sample * mean_size, 6), round(per_sample, 6))

    @classmethod
    def through(cls, points: list[tuple[int, float]]) -> Line:
        """Of two points at most, which it meets wherever it begins: a part of a curve may be steeper than the whole."""
        if len(points) < 2:
            return cls(sum(peak for _, peak in points), 0.0)
        (size, peak), (larger, its_peak) = points
        per_sample = max(0.0, (its_peak - peak) / (larger - size))
        return cls(its_peak - per_sample * larger, per_sample)

    def at(self, samples: int) -> float:
        return self.fixed + self.per_sample * samples

    def largest(self, budget: float, limit: int) -> int:
        """The most samples that fit, from 1 to `limit`."""
        if self.per_sample == 0:
            return limit
        return int(max(1, min(limit, (budget - self.fixed) / self.per_sample)))


class Trial(NamedTuple):
    """A size that was run; `peak` is `None` if memory ran out."""

    size: int
    predicted: float | None
    peak: float | None

    @property
    def came_true(self) -> bool:
        """Whether its peak is what was predicted."""
        if not self.predicted or not self.peak:
            return False
        return abs(self.predicted / self.peak - 1) <= _TRUE


class Search:
    """Runs sizes that grow, then the largest that should fit, until one does and leaves little memory unused.

    They grow carefully where the line bends, so that the next one is predicted by sizes behind the bend.

    Args:
        measure: the peak of a size, or `None` where memory ran out.
        batch_size: no micro-batch is larger.
        budget: what there is.
    """

    def __init__(self, measure: Callable[[int], float | None], batch_size: int, budget: float) -> None:
        self._measure = measure
        self._batch_size = batch_size
        self._budget = budget
        self.trials: list[Trial] = []

    def run(self) -> None:
        size = 1
        while self._line_at(size).at(size) <= self._budget and self.tries(size) and size < self._batch_size:
            size = self._even(size * (_LONG if self.trials[-1].came_true else _SHORT))
        self._approach()
        self._predict_again()

    def _approach(self) -> None:
        """Tries what should just fit, as long as it is more than what does."""
        for _ in range(_MAX_CHECKS):
            size = self._candidate()
            if size <= self.largest() or self.largest() == 0:
                return
            if self.tries(size) and (self.trials[-1].peak or 0.0) > _CLOSE * self._budget:
                return

    def _predict_again(self) -> None:
        """Where the largest size surprised, one that is behind the bend with it is run, and then the largest again."""
        for part in _BEHIND:
            sizes = {trial.size: trial for trial in self.trials}
            largest = sizes.get(self.largest())
            if largest is None or largest.predicted is None or largest.came_true:
                return
            behind = self._even(part * largest.size)
            if behind not in sizes:
                self.tries(behind)
                self.tries(largest.size)

    def confirmed(self, confirms: Callable[[int], bool]) -> int:
        """The largest size that fits and is confirmed, 0 if none is; where one is not, a little less is tried."""
        size = self.largest()
        while size and not confirms(size):
            others = [trial.size for trial in self.trials]
            size = max(self._even(_SQUEEZED * size) if size > 1 else 0, *(each for each in (0, *others) if each < size))
            if size and size not in others:
                self.tries(size)
        return size

    def tries(self, size: int) -> bool:
        """Whether a size fits, measured; what an earlier trial of it has told is forgotten."""
        self.trials = [trial for trial in self.trials if trial.size != size]
        predicted = self._line_at(size).at(size) if len(self._points()) > 1 else None
        self.trials.append(Trial(size, predicted, self._measure(size)))
        return self._fits(self.trials[-1])

    def line(self) -> Line:
        """Of the largest sizes that fit and are far enough apart: neighbours tell of their noise, not of the line."""
        apart: list[tuple[int, float]] = []
        for size, peak in reversed(self._points()):
            if size <= self.largest() and (not apart or 2 * size <= apart[-1][0]):
                apart.append((size, peak))
        return Line.fitted(apart[:_NUM_POINTS])

    def largest(self) -> int:
        """The largest size that fits; 0 if none does."""
        return max((trial.size for trial in self.trials if self._fits(trial)), default=0)

    def _candidate(self) -> int:
        """What should just fit, between the largest size that does and the smallest that does not."""
        too_large = min((trial for trial in self.trials if not self._fits(trial)), default=None)
        if too_large is None:
            return self._even(self._line_at(self._batch_size).largest(self._budget, self._batch_size))
        # Where memory ran out, nobody knows how much it would have taken.
        most = too_large.size - 1 if too_large.peak else (self.largest() + too_large.size) // 2
        return self._even(self._line_at(too_large.size).largest(self._budget, most))

    def _even(self, size: float) -> int:
        return even_size(self._batch_size, max(1, int(size)))

    def _line_at(self, size: int) -> Line:
        """Through the sizes around it, or through the largest and one far enough from it, where none is larger."""
        points = self._points()
        below, above = ([each for each in points if (each[0] < size) is is_below] for is_below in (True, False))
        if not above and points:
            last = points[-1][0]
            far_enough = last - min(last / 2, size - last)  # as far as the way that is left, if there is room
            above, below = points[-1:], [each for each in points if each[0] <= far_enough]
        return Line.through(below[-1:] + above[:1])

    def _points(self) -> list[tuple[int, float]]:
        return sorted((trial.size, trial.peak) for trial in self.trials if trial.peak is not None)

    def _fits(self, trial: Trial) -> bool:
        return trial.peak is not None and trial.peak <= self._budget
