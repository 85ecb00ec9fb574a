"""Gradient accumulation done right.

You ask for a batch; it trains in micro-batches that fit the memory you have; the update equals the update of the whole
batch, to rounding.

    bigbatch.accumulate(model, micro_batch_size=16)
    model.fit(x, y, batch_size=256)
    bigbatch.release(model)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bigbatch import schedules
    from bigbatch.core.errors import AccumulationError
    from bigbatch.training.model import accumulate, release

__version__ = "0.1.0"
__all__ = ["AccumulationError", "accumulate", "release", "schedules"]

_HOME = {
    "AccumulationError": "bigbatch.core.errors",
    "accumulate": "bigbatch.training.model",
    "release": "bigbatch.training.model",
}


def __getattr__(name: str) -> Any:
    # Importing bigbatch must not import TensorFlow: a user may set its environment variables in between.
    if name == "schedules":
        return import_module("bigbatch.schedules")
    if name not in _HOME:
        raise AttributeError(f"module 'bigbatch' has no attribute {name!r}")
    try:
        return getattr(import_module(_HOME[name]), name)
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != "tensorflow":
            raise
        raise ModuleNotFoundError(
            f"`bigbatch.{name}` needs TensorFlow. Received: no module 'tensorflow'. Install it with "
            '`pip install "bigbatch[tensorflow]"` or `pip install "bigbatch[tensorflow-cpu]"`.',
            name="tensorflow",
        ) from error


def __dir__() -> list[str]:
    return __all__
