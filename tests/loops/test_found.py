"""What a user found by trying to break it; each of these went wrong once."""

import big_batch
import numpy as np
import pytest
import tensorflow as tf
from modes import WHILE_TRACING

import bigbatch

ONES = np.ones(2)


def one(**settings):
    variable = tf.Variable(ONES, name="weights")
    return variable, bigbatch.GradientAccumulator([variable], **settings)


def mean(accumulator):
    return accumulator.gradients()[0].numpy()


def test_a_refused_traced_apply_does_not_count_or_decay():
    variable, accumulator = one()
    optimizer = tf.keras.optimizers.Adam(0.1)
    if big_batch.VERSION >= (2, 11):
        optimizer = tf.keras.optimizers.AdamW(0.1, weight_decay=0.5)
    apply = tf.function(lambda: accumulator.apply(optimizer))
    accumulator.add([tf.constant(ONES)])
    apply()
    before = [variable.numpy(), *big_batch.state(optimizer)]
    for _ in range(5):
        with pytest.raises(tf.errors.InvalidArgumentError, match="an empty accumulator"):
            apply()
    for a, b in zip([variable.numpy(), *big_batch.state(optimizer)], before):
        np.testing.assert_array_equal(a, b)


KERAS_2 = tf.keras if (2, 4) <= big_batch.VERSION < (2, 16) else big_batch.tf_keras
if KERAS_2 is not None:

    @pytest.mark.parametrize("nonfinite", ["skip_update", "skip_micro_batch"])
    def test_a_static_loss_scale_does_not_skip_by_itself(nonfinite):
        variable, accumulator = one(nonfinite=nonfinite)
        inner = KERAS_2.optimizers.SGD(0.1)
        optimizer = KERAS_2.mixed_precision.LossScaleOptimizer(inner, dynamic=False, initial_scale=128)
        accumulator.add([tf.constant([np.inf, 1.0], tf.float64)])
        accumulator.apply(optimizer)
        np.testing.assert_array_equal(variable.numpy(), ONES)


@pytest.mark.parametrize("weights", [(0.1, 0.7), (2.0**24 + 1, 3.0)], ids=str)
def test_traced_numbers_keep_their_precision(weights):
    _, accumulator = one()

    @tf.function
    def add():
        for weight in weights:
            accumulator.add([tf.constant(weight * ONES)], weight=weight)

    add()
    exact = sum(weight**2 for weight in weights) / sum(weights)
    np.testing.assert_allclose(mean(accumulator), exact * ONES, rtol=1e-14)


@pytest.mark.parametrize("traced", [False, True], ids=["eager", "traced"])
def test_what_weighs_nothing_adds_nothing(traced):
    """The mean over no valid token is 0/0."""
    _, accumulator = one()
    add = lambda gradient, weight: accumulator.add([gradient], weight=weight)  # noqa: E731
    add = tf.function(add) if traced else add
    add(tf.constant(3 * ONES), tf.constant(2.0))
    add(tf.constant(np.nan * ONES), tf.constant(0.0))
    np.testing.assert_array_equal(mean(accumulator), 3 * ONES)


if big_batch.VERSION >= (2, 16):

    def test_an_optimizer_is_built_once():
        built = []

        class Counting(tf.keras.optimizers.SGD):
            def build(self, variables):
                built.append(1)
                super().build(variables)

        _, accumulator = one(nonfinite="skip_update")
        optimizer = Counting(0.1)
        for _ in range(3):
            accumulator.add([tf.constant(ONES)])
            accumulator.apply(optimizer)
        assert len(built) == 1


def test_no_mean_of_what_was_skipped():
    _, accumulator = one(nonfinite="skip_micro_batch")
    accumulator.add([tf.constant(np.nan * ONES)])
    assert accumulator.gradients() == [None]
    assert accumulator.num_added == 1


def test_windows_of_a_dataset_cannot_be_unrolled():
    dataset = tf.data.Dataset.range(4)

    @tf.function
    def function():
        for window in bigbatch.windows(dataset, batches_per_update=2):
            for _ in window:
                pass

    with pytest.raises(WHILE_TRACING, match="must know where a dataset ends"):
        function()


@pytest.mark.parametrize("traced", [False, True], ids=["eager", "traced"])
def test_weights_of_all_types(traced):
    _, accumulator = one()

    def add(weight):
        function = lambda weight: accumulator.add([tf.constant(ONES)], weight=weight)  # noqa: E731
        (tf.function(function) if traced else function)(weight)

    add(tf.cast(3, tf.bfloat16))
    add(tf.constant(3, tf.uint8))
    assert accumulator.weight == 6.0
    for refused in (tf.constant(True), tf.constant("3"), tf.constant(1j)):
        with pytest.raises(TypeError, match="`weight` must be one number"):
            add(refused)
    assert accumulator.num_added == 2


def test_made_by_the_first_call_of_a_function():
    variable = tf.Variable(ONES)
    optimizer = big_batch.OPTIMIZERS["own"]()
    made = []

    @tf.function
    def update(gradient):
        if not made:
            made.append(bigbatch.GradientAccumulator([variable]))
        made[0].add([gradient])
        made[0].apply(optimizer)

    update(tf.constant(ONES))
    update(tf.constant(ONES))
    np.testing.assert_allclose(variable.numpy(), (1 - 2 * big_batch.RATE) * ONES)


def test_split_takes_what_looks_like_an_array():
    class Table:
        shape = (5, 2)

        def __getitem__(self, rows):
            return list(range(5))[rows]

    assert list(bigbatch.split(Table(), 3)) == [([0, 1, 2], 3), ([3, 4], 2)]
