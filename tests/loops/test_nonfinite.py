"""Infinities and NaNs: propagated, skipped with their update or their micro-batch, or refused."""

import big_batch
import numpy as np
import pytest
import tensorflow as tf

import bigbatch

GOOD, OTHER = np.array([1.0, -2.0]), np.array([3.0, 1.0])
BAD = {"inf": np.array([1.0, np.inf]), "nan": np.array([np.nan, 1.0])}
WRAPS = {"eager": lambda function: function, "traced": tf.function}
if big_batch.VERSION >= (2, 5):
    WRAPS["compiled"] = lambda function: tf.function(function, jit_compile=True)
every_wrap = pytest.mark.parametrize("wrap", sorted(WRAPS))
every_bad = pytest.mark.parametrize("bad", sorted(BAD))


class Loop:
    def __init__(self, nonfinite, wrap, optimizer="sgd"):
        self.variable = tf.Variable(np.array([1.0, 1.0]), name="weights")
        self.optimizer = big_batch.OPTIMIZERS[optimizer]()
        self.accumulator = bigbatch.GradientAccumulator([self.variable], nonfinite=nonfinite)
        self.add = WRAPS[wrap](lambda gradient, weight: self.accumulator.add([gradient], weight=weight))
        self.apply = WRAPS[wrap](lambda: self.accumulator.apply(self.optimizer))

    def window(self, *gradients):
        for weight, gradient in enumerate(gradients, start=1):
            self.add(tf.constant(gradient), tf.constant(weight))
        assert self.accumulator.num_added == len(gradients)
        self.apply()
        assert self.accumulator.num_added == 0
        return self.variable.numpy()


@every_wrap
@every_bad
def test_propagate(bad, wrap):
    assert not np.isfinite(Loop("propagate", wrap).window(GOOD, BAD[bad])).all()


@every_wrap
@pytest.mark.parametrize("optimizer", ["sgd", "adam", "v1_adam", "own"])
@every_bad
def test_skip_update(bad, wrap, optimizer):
    loop = Loop("skip_update", wrap, optimizer)
    assert loop.window(GOOD, BAD[bad], GOOD).tolist() == [1.0, 1.0]
    plain = Loop("propagate", "eager", optimizer)
    np.testing.assert_allclose(loop.window(GOOD, OTHER), plain.window(GOOD, OTHER), rtol=1e-14)


@every_wrap
@pytest.mark.parametrize("optimizer", ["sgd", "adam", "v1_adam", "own"])
@every_bad
def test_skip_micro_batch(bad, wrap, optimizer):
    loop = Loop("skip_micro_batch", wrap, optimizer)
    moved = loop.window(GOOD, BAD[bad], OTHER)
    plain = Loop("propagate", "eager", optimizer)
    plain.accumulator.add([tf.constant(GOOD)], weight=1)
    plain.accumulator.add([tf.constant(OTHER)], weight=3)
    plain.apply()
    np.testing.assert_allclose(moved, plain.variable.numpy(), rtol=1e-14)


@every_wrap
@pytest.mark.parametrize("optimizer", ["sgd", "adam", "v1_adam", "own"])
def test_skip_micro_batch_makes_no_update_of_nothing(wrap, optimizer):
    loop = Loop("skip_micro_batch", wrap, optimizer)
    assert loop.window(BAD["inf"], BAD["nan"]).tolist() == [1.0, 1.0]
    assert loop.window(GOOD, OTHER).tolist() != [1.0, 1.0]


def test_a_skipped_update_does_not_count():
    loop = Loop("skip_update", "eager", "adam")
    loop.window(BAD["inf"])
    loop.window(GOOD)
    assert int(loop.optimizer.iterations.numpy()) == 1


@every_bad
def test_raise(bad):
    loop = Loop("raise", "eager")
    loop.add(tf.constant(GOOD), 1)
    with pytest.raises(bigbatch.AccumulationError, match="Received: an infinity or NaN in the gradient of `weights"):
        loop.add(tf.constant(BAD[bad]), 1)
    assert (loop.accumulator.num_added, loop.accumulator.weight) == (1, 1.0)
    np.testing.assert_array_equal(loop.accumulator.gradients()[0].numpy(), GOOD)


