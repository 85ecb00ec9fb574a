"""Which micro-batch size to try: decided in plain Python, from what has fitted and what has not.

A size belongs to the shape of a sample: long sequences get their own. Nothing is estimated. Sizes are halved when they
fail, so the search ends after log2(batch size) failures per shape, and even batches stay evenly split.
"""

from __future__ import annotations

from typing import Tuple

Shape = Tuple[Tuple[int, ...], ...]  # of one sample, for every tensor of a batch


class Sizes:
    """The size for every shape that has been seen.

    >>> sizes = Sizes()
    >>> short, long = ((10,),), ((80,),)
    >>> sizes.size(short, num_samples=64)
    64
    >>> sizes.reduce(short, num_samples=64), sizes.size(short, num_samples=64)
    (32, 32)
    >>> sizes.size(long, num_samples=64)  # what is too large for short sequences is for long ones, too
    32
    >>> sizes.reduce(long, num_samples=64), sizes.size(short, num_samples=64)
    (16, 32)
    """

    def __init__(self) -> None:
        self._reduced: dict[Shape, int] = {}
        self._largest: dict[Shape, int] = {}  # the largest batch of a shape that nothing is known against

    def size(self, shape: Shape, num_samples: int) -> int:
        """The micro-batch size for a batch of so many samples."""
        if shape in self._reduced:
            return self._reduced[shape]
        self._largest[shape] = max(num_samples, self._largest.get(shape, 1))
        of_smaller = [size for other, size in self._reduced.items() if _is_within(other, shape)]
        return min([self._largest[shape], *of_smaller])

    def reduce(self, shape: Shape, num_samples: int) -> int | None:
        """The next size to try for a batch that did not fit, or `None` if it was tried sample by sample."""
        tried = min(self.size(shape, num_samples), num_samples)
        if tried <= 1:
            return None
        self._reduced[shape] = tried // 2
        return self._reduced[shape]


def _is_within(shape: Shape, other: Shape) -> bool:
    """Whether a sample is in no dimension larger than another one of the same kind."""
    if [len(dims) for dims in shape] != [len(dims) for dims in other]:
        return False
    return all(a <= b for dims, others in zip(shape, other) for a, b in zip(dims, others))
