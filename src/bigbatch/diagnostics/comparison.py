"""How far two outcomes are apart, and whether rounding explains it."""

from __future__ import annotations

import keras
import numpy as np

from bigbatch.diagnostics.both_ways import Arrays, Outcome
from bigbatch.diagnostics.equivalence import Row
from bigbatch.training import keras_private

# Sums in another order differ about as much as sums of numbers whose last digits differ; over ten application models
# of Keras never by more than a tenth of this (docs/verify.md).
_MARGIN = 30.0
# A variable whose gradient is next to nothing beside the largest of all is not judged by its own size.
_NEGLIGIBLE = 1e-3
_EPSILON = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}


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
            is_exact = difference <= _MARGIN * (rounding + epsilon)
            rows.append(Row(kind, name, difference, rounding, is_exact))
    return tuple(rows)


def precision(model: keras.Model) -> tuple[str, float]:
    """The narrowest type that layers compute in, and the relative distance of its numbers."""
    names = {layer.compute_dtype for layer in keras_private.flatten_layers(model)}
    name = max(names & _EPSILON.keys(), key=_EPSILON.__getitem__, default="float32")
    return name, _EPSILON[name]


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
    apart = np.abs(array.astype("float64") - other.astype("float64"))
    apart = np.where(np.isnan(apart) & ~(array == other) & ~(np.isnan(array) & np.isnan(other)), np.inf, apart)
    return float(np.max(np.nan_to_num(apart, nan=0.0, posinf=np.inf), initial=0.0))
