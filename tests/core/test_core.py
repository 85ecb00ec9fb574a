"""The arithmetic: any partition, any order."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bigbatch.core.errors import AccumulationError, require_size
from bigbatch.core.split import head_size
from bigbatch.core.weighted import Moments, WeightedSum

numbers = st.floats(-1e3, 1e3)
samples = st.lists(st.tuples(numbers, st.integers(1, 50)), min_size=1, max_size=20)


@given(st.integers(1, 1000), st.integers(1, 100))
def test_the_head_is_what_whole_micro_batches_leave(num_samples, micro_batch_size):
    head = head_size(num_samples, micro_batch_size)
    assert 0 < head <= min(num_samples, micro_batch_size)
    assert (num_samples - head) % micro_batch_size == 0


def merged(parts):
    total, *others = parts
    for other in others:
        total = total.merge(other)
    return total


@given(samples, st.randoms())
def test_a_weighted_mean_in_any_order(values, random):
    shuffled = random.sample(values, len(values))
    mean = merged([WeightedSum.of(value, weight) for value, weight in shuffled]).mean()
    expected = np.average([value for value, _ in values], weights=[weight for _, weight in values])
    assert mean == pytest.approx(expected, rel=1e-9, abs=1e-9)


@given(numbers, st.integers(1, 50), samples)
def test_a_weight_of_k_equals_k_copies(value, copies, rest):
    tail = [WeightedSum.of(*pair) for pair in rest]
    once = merged([WeightedSum.of(value, copies), *tail]).mean()
    many = merged([WeightedSum.of(value, 1)] * copies + tail).mean()
    assert once == pytest.approx(many, rel=1e-9, abs=1e-9)


@given(st.lists(st.lists(numbers, min_size=1, max_size=9), min_size=1, max_size=9), st.randoms())
def test_moments_of_any_partition_in_any_order(parts, random):
    moments = [Moments(float(len(part)), np.mean(part), np.var(part)) for part in random.sample(parts, len(parts))]
    whole = np.concatenate(parts)
    total = merged(moments)
    assert total.weight == len(whole)
    assert total.mean == pytest.approx(whole.mean(), rel=1e-9, abs=1e-9)
    assert total.variance == pytest.approx(whole.var(), rel=1e-9, abs=1e-6)


def test_moments_keep_their_precision_in_float32():
    """The textbook formula (mean of squares minus square of mean) loses everything here."""
    values = np.float32(1e4) + np.random.default_rng(0).normal(size=4096).astype("float32")
    parts = [Moments(np.float32(64), part.mean(), part.var()) for part in values.reshape(64, 64)]
    truth = values.astype("float64").var()
    assert abs(merged(parts).variance - truth) < 1e-3 * truth
    assert abs(np.mean(values * values) - np.mean(values) ** 2 - truth) > 0.1 * truth


@pytest.mark.parametrize("value", [None, 1, 7])
def test_sizes_that_are_accepted(value):
    assert require_size("size", value, off="stop") is None


@pytest.mark.parametrize(("value", "error"), [(0, ValueError), (-3, ValueError), (True, TypeError), ("4", TypeError)])
def test_sizes_that_are_not(value, error):
    with pytest.raises(error, match=rf"^`size` must be .*\. Received: size={value!r}\. Use None to stop\.$"):
        require_size("size", value, off="stop")


def test_the_exception_is_a_runtime_error():
    assert issubclass(AccumulationError, RuntimeError)
