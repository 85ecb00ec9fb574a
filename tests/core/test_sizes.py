"""Which micro-batch size "auto" tries next."""

from math import log2

from hypothesis import example, given
from hypothesis import strategies as st

from bigbatch.core.sizes import Sizes

SHORT, LONG, LONGER = ((10,), (2,)), ((80,), (2,)), ((90,), (2,))
many = st.integers(1, 10**6)


def search(sizes, shape, num_samples, capacity):
    """Reduces until so many samples fit. Returns the size, and how often it failed."""
    num_failures = 0
    while min(sizes.size(shape, num_samples), num_samples) > capacity:
        assert sizes.reduce(shape, num_samples) == sizes.size(shape, num_samples)
        num_failures += 1
    return sizes.size(shape, num_samples), num_failures


@given(num_samples=many, capacity=many)
@example(num_samples=1, capacity=1)
@example(num_samples=5, capacity=4)
@example(num_samples=2**19, capacity=1)
def test_the_search_ends_at_half_of_what_fits_or_more(num_samples, capacity):
    size, num_failures = search(Sizes(), SHORT, num_samples, capacity)
    assert num_failures <= log2(num_samples)
    if num_samples <= capacity:
        assert (size, num_failures) == (num_samples, 0)
    else:
        assert capacity / 2 <= size <= capacity


@given(num_samples=many)
def test_nothing_is_left_to_try_after_one_sample(num_samples):
    sizes = Sizes()
    search(sizes, SHORT, num_samples, capacity=1)
    assert sizes.reduce(SHORT, num_samples) is None
    assert sizes.size(SHORT, num_samples) == 1


def test_a_batch_of_one_sample_leaves_nothing_to_try_at_a_larger_size():
    sizes = Sizes()
    sizes.reduce(SHORT, 64)
    assert sizes.reduce(SHORT, 1) is None
    assert sizes.size(SHORT, 64) == 32


def test_long_shapes_do_not_shrink_short_ones():
    sizes = Sizes()
    sizes.size(SHORT, 64)
    assert search(sizes, LONG, 64, capacity=5) == (4, 4)
    assert sizes.size(SHORT, 64) == 64
    assert search(sizes, SHORT, 64, capacity=40) == (32, 1)
    assert sizes.size(LONG, 64) == 4


def test_a_longer_shape_starts_at_the_smallest_size_of_the_shorter_ones():
    sizes = Sizes()
    search(sizes, SHORT, 64, capacity=32)
    search(sizes, LONG, 64, capacity=16)
    assert sizes.size(LONGER, 64) == 16
    assert sizes.size(LONGER, 8) == 16
    assert sizes.reduce(LONGER, 64) == 8
    assert (sizes.size(LONG, 64), sizes.size(SHORT, 64)) == (16, 32)


def test_a_shape_that_is_longer_here_and_shorter_there_is_unrelated():
    sizes = Sizes()
    sizes.reduce(((10,), (5,)), 64)
    assert sizes.size(((20,), (4,)), 64) == 64
    assert sizes.size(((20,), (5,)), 64) == 32


def test_shapes_of_other_ranks_are_unrelated():
    sizes = Sizes()
    sizes.reduce(((10,), (2,)), 64)
    for other in (((10, 10), (2,)), ((10,), ()), ((10,),), ((10,), (2,), (2,))):
        assert sizes.size(other, 64) == 64


@given(num_samples=st.integers(2, 10**6), data=st.data())
def test_a_smaller_last_batch_does_not_change_the_size(num_samples, data):
    last = data.draw(st.integers(1, num_samples - 1))
    fits, halved = Sizes(), Sizes()
    halved.reduce(SHORT, num_samples)
    for sizes, size in ((fits, num_samples), (halved, num_samples // 2)):
        assert [sizes.size(SHORT, number) for number in (num_samples, last, num_samples)] == [size] * 3


def test_a_smaller_batch_that_fails_is_halved_itself():
    sizes = Sizes()
    sizes.size(SHORT, 64)
    assert sizes.reduce(SHORT, 20) == 10
    assert sizes.size(SHORT, 64) == 10


def test_a_larger_batch_is_tried_whole_if_nothing_failed():
    sizes = Sizes()
    assert [sizes.size(SHORT, number) for number in (8, 64, 65)] == [8, 64, 65]
    sizes.reduce(SHORT, 65)
    assert sizes.size(SHORT, 1000) == 32
