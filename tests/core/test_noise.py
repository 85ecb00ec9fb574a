"""The estimator on gradients whose noise scale is known."""

import math

import numpy as np
import pytest

from bigbatch.core.noise import Smoothed

NOISE, SIGNAL = 30.0, 0.4
SIZES = np.array([3, 8, 8, 8])


def measured(rng, num_updates, sizes=SIZES):
    """Noise and signal of each update, by their definition, with micro-batches of unequal size."""
    mean = np.zeros(10)
    mean[0] = SIGNAL**0.5
    gradients = mean + rng.normal(size=(num_updates, len(sizes), 10)) * np.sqrt(NOISE / 10 / sizes)[:, None]
    means = np.einsum("k,ukd->ud", sizes / sizes.sum(), gradients)
    spread = np.square(gradients - means[:, None]).sum(-1) @ sizes / (len(sizes) - 1)
    return np.stack([spread, np.square(means).sum(-1) - spread / sizes.sum()], axis=1)


def smoothed(pairs, decay):
    result = Smoothed(decay)
    for pair in pairs:
        result.add(*pair)
    return result


def test_both_are_unbiased():
    pairs = measured(np.random.default_rng(0), 20_000)
    errors = pairs.mean(0) - (NOISE, SIGNAL)
    assert (np.abs(errors) < 4 * pairs.std(0) / len(pairs) ** 0.5).all()


@pytest.mark.parametrize(("decay", "num_updates"), [(1.0, 20), (1.0, 200), (0.98, 300), (0.9, 100)])
def test_the_interval_holds_the_truth_as_often_as_it_says(decay, num_updates):
    rng = np.random.default_rng(5)
    found = [smoothed(measured(rng, num_updates), decay) for _ in range(1500)]
    for confidence in (0.8, 0.95):
        ends = [each.interval(confidence) for each in found]
        held = np.mean([low <= NOISE / SIGNAL <= high for low, high in ends])
        assert abs(held - confidence) < 0.03, confidence
    middle = np.median([each.value for each in found])
    assert middle == pytest.approx(NOISE / SIGNAL, rel=0.1)


def test_a_mean_of_ratios_would_be_wrong():
    pairs = measured(np.random.default_rng(2), 5000)
    assert abs(np.mean(pairs[:, 0] / pairs[:, 1]) / (NOISE / SIGNAL) - 1) > 0.2
    assert smoothed(pairs, 1.0).value == pytest.approx(NOISE / SIGNAL, rel=0.05)


def test_the_past_is_forgotten():
    result = smoothed([(1000.0, 1.0)] * 500 + [(10.0, 1.0)] * 500, 0.98)
    assert result.value == pytest.approx(10.0, rel=0.01)
    assert result.num_updates == pytest.approx(99, rel=0.01)


def test_what_is_not_known():
    result = Smoothed()
    result.add(math.nan, 1.0)
    result.add(1.0, math.inf)
    assert math.isnan(result.value)
    assert result.interval() == (0.0, math.inf)
    result.add(5.0, -1.0)  # the signal is lost in the noise
    assert result.value == math.inf
    result.add(5.0, 1.5)
    assert result.interval() == (0.0, math.inf)  # two updates


def test_no_noise_is_no_scale():
    result = smoothed([(0.0, 2.0)] * 10, 0.98)
    assert result.value == 0.0
    assert result.interval() == (0.0, 0.0)
