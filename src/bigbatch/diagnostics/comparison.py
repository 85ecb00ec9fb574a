"""How far two outcomes are apart, and whether rounding explains it."""

from __future__ import annotations

from collections.abc import Iterable

import keras
import numpy as np

from bigbatch.diagnostics.both_ways import Arrays, Outcome
from bigbatch.diagnostics.equivalence import Row
from bigbatch.training import keras_private

# Sums in another order differ about as much as sums of numbers whose last digits differ, give or take a factor of 3.
# Where digits are plenty, a mistake is 10,000 times that, and the margin may be wide. Where they are few it may not;
# and a gradient of some size that is off by a tenth of it cannot be told from one that is wrong.
_MARGIN, _NARROW_MARGIN = 30.0, 4.0
_TOO_COARSE, _OF_SOME_SIZE = 0.1, 0.1
# A variable whose gradient is next to nothing beside the largest of all is not judged by its own size.
_NEGLIGIBLE = 1e-3
_SHAKY = 1e-2
EPSILON = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}


def compare(reference: Outcome, other: Outcome, rounded: Outcome, epsilon: float) -> tuple[Row, ...]:
    """One row for each thing that an update comes to.

    Args:
        reference, other: what is compared.
        rounded: what the reference comes to after the last digits of the weights have moved.
        epsilon: the precision that the model computes in.
    """
    rows: list[Row] = []
    for kind, arrays in reference.kinds().items():
        largest = max((_size(array) for array in arrays.values()), default=0.0)
        floor = _NEGLIGIBLE * largest if kind == "gradient" else 0.0
        for name, array in arrays.items():
            scale = max(_size(array), floor) or 1.0
            difference = _distance(array, other.kinds()[kind].get(name)) / scale
            rounding = _distance(array, rounded.kinds()[kind].get(name)) / scale
            margin = _MARGIN if epsilon < 1e-6 else _NARROW_MARGIN
            is_exact = difference <= margin * (rounding + epsilon)
            if kind == "gradient" and _size(array) > _OF_SOME_SIZE * largest:
                is_exact &= difference < _TOO_COARSE
            rows.append(Row(kind, name, difference, rounding, is_exact))
    return tuple(rows)


def are_finite(outcome: Outcome) -> bool:
    return all(np.all(np.isfinite(array.astype("float64"))) for array in outcome.gradients.values())


def is_shaky(rows: Iterable[Row]) -> bool:
    """Whether last digits move gradients by more than rounding should: there may be chance in it."""
    return any(row.rounding > _SHAKY for row in rows if row.kind == "gradient")


def precision(model: keras.Model) -> tuple[str, float]:
    """The narrowest type that layers compute in, and the relative distance of its numbers."""
    names = {layer.compute_dtype for layer in keras_private.flatten_layers(model)}
    name = max(names & EPSILON.keys(), key=EPSILON.__getitem__, default="float32")
    return name, EPSILON[name]


def change(before: Arrays, after: Arrays) -> float:
    """The distance of two gradients as a whole, relative to the first."""
    squares = [(np.sum((after[name] - array) ** 2.0), np.sum(array**2.0)) for name, array in before.items()]
    moved, size = np.sum(squares, axis=0)
    return float(np.sqrt(moved / size)) if size else 0.0


def _size(array: np.ndarray) -> float:
    return float(np.max(np.abs(array.astype("float64")), initial=0.0))


def _distance(array: np.ndarray, other: np.ndarray | None) -> float:
    if other is None or other.shape != array.shape:
        return float("inf")
    mine, theirs = array.astype("float64"), other.astype("float64")
    with np.errstate(invalid="ignore"):
        apart = np.abs(mine - theirs)
    same = (mine == theirs) | (np.isnan(mine) & np.isnan(theirs))
    return float(np.max(np.where(same, 0.0, np.nan_to_num(apart, nan=np.inf, posinf=np.inf)), initial=0.0))
