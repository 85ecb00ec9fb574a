"""What an adaptive schedule knows, kept in the weights that its model saves.

An attribute of the HDF5 file, which Keras does not read: the weights load without bigbatch, and `BackupAndRestore`
brings the schedule back with them.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import h5py
import keras

from bigbatch.training.adaptive import Adaptive

_NAME = "bigbatch_schedule"


def methods(model: keras.Model, schedule: Callable[[], Adaptive | None]) -> dict[str, Any]:
    """`save_weights` and `load_weights` for one model."""

    def save_weights(filepath: Any, *args: Any, **kwargs: Any) -> None:
        type(model).save_weights(model, filepath, *args, **kwargs)
        adaptive = schedule()
        if adaptive is not None and _is_file(filepath):
            with h5py.File(filepath, "r+") as file:
                file.attrs[_NAME] = adaptive.serialize()

    def load_weights(filepath: Any, *args: Any, **kwargs: Any) -> None:
        type(model).load_weights(model, filepath, *args, **kwargs)
        adaptive = schedule()
        if adaptive is not None and _is_file(filepath):
            with h5py.File(filepath, "r") as file:
                if _NAME in file.attrs:
                    adaptive.deserialize(file.attrs[_NAME])

    return {"save_weights": save_weights, "load_weights": load_weights}


def _is_file(filepath: Any) -> bool:
    return str(filepath).endswith(".weights.h5") and os.path.isfile(filepath)
