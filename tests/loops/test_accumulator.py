"""A window of micro-batches equals one update on the whole batch, for every optimizer and in every mode."""

import big_batch
import numpy as np
import pytest
import tensorflow as tf
from modes import MODES

import bigbatch

# Sizes of the micro-batches of three windows: even, ragged, a tail of one.
WINDOWS = {
    "singles": [[1, 1, 1], [1, 1], [1]],
    "even": [[4, 4, 4], [4, 4, 4], [4]],
    "ragged": [[5, 3, 2], [1, 7, 4], [3, 2]],
    "tail_of_one": [[4, 4, 1], [4, 4, 1], [1]],
    "whole": [[9], [4], [1]],
}


def cut(batch, sizes):
    ends = np.cumsum(sizes)
    return [tuple(leaf[end - size : end] for leaf in batch) for size, end in zip(sizes, ends)]


def run(optimizer, sizes, mode="eager", **settings):
    """Trains twice from the same start; returns both ends and the start."""
    batches = [big_batch.data(sum(window), seed) for seed, window in enumerate(sizes)]
    theirs, their_optimizer = big_batch.variables(), big_batch.OPTIMIZERS[optimizer]()
    initial = big_batch.snapshot(theirs)
    big_batch.train(theirs, their_optimizer, batches)
    ours, our_optimizer = big_batch.variables(), big_batch.OPTIMIZERS[optimizer]()
    accumulator = bigbatch.GradientAccumulator(ours, **settings)
    update = MODES[mode](ours, accumulator, our_optimizer)
    for batch, window in zip(batches, sizes):
        update(cut(batch, window))
    assert accumulator.num_added == 0
    assert accumulator.weight == 0
    return (ours, our_optimizer), (theirs, their_optimizer), initial


# Optimizers that move only the rows they are given; test_sparse.py compares them with their own update of rows.
LAZY = {"v1_momentum", "v1_rmsprop", "v1_ftrl"} | ({"momentum"} if big_batch.VERSION < (2, 11) else set())


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("optimizer", sorted(set(big_batch.OPTIMIZERS) - LAZY))
def test_optimizers(optimizer, mode):
    (ours, our_optimizer), (theirs, their_optimizer), initial = run(optimizer, WINDOWS["ragged"], mode)
    big_batch.assert_same(big_batch.snapshot(ours), big_batch.snapshot(theirs), initial)
    for mine, reference in zip(big_batch.state(our_optimizer), big_batch.state(their_optimizer)):
        np.testing.assert_allclose(mine, reference, rtol=1e-10, atol=1e-15)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("sizes", WINDOWS)
def test_sizes(sizes, mode):
    (ours, _), (theirs, _), initial = run("adam", WINDOWS[sizes], mode)
    big_batch.assert_same(big_batch.snapshot(ours), big_batch.snapshot(theirs), initial)


@pytest.mark.parametrize("nonfinite", ["skip_update", "skip_micro_batch", "raise"])
@pytest.mark.parametrize("optimizer", ["adam", "v1_adam"])
def test_finite_gradients_are_not_touched(optimizer, nonfinite):
    (ours, _), (theirs, _), initial = run(optimizer, WINDOWS["ragged"], "eager", nonfinite=nonfinite)
    big_batch.assert_same(big_batch.snapshot(ours), big_batch.snapshot(theirs), initial)


def test_gradients_are_those_of_the_batch():
    variables = big_batch.variables()
    batch = big_batch.data(10)
    accumulator = bigbatch.GradientAccumulator(variables)
    for part in cut(batch, [5, 3, 2]):
        accumulator.add(big_batch.gradients(variables, *part), weight=len(part[0].numpy()))
    assert (accumulator.num_added, accumulator.weight) == (3, 10.0)
    expected = big_batch.dense(big_batch.gradients(variables, *batch))
    for mine, reference in zip(big_batch.dense(accumulator.gradients()), expected):
        if reference is None:
            assert mine is None
        else:
            np.testing.assert_allclose(mine.numpy(), reference.numpy(), rtol=1e-12, atol=1e-16)


def test_a_mean_of_means_is_caught():
    variables = big_batch.variables()
    batch = big_batch.data(10)
    accumulator = bigbatch.GradientAccumulator(variables)
    for part in cut(batch, [5, 3, 2]):
        accumulator.add(big_batch.gradients(variables, *part))
    expected = big_batch.gradients(variables, *batch)[1].numpy()
    error = np.abs(accumulator.gradients()[1].numpy() - expected).max() / np.abs(expected).max()
    assert error > 1e-2


def test_a_weight_of_k_is_k_copies():
    variables = big_batch.variables()
    first, second = (big_batch.gradients(variables, *big_batch.data(4, seed)) for seed in (0, 1))
    weighted, copied = (bigbatch.GradientAccumulator(variables) for _ in range(2))
    weighted.add(first, weight=3)
    weighted.add(second)
    for gradients in (first, second, first, first):
        copied.add(gradients)
    for a, b in zip(big_batch.dense(weighted.gradients()), big_batch.dense(copied.gradients())):
        if a is not None:
            np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-14)


