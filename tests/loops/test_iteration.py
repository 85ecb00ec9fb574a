"""`windows` and `split`: what a loop runs over, tails included."""

import numpy as np
import pytest
import tensorflow as tf
from modes import WHILE_TRACING

import bigbatch


def batches(*sizes):
    return [(np.full((size, 2), index), np.full(size, index)) for index, size in enumerate(sizes)]


def sizes(windows):
    return [[len(x) for x, _ in window] for window in windows]


@pytest.mark.parametrize(
    ("number", "expected"),
    [(1, [[3], [1], [4], [1], [5]]), (2, [[3, 1], [4, 1], [5]]), (5, [[3, 1, 4, 1, 5]]), (9, [[3, 1, 4, 1, 5]])],
)
def test_windows_of_batches(number, expected):
    assert sizes(bigbatch.windows(batches(3, 1, 4, 1, 5), batches_per_update=number)) == expected


@pytest.mark.parametrize(
    ("samples", "expected"),
    [(1, [[3], [1], [4], [1], [5]]), (4, [[3, 1], [4], [1, 5]]), (6, [[3, 1, 4], [1, 5]]), (99, [[3, 1, 4, 1, 5]])],
)
def test_windows_of_samples(samples, expected):
    assert sizes(bigbatch.windows(batches(3, 1, 4, 1, 5), samples_per_update=samples)) == expected


def test_windows_of_a_schedule():
    schedule = bigbatch.schedules.piecewise({0: 1, 1: 3})
    assert sizes(bigbatch.windows(batches(1, 1, 1, 1, 1), batches_per_update=schedule)) == [[1], [1, 1, 1], [1]]


def test_windows_of_nothing():
    assert not list(bigbatch.windows([], batches_per_update=3))


@pytest.mark.parametrize("settings", [{"batches_per_update": 4}, {"samples_per_update": 12}], ids=str)
def test_windows_of_a_dataset(settings):
    dataset = tf.data.Dataset.range(30).batch(3)
    seen = [[batch.numpy().tolist() for batch in window] for window in bigbatch.windows(dataset, **settings)]
    assert [len(window) for window in seen] == [4, 4, 2]
    assert [sample for window in seen for batch in window for sample in batch] == list(range(30))


def test_only_one_batch_is_pulled_at_a_time():
    pulled = []

    def generator():
        for index in range(5):
            pulled.append(index)
            yield index

    for number, window in enumerate(bigbatch.windows(generator(), batches_per_update=2)):
        for position, batch in enumerate(window):
            assert batch == 2 * number + position
            assert pulled[-1] == batch


def test_what_a_loop_leaves_of_a_window_is_not_given_to_the_next():
    firsts = [next(window) for window in bigbatch.windows(range(7), batches_per_update=3)]
    assert firsts == [0, 3, 6]


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"batches_per_update": 0}, ValueError, "Received: batches_per_update=0"),
        ({"batches_per_update": 2.0}, TypeError, "Received: batches_per_update=2.0"),
        ({"samples_per_update": -1}, ValueError, "Received: samples_per_update=-1"),
        ({"batches_per_update": 2, "samples_per_update": 4}, ValueError, "Give one of the two"),
    ],
    ids=str,
)
def test_windows_refuses_at_once(settings, error, message):
    with pytest.raises(error, match=message):
        bigbatch.windows(batches(1), **settings)


def test_windows_needs_batches():
    with pytest.raises(TypeError, match=r"`dataset` must be an iterable of batches. Received: dataset=3"):
        bigbatch.windows(3)


@pytest.mark.parametrize("size", [1, 4, 5, 9, 10, 40])
@pytest.mark.parametrize("kind", ["array", "tensor", "traced"])
def test_split_gives_every_sample_once(kind, size):
    x = np.arange(20).reshape(10, 2)

    def parts(x):
        return list(bigbatch.split({"x": x, "more": [x[:, 0], (x, None)]}, size))

    if kind == "traced":
        signature = [tf.TensorSpec([10, 2], tf.int64)]
        found = tf.function(lambda x: [part["more"][1][0] for part, _ in parts(x)], input_signature=signature)(x)
        pieces = [piece.numpy() for piece in found]
    else:
        found = parts(tf.constant(x) if kind == "tensor" else x)
        assert all(len(np.array(part["x"])) == len(np.array(part["more"][0])) == number for part, number in found)
        assert all(part["more"][1][1] is None for part, _ in found)
        pieces = [np.array(part["x"]) for part, _ in found]
    assert [len(piece) for piece in pieces] == [size] * (10 // size) + [10 % size] * (10 % size > 0)
    np.testing.assert_array_equal(np.concatenate(pieces), x)


def test_split_keeps_arrays_arrays_and_copies_nothing():
    x = np.arange(10)
    assert all(np.shares_memory(part, x) for part, _ in bigbatch.split(x, 3))


def test_split_ragged_and_sparse():
    ragged = tf.ragged.constant([[1], [], [2, 3], [4]])
    sparse = tf.SparseTensor([[0, 0], [1, 1], [3, 0], [3, 1]], [1, 2, 3, 4], [4, 2])
    parts = list(bigbatch.split((ragged, sparse), 3))
    assert [size for _, size in parts] == [3, 1]
    assert parts[1][0][0].to_list() == [[4]]
    assert tf.sparse.to_dense(parts[0][0][1]).numpy().tolist() == [[1, 0], [0, 2], [0, 0]]
    assert tf.sparse.to_dense(parts[1][0][1]).numpy().tolist() == [[3, 4]]


@pytest.mark.parametrize(
    ("batch", "size", "error", "message"),
    [
        (np.ones(3), 0, ValueError, "Received: micro_batch_size=0"),
        (np.ones(3), "auto", TypeError, "Received: micro_batch_size='auto'"),
        ((np.ones(3), np.ones(4)), 2, bigbatch.AccumulationError, r"Received: first dimensions \[3, 4\]"),
        ((np.ones(3), 1.0), 2, bigbatch.AccumulationError, "Received: a scalar"),
        ((), 2, bigbatch.AccumulationError, "must hold at least one tensor"),
    ],
    ids=["zero", "text", "unequal", "scalar", "empty"],
)
def test_split_refuses_at_once(batch, size, error, message):
    with pytest.raises(error, match=message):
        bigbatch.split(batch, size)


def test_split_refuses_an_unknown_number_of_samples():
    function = tf.function(lambda x: bigbatch.split(x, 2), input_signature=[tf.TensorSpec([None], tf.float32)])
    with pytest.raises(WHILE_TRACING, match=r"or loop over `tf.range` inside of it"):
        function.get_concrete_function()
