"""Variables without a gradient: on some micro-batches, on the last one, on all."""

import big_batch
import numpy as np
import pytest
import tensorflow as tf

import bigbatch


def pair():
    return [tf.Variable(np.array([1.0, 2.0]), name="first"), tf.Variable(np.array([3.0, 4.0, 5.0]), name="second")]


def gradient(*values):
    return tf.constant(np.array(values))


PATTERNS = {
    "on_the_last": [True, True, False],
    "on_the_first": [False, True, True],
    "on_all_but_one": [False, True, False],
}


@pytest.mark.parametrize("traced", [False, True], ids=["eager", "traced"])
@pytest.mark.parametrize("optimizer", ["adam", "v1_adam", "sgd", "own"])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_on_some(pattern, optimizer, traced):
    theirs, ours = pair(), pair()
    sizes, values = [3, 2, 1], [gradient(1.0, 0.5, 2.0), gradient(-2.0, 1.0, 3.0), gradient(4.0, 4.0, 4.0)]
    present = [size * value for size, value, there in zip(sizes, values, PATTERNS[pattern]) if there]
    big_batch.OPTIMIZERS[optimizer]().apply_gradients(
        [(gradient(1.0, 1.0), theirs[0]), (tf.add_n(present) / 6.0, theirs[1])]
    )
    accumulator = bigbatch.GradientAccumulator(ours)
    mine = big_batch.OPTIMIZERS[optimizer]()

    def window():
        for size, value, there in zip(sizes, values, PATTERNS[pattern]):
            accumulator.add([gradient(1.0, 1.0), value if there else None], weight=size)
        accumulator.apply(mine)

    (tf.function(window) if traced else window)()
    initial = big_batch.snapshot(pair())
    big_batch.assert_same(big_batch.snapshot(ours), big_batch.snapshot(theirs), initial)


@pytest.mark.parametrize("optimizer", ["adam", "momentum", "v1_adam", "v1_momentum"])
def test_on_all_leaves_the_variable_and_its_slots(optimizer):
    first, second = pair()
    accumulator = bigbatch.GradientAccumulator([first, second])
    mine = big_batch.OPTIMIZERS[optimizer]()
    accumulator.add([gradient(1.0, 1.0), gradient(1.0, 1.0, 1.0)])
    accumulator.apply(mine)
    before, moments = second.numpy(), slots(mine, second)
    assert moments
    accumulator.add([gradient(1.0, 1.0), None])
    accumulator.add([gradient(1.0, 1.0), None])
    assert accumulator.gradients()[1] is None
    moved = first.numpy()
    accumulator.apply(mine)
    np.testing.assert_array_equal(second.numpy(), before)
    for a, b in zip(slots(mine, second), moments):
        np.testing.assert_array_equal(a, b)
    assert (first.numpy() != moved).all()


def slots(optimizer, variable):
    """What the optimizer keeps for this variable, which is the only one of its shape."""
    return [value for value in big_batch.state(optimizer) if value.shape == variable.shape]


def test_a_traced_apply_refuses_other_variables():
    first, second = pair()
    accumulator = bigbatch.GradientAccumulator([first, second])
    optimizer = big_batch.OPTIMIZERS["sgd"]()
    apply = tf.function(lambda: accumulator.apply(optimizer))
    accumulator.add([gradient(1.0, 1.0), None])
    apply()
    before = big_batch.snapshot([first, second])
    accumulator.add([gradient(1.0, 1.0), gradient(1.0, 1.0, 1.0)])
    with pytest.raises(tf.errors.InvalidArgumentError, match="for the same variables as when it was traced"):
        apply()
    for a, b in zip(big_batch.snapshot([first, second]), before):
        np.testing.assert_array_equal(a, b)
    assert accumulator.num_added == 1
    accumulator.apply(optimizer)
    assert (second.numpy() != before[1]).all()


def test_no_gradient_at_all_is_refused():
    variables = pair()
    accumulator = bigbatch.GradientAccumulator(variables)
    accumulator.add([None, None])
    with pytest.raises(bigbatch.AccumulationError, match="Received: no gradient for any variable"):
        accumulator.apply(big_batch.OPTIMIZERS["sgd"]())
    assert accumulator.num_added == 1
