"""What an update takes beside weights, slots and inputs: copies of the gradients, however large the batch is."""

from pathlib import Path

import pytest
from limiting import run_limited

pytestmark = pytest.mark.xdist_group("peaks")  # the tests share six processes


@pytest.fixture(scope="module")
def copies():
    """Of the gradients, at most at a time. The floor is one micro-batch whose gradients are kept."""
    program = Path(__file__).with_name("peaks.py")
    return {way: run_limited(program, 4000, way) for way in ("floor", "few", "many", "window", "loop", "table")}


def test_what_is_measured_is_copies(copies):
    assert copies["floor"] == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize("way", ["few", "many", "window"])
def test_gradients_are_not_kept_until_the_end(copies, way):
    """The sum of 16 or 128 micro-batches, and at most what one of them has not added to it yet."""
    assert 1 <= copies[way] < 2.1


def test_accumulator_keeps_one_copy(copies):
    """The sums, and little beside: without order, TensorFlow would have the moments of several variables at once."""
    assert 1 <= copies["loop"] < 1.13


def test_moments_are_computed_one_after_the_other(copies):
    """The gradient of one large table and one temporary: by itself TensorFlow has the temporaries of both moments."""
    assert copies["table"] == pytest.approx(2, abs=0.1)
