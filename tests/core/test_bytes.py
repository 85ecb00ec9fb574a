"""Numbers of bytes, as people write and read them."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bigbatch.core.bytes import num_bytes, readable

SPELLINGS = {
    1: 1,
    "1": 1,
    "12B": 12,
    "3KB": 3000,
    "3KiB": 3072,
    "8MB": 8 * 10**6,
    "512MiB": 512 * 2**20,
    "8GB": 8 * 10**9,
    "8 GB": 8 * 10**9,
    " 8  gb ": 8 * 10**9,
    "1.5GiB": 3 * 2**29,
    "0.5 MiB": 2**19,
    "2TB": 2 * 10**12,
    "2TiB": 2**41,
}


@pytest.mark.parametrize("value", SPELLINGS, ids=repr)
def test_spellings(value):
    amount = num_bytes("memory", value)
    assert amount == SPELLINGS[value]
    assert type(amount) is int


@given(st.integers(1, 10**15))
def test_every_positive_number(number):
    assert num_bytes("memory", number) == num_bytes("memory", f"{number}B") == number


BAD_VALUES = ["8 potatoes", "", "GB", "-1GB", "0GB", "8,5GB", "1e9", "8GB free", -1, 0]
BAD_TYPES = [True, False, 2.5, None, ["8GB"], b"8GB"]
EVERY = [(value, ValueError) for value in BAD_VALUES] + [(value, TypeError) for value in BAD_TYPES]


@pytest.mark.parametrize(("value", "error"), EVERY, ids=lambda value: getattr(value, "__name__", repr(value)))
def test_says_what_is_wrong(value, error):
    text = (
        f'`memory` must be bytes: a positive integer, "8GB" or "512MiB". Received: memory={value!r}. '
        "Leave it out for what the device has free."
    )
    with pytest.raises(error, match=f"^{re.escape(text)}$"):
        num_bytes("memory", value)


READABLE = {
    0: "0 B",
    1: "1 B",
    1023: "1023 B",
    1024: "1.0 KiB",
    524288: "512.0 KiB",
    2**20: "1.0 MiB",
    3 * 2**29: "1.5 GiB",
    5 * 2**40: "5120.0 GiB",
}


@pytest.mark.parametrize("number", READABLE)
def test_readable(number):
    assert readable(number) == READABLE[number]


@given(st.integers(1, 10**15))
def test_readable_can_be_read_back(number):
    """To within the digit after the point, of numbers that are at least one of their unit."""
    assert num_bytes("memory", readable(number)) == pytest.approx(number, rel=0.05)
