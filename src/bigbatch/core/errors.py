"""The one exception of the package and the wording of all its errors."""

from __future__ import annotations

from typing import Any


class AccumulationError(RuntimeError):
    """The update of the whole batch cannot be computed from its micro-batches."""

    # AutoGraph re-raises what comes out of a traced function as its own class only if that class is made like this.
    __init__ = Exception.__init__


def describe(expected: str, received: str, remedy: str) -> str:
    """What was expected, what came instead and the way out: three sentences, always in this order."""
    return f"{expected} Received: {received}. {remedy}"


def require_size(name: str, value: Any, *, off: str, kinds: str = "a positive integer or None") -> None:
    """Accepts `None` and positive integers, and nothing that merely looks like one (`True`, `2.0`, `"16"`)."""
    if value is not None:
        require_positive(name, value, kinds=kinds, remedy=f"Use None to {off}.")


def require_positive(name: str, value: Any, *, kinds: str = "a positive integer", remedy: str) -> None:
    """Accepts positive integers only."""
    if type(value) is int and value > 0:
        return
    error = ValueError if type(value) is int else TypeError
    raise error(describe(f"`{name}` must be {kinds}.", f"{name}={value!r}", remedy))


def require_fraction(name: str, value: Any) -> None:
    """Refuses what does not lie between 0 and 1."""
    if not isinstance(value, (int, float)) or not 0 < value < 1:
        received = f"{name}={value!r}"
        raise ValueError(describe(f"`{name}` must lie between 0 and 1.", received, "Leave it out for the default."))