@pytest.mark.parametrize("weight", [2, 2.0, np.float32(2), np.int64(2), tf.constant(2), tf.constant(2.0)], ids=repr)
def test_weights_may_be_any_number(weight):
    variables = big_batch.variables()
    accumulator = bigbatch.GradientAccumulator(variables)
    accumulator.add(big_batch.gradients(variables, *big_batch.data(4)), weight=weight)
    assert accumulator.weight == 2.0


def test_a_schedule_advances_once_per_update():
    rates = tf.keras.optimizers.schedules.ExponentialDecay(0.1, decay_steps=1, decay_rate=0.5)
    batches = [big_batch.data(8, seed) for seed in range(3)]
    theirs = big_batch.variables()
    initial = big_batch.snapshot(theirs)
    big_batch.train(theirs, tf.keras.optimizers.SGD(rates), batches)
    ours, optimizer = big_batch.variables(), tf.keras.optimizers.SGD(rates)
    accumulator = bigbatch.GradientAccumulator(ours)
    for batch in batches:
        for part in cut(batch, [3, 3, 2]):
            accumulator.add(big_batch.gradients(ours, *part), weight=len(part[0].numpy()))
        accumulator.apply(optimizer)
    assert int(optimizer.iterations.numpy()) == 3
    big_batch.assert_same(big_batch.snapshot(ours), big_batch.snapshot(theirs), initial)


@pytest.mark.parametrize("optimizer", ["adam", "v1_adam", "own"])
def test_counting_inside_a_function(optimizer):
    """AutoGraph turns the `if` into a `tf.cond`."""
    batch = big_batch.data(10)
    theirs = big_batch.variables()
    initial = big_batch.snapshot(theirs)
    big_batch.train(theirs, big_batch.OPTIMIZERS[optimizer](), [batch])
    ours, mine = big_batch.variables(), big_batch.OPTIMIZERS[optimizer]()
    accumulator = bigbatch.GradientAccumulator(ours)

    @tf.function(input_signature=[tf.TensorSpec([None, 5], tf.int64), tf.TensorSpec([None, 4], tf.float64)])
    def step(ids, y):
        accumulator.add(big_batch.gradients(ours, ids, y), weight=tf.shape(ids)[0])
        if tf.equal(accumulator.num_added, 3):  # `==` compares identities in TensorFlow 1
            accumulator.apply(mine)

    for part in cut(batch, [5, 3, 2]):
        step(*part)
    big_batch.assert_same(big_batch.snapshot(ours), big_batch.snapshot(theirs), initial)


def test_reset_forgets_everything():
    variables = big_batch.variables()
    accumulator = bigbatch.GradientAccumulator(variables)
    first, second = (big_batch.gradients(variables, *big_batch.data(4, seed)) for seed in (0, 1))
    accumulator.add(first, weight=5)
    accumulator.reset()
    assert (accumulator.num_added, accumulator.weight) == (0, 0.0)
    assert accumulator.gradients() == [None] * len(variables)
    accumulator.add(second)
    for mine, reference in zip(big_batch.dense(accumulator.gradients()), big_batch.dense(second)):
        if reference is not None:
            np.testing.assert_allclose(mine.numpy(), reference.numpy(), rtol=1e-14)


def test_reset_traced_forgets_everything():
    variables = big_batch.variables()
    accumulator = bigbatch.GradientAccumulator(variables)
    accumulator.add(big_batch.gradients(variables, *big_batch.data(4)), weight=5)
    tf.function(accumulator.reset)()
    assert accumulator.num_added == 0
    assert all(not part.numpy().any() for part in accumulator.variables)


def test_one_trace_serves_all_windows():
    variables, optimizer = big_batch.variables(), big_batch.OPTIMIZERS["adam"]()
    accumulator = bigbatch.GradientAccumulator(variables)
    traces = []

    @tf.function(input_signature=[tf.TensorSpec([None, 5], tf.int64), tf.TensorSpec([None, 4], tf.float64)])
    def add(ids, y):
        traces.append(1)
        accumulator.add(big_batch.gradients(variables, ids, y), weight=tf.shape(ids)[0])

    for seed in range(6):
        add(*big_batch.data(seed + 1, seed))
        if accumulator.num_added == 2:
            accumulator.apply(optimizer)
    assert len(traces) <= 2  # TensorFlow traces twice where the first trace makes variables


def test_the_accumulator_owns_none_of_the_model():
    variables = big_batch.variables()
    accumulator = bigbatch.GradientAccumulator(variables)
    assert not accumulator.trainable_variables
    assert not {id(variable) for variable in variables} & {id(variable) for variable in accumulator.variables}
