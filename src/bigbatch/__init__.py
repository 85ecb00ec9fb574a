"""Gradient accumulation done right.

You ask for a batch; it trains in micro-batches that fit the memory you have; the update equals the update of the whole
batch, to rounding.

    bigbatch.accumulate(model, micro_batch_size=16)
    model.fit(x, y, batch_size=256)
    bigbatch.release(model)

In a loop of your own, use `GradientAccumulator`, `windows` and `split`; with several workers, `wait_for_workers`.

This file, `bigbatch.core` and these four names run on Python 3.7 with TensorFlow 1.14 and on all later versions; most
others need Keras 3.12 or later.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bigbatch import schedules
    from bigbatch.core.errors import AccumulationError
    from bigbatch.diagnostics.noise_scale import noise_scale
    from bigbatch.diagnostics.plan import plan
    from bigbatch.diagnostics.verify import verify
    from bigbatch.training.accumulator import GradientAccumulator
    from bigbatch.training.in_micro_batches import in_micro_batches
    from bigbatch.training.loops import split, windows
    from bigbatch.training.model import accumulate, release
    from bigbatch.training.monitor import Monitor
    from bigbatch.training.noise_scale import NoiseScale
    from bigbatch.training.rendezvous import wait_for_workers

__version__ = "0.1.0"
__all__ = [
    "AccumulationError",
    "GradientAccumulator",
    "Monitor",
    "NoiseScale",
    "accumulate",
    "in_micro_batches",
    "noise_scale",
    "plan",
    "release",
    "schedules",
    "split",
    "verify",
    "wait_for_workers",
    "windows",
]

_HOME = {
    "AccumulationError": "bigbatch.core.errors",
    "GradientAccumulator": "bigbatch.training.accumulator",
    "Monitor": "bigbatch.training.monitor",
    "NoiseScale": "bigbatch.training.noise_scale",
    "accumulate": "bigbatch.training.model",
    "in_micro_batches": "bigbatch.training.in_micro_batches",
    "noise_scale": "bigbatch.diagnostics.noise_scale",
    "plan": "bigbatch.diagnostics.plan",
    "release": "bigbatch.training.model",
    "split": "bigbatch.training.loops",
    "verify": "bigbatch.diagnostics.verify",
    "wait_for_workers": "bigbatch.training.rendezvous",
    "windows": "bigbatch.training.loops",
}
_NEEDS_KERAS = ("Monitor", "NoiseScale", "accumulate", "in_micro_batches", "noise_scale", "plan", "release", "verify")


def __getattr__(name: str) -> Any:
    # Importing bigbatch must not import TensorFlow: a user may set its environment variables in between.
    if name == "schedules":
        return import_module("bigbatch.schedules")
    if name not in _HOME:
        raise AttributeError(f"module 'bigbatch' has no attribute {name!r}")
    try:
        if name in _NEEDS_KERAS:
            _require_keras(name)
        return getattr(import_module(_HOME[name]), name)
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != "tensorflow":
            raise
        raise ModuleNotFoundError(
            f"`bigbatch.{name}` needs TensorFlow. Received: no module 'tensorflow'. Install it with "
            '`pip install "bigbatch[tensorflow]"` or `pip install "bigbatch[tensorflow-cpu]"`.',
            name="tensorflow",
        ) from error


def _require_keras(name: str) -> None:
    try:
        import keras

        version = keras.__version__
    except ModuleNotFoundError as error:
        if error.name != "keras":
            raise
        version = "none"
    if version == "none" or tuple(map(int, version.split(".")[:2])) < (3, 12):
        raise ImportError(
            f"`bigbatch.{name}` needs Keras 3.12 or later. Received: keras={version}. "
            "Upgrade Keras, or use `bigbatch.GradientAccumulator`, which works with every version.",
            name="keras",
        )


def __dir__() -> list[str]:
    return __all__
