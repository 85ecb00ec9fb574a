"""Numbers of bytes, as people write and read them."""

from __future__ import annotations

import re
from typing import Any

from bigbatch.core.errors import describe

_UNITS = {"": 1, "B": 1}
_UNITS.update({f"{prefix}B": 1000**power for power, prefix in enumerate("KMGT", 1)})
_UNITS.update({f"{prefix}IB": 1024**power for power, prefix in enumerate("KMGT", 1)})
_AMOUNT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")


def num_bytes(name: str, value: Any) -> int:
    """The bytes of "8GB" (powers of 1000), "512MiB" (powers of 1024) or a number.

    >>> num_bytes("memory", "8GB"), num_bytes("memory", "0.5 MiB"), num_bytes("memory", 12)
    (8000000000, 524288, 12)
    """
    amount = None
    if type(value) is int:
        amount = value
    elif isinstance(value, str):
        match = _AMOUNT.fullmatch(value)
        if match and match[2].upper() in _UNITS:
            amount = int(float(match[1]) * _UNITS[match[2].upper()])
    if amount is None or amount <= 0:
        error = ValueError if isinstance(value, (int, str)) and type(value) is not bool else TypeError
        remedy = "Leave it out for what the device has free."
        raise error(
            describe(f'`{name}` must be bytes: a positive integer, "8GB" or "512MiB".', f"{name}={value!r}", remedy)
        )
    return amount


def readable(number: float) -> str:
    """Bytes in powers of 1024.

    >>> readable(8_000_000_000), readable(524288), readable(12)
    ('7.5 GiB', '512.0 KiB', '12 B')
    """
    for unit in ("B", "KiB", "MiB"):
        if number < 1024:
            return f"{number:.0f} B" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1024
    return f"{number:.1f} GiB"