@every_bad
def test_raise_traced(bad):
    loop = Loop("raise", "traced")
    loop.add(tf.constant(GOOD), tf.constant(1))
    with pytest.raises(tf.errors.InvalidArgumentError, match="gradients must be finite"):
        loop.add(tf.constant(BAD[bad]), tf.constant(1))
    assert (loop.accumulator.num_added, loop.accumulator.weight) == (1, 1.0)
    np.testing.assert_array_equal(loop.accumulator.gradients()[0].numpy(), GOOD)


@every_bad
def test_rows_are_looked_at_too(bad):
    table = tf.Variable(np.ones((4, 2)))
    accumulator = bigbatch.GradientAccumulator([table], nonfinite="skip_micro_batch")
    accumulator.add([tf.IndexedSlices(tf.constant([GOOD]), [1])])
    accumulator.add([tf.IndexedSlices(tf.constant([BAD[bad]]), [2])])
    (mean,) = accumulator.gradients()
    assert mean.indices.numpy().tolist() == [1]


def loss_scaling():
    """A loss-scale optimizer, and how it shows its scale."""
    inner = tf.keras.optimizers.SGD(big_batch.RATE)
    if hasattr(tf.keras.optimizers, "LossScaleOptimizer"):
        optimizer = tf.keras.optimizers.LossScaleOptimizer(inner, initial_scale=8.0)
        return optimizer, lambda: float(optimizer.dynamic_scale.numpy()), lambda gradient: 8.0 * gradient
    optimizer = tf.keras.mixed_precision.LossScaleOptimizer(inner, initial_scale=8.0)
    # It expects gradients that the loop has unscaled.
    return optimizer, lambda: float(optimizer.loss_scale.numpy()), lambda gradient: gradient


# TensorFlow has no such optimizer before.
if big_batch.VERSION >= (2, 4):

    @pytest.mark.parametrize("nonfinite", ["propagate", "skip_update", "skip_micro_batch"])
    @pytest.mark.parametrize("wrap", ["eager", "traced"])
    def test_under_a_loss_scale_optimizer(wrap, nonfinite):
        optimizer, scale, scaled = loss_scaling()
        variable = tf.Variable(np.array([1.0, 1.0], "float32"), name="weights")
        accumulator = bigbatch.GradientAccumulator([variable], nonfinite=nonfinite)

        def window(*gradients):
            for gradient in gradients:
                accumulator.add([tf.constant(scaled(gradient).astype("float32"))])
            WRAPS[wrap](lambda: accumulator.apply(optimizer))()
            return variable.numpy()

        optimizer.build([variable])
        assert window(BAD["inf"], BAD["nan"]).tolist() == [1.0, 1.0]
        assert scale() == 4.0  # every micro-batch overflowed: the scale must come down, or it never ends
        scaled = (lambda gradient: 4.0 * gradient) if scaled(1.0) != 1.0 else scaled
        moved = window(GOOD, BAD["inf"])
        if nonfinite == "skip_micro_batch":
            np.testing.assert_allclose(moved, 1 - big_batch.RATE * GOOD, rtol=1e-6)
            assert scale() == 4.0
        else:
            assert moved.tolist() == [1.0, 1.0]
            assert scale() == 2.0

    def test_raise_under_a_loss_scale_optimizer():
        optimizer, scale, scaled = loss_scaling()
        variable = tf.Variable(np.array([1.0, 1.0], "float32"), name="weights")
        accumulator = bigbatch.GradientAccumulator([variable], nonfinite="raise")
        accumulator.add([tf.constant(scaled(GOOD).astype("float32"))])
        with pytest.raises(bigbatch.AccumulationError, match="gradients must be finite"):
            accumulator.add([tf.constant(BAD["inf"].astype("float32"))])
        accumulator.apply(optimizer)
        np.testing.assert_allclose(variable.numpy(), 1 - big_batch.RATE * GOOD, rtol=1e-6)
        assert scale() == 8.0
