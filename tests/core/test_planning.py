"""The search for the largest size that fits, on made-up peaks."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bigbatch.core.planning import Line, Search
from bigbatch.core.split import even_size

LARGE = 10**6  # a batch that any size here splits evenly


def searched(peak, batch_size, budget):
    search = Search(lambda size: peak(size) if peak(size) <= budget else None, batch_size, budget)
    search.run()
    return search


@given(st.integers(1, 10**9), st.integers(1, 10**7), st.integers(1, 5000), st.integers(1, 5000))
def test_a_straight_line_is_found_at_once(fixed, per_sample, batch_size, capacity):
    budget = fixed + per_sample * capacity
    search = searched(lambda size: fixed + per_sample * size, batch_size, budget)
    expected = min(capacity, batch_size)
    almost = max(1, int(0.94 * expected - 1))
    assert even_size(batch_size, almost) <= search.largest() <= even_size(batch_size, expected)
    assert all(trial.size == even_size(batch_size, trial.size) for trial in search.trials)
    assert len(search.trials) <= 4 + math.log(batch_size, 4) + 6


@given(st.integers(1, 200), st.integers(1, 2000))
def test_a_plateau_is_left_behind(plateau, capacity):
    # Up to some size, applying the optimizer takes more than a micro-batch does, and all of them use the memory.
    search = searched(lambda size: 1000 + 10 * max(plateau, size), 4096, 1000 + 10 * max(plateau, capacity))
    assert search.largest() >= 0.5 * max(plateau, capacity)


def test_predictions_come_true_on_a_line():
    search = searched(lambda size: 50 + 7 * size, 1000, 3000)
    predicted = [(trial.predicted, trial.peak) for trial in search.trials if trial.predicted is not None]
    assert all(each[0] == pytest.approx(each[1]) for each in predicted if each[1] is not None)
    assert search.line() == pytest.approx(Line(50, 7), rel=1e-4)


@given(st.integers(100, 600))
def test_a_bend_is_found_between_what_fits_and_what_does_not(budget):
    # The work of a convolution on a CPU takes the most below some size, its outputs above.
    def peak(size):
        return max(60 + 0.2 * size, 10 + 0.6 * size)

    search = Search(peak, LARGE, budget)
    search.run()
    [largest] = [trial for trial in search.trials if trial.size == search.largest()]
    assert 0.95 * budget - 1 < largest.peak <= budget
    # Sizes grow to 256 in any case, the first one behind the bend, and with one budget none beyond it fits.
    assert largest.predicted == pytest.approx(largest.peak, rel=0.05) or (largest.size, budget) == (256, 164)


def test_sizes_grow_carefully_where_the_line_bends():
    search = searched(lambda size: max(60 + 0.2 * size, 10 + 0.6 * size), 4096, 10**6)
    assert [trial.size for trial in search.trials] == [1, 2, 4, 16, 64, 256, 512, 1024, 4096]
    # By 16 and 64, which are before the bend; by one before it and one behind it; by two behind it.
    assert [trial.came_true for trial in search.trials[5:]] == [False, False, True, True]


def test_a_largest_size_that_surprised_is_predicted_again_from_behind_the_bend():
    search = searched(lambda size: max(60 + 0.2 * size, 10 + 0.6 * size), 1024, 400)
    # After 256 it was 512, predicted by 64 and 256 to take 285; then 128, which is behind the bend, and 512 again.
    assert [trial.size for trial in search.trials] == [1, 2, 4, 16, 64, 256, 128, 512]
    assert search.trials[-1].predicted == pytest.approx(317.2)
    assert search.trials[-1].peak == pytest.approx(317.2)


def test_a_steep_part_is_met_where_it_is():
    """As a network of convolutions had it: sizes that do not fit must not be tried one after the other."""
    search = Search(lambda size: 45 + 0.53 * size if size <= 512 else 316 + 1.35 * (size - 512), LARGE, 400)
    search.run()
    assert 0.95 * 574 < search.largest() <= 574
    assert [trial.size for trial in search.trials if trial.size > 512] == [669, 516, 574]


def test_the_line_is_not_that_of_neighbours():
    """Sizes that were tried close to the limit scatter, and what does not fit is no part of the line."""
    search = Search(lambda size: 100.0 + 10 * size + 40 * (size in (30, 31)), 64, 420)
    for size in (4, 8, 16, 30, 31, 32, 64):
        search.tries(size)
    assert search.line() == pytest.approx(Line(100, 10))


def test_peaks_that_nobody_saw():
    """Resident memory need not grow: another model may have left enough behind."""
    search = searched(lambda size: 0.0 if size < 8 else 100.0 * size, LARGE, 3300)
    assert search.largest() == 33
    assert searched(lambda size: 0.0, 64, 3300).largest() == 64


def test_sizes_that_take_memory_for_nothing_are_not_tried():
    """By 155 samples, 1000 are seven micro-batches, and by 143, too; six take 167, which do not fit."""
    search = searched(lambda size: 100 + 10 * size, 1000, 1650)
    assert search.largest() == 143
    assert search.confirmed(lambda size: size < 143) == 112  # 121, which is 0.85 of it, makes nine, and so does 112


def test_nothing_fits():
    search = searched(lambda size: 100 + size, 64, 50)
    assert search.largest() == 0
    assert [trial.size for trial in search.trials] == [1]


def test_the_whole_batch_fits():
    assert searched(lambda size: 100 + size, 300, 10**6).largest() == 300


def test_a_cliff_is_not_climbed_one_by_one():
    # An operation may change its algorithm at some size.
    search = searched(lambda size: 100 + size if size < 200 else 10**6, 1024, 800)
    assert 100 <= search.largest() < 200
    assert len(search.trials) < 14


def test_what_is_not_confirmed_gives_way_to_a_little_less():
    search = searched(lambda size: 100 + 10 * size, LARGE, 1100)
    assert search.largest() == 100
    asked = []
    assert search.confirmed(lambda size: asked.append(size) or size < 80) == 72
    assert asked == [100, 85, 72]
    assert search.confirmed(lambda size: False) == 0
