"""`micro_batch_size="auto"`, under a real limit: plain Keras dies, and "auto" trains as if it had known the size."""

from concurrent.futures import ThreadPoolExecutor

import limited
import limited_convolution
import limited_slots
import numpy as np
import pytest
from limiting import run_limited

pytestmark = pytest.mark.xdist_group("memory")  # they train once, for all tests here


@pytest.fixture(scope="module")
def trained():
    """What came of every case. A failed allocation waits ten seconds for memory, so several processes run at a time."""
    with ThreadPoolExecutor(4) as pool:
        results = pool.map(lambda name: run_limited(limited.__file__, limited.LIMITS[name], name), limited.CASES)
        return dict(zip(limited.CASES, results))


@pytest.mark.parametrize("name", sorted(set(limited.CASES) - {"jit"}))
def test_plain_keras_dies(name, trained):
    assert trained[name]["plain"]["failed"].startswith("ResourceExhaustedError")


# With a spike, every shape has a size of its own, which no other run can be given.
@pytest.mark.parametrize("name", sorted(set(limited.CASES) - {"spike"}))
def test_equals_a_run_that_knew_the_size_bit_by_bit(name, trained):
    auto, fixed = trained[name]["auto"], trained[name]["fixed"]
    assert auto["failed"] == fixed["failed"] == ""
    assert len(auto["told"]) == 1
    assert trained[name]["size"] < 160
    assert auto["logs"] == fixed["logs"]
    for ours, theirs in zip(auto["values"], fixed["values"], strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_short_sequences_keep_their_size(trained):
    [told] = trained["spike"]["auto"]["told"]
    assert "samples of shape (1000, 16)" in told


@pytest.mark.parametrize("name", ["exact", "spike"])
def test_equals_the_whole_batch_with_memory_for_it(name, trained):
    auto, whole = trained[name]["auto"], limited.train(name, None)
    assert whole["failed"] == ""
    for ours, theirs in zip(auto["values"], whole["values"], strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(auto["logs"]["loss"], whole["logs"]["loss"], rtol=1e-10)


def test_the_first_update_takes_what_the_others_do():
    """Before it, slots are one tensor of zeros: it would fit whole and the others would not, as with no given size."""
    auto = run_limited(limited_slots.__file__, 54, "auto")  # 46 to 60 MiB do
    assert "1600 samples at a time do not fit, 800 do" in auto["told"][0]
    fixed = run_limited(limited_slots.__file__, 1000, "800")
    for ours, theirs in zip(auto["weights"], fixed["weights"], strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_a_convolution_without_memory_is_survived_without_onednn():
    """With it, TensorFlow itself ends the process (docs/memory.md)."""
    left = run_limited(limited_convolution.__file__, 100, TF_ENABLE_ONEDNN_OPTS="0")
    assert left["updates"] == 1
    assert "128 samples at a time do not fit" in left["told"][0]
