"""bfloat16 and float16 gradients are added up in float32, and handed over in their own precision."""

import big_batch
import numpy as np
import pytest
import tensorflow as tf

import bigbatch


@pytest.mark.parametrize("kind", ["dense", "rows"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_many_small_gradients_are_not_lost(dtype, kind):
    variable = tf.Variable(tf.cast(np.ones((3, 2)), dtype))
    accumulator = bigbatch.GradientAccumulator([variable])
    big, small = tf.cast(np.ones((3, 2)), dtype), tf.cast(np.full((3, 2), 1 / 1024), dtype)
    as_given = (lambda value: tf.IndexedSlices(value, tf.range(3))) if kind == "rows" else tf.identity
    accumulator.add([as_given(big)])
    for _ in range(511):
        accumulator.add([as_given(small)])
    (mean,) = big_batch.dense(accumulator.gradients())
    assert mean.dtype == variable.dtype
    exact = (1 + 511 / 1024) / 512
    np.testing.assert_allclose(
        tf.cast(mean, tf.float64).numpy(), exact, rtol=2.0**-8 if dtype == "bfloat16" else 2.0**-11
    )
    # The control: a sum in the gradients' own precision never grows.
    assert float(tf.cast(big + small, tf.float64)[0, 0]) - 1 < 2 / 1024


def test_large_weights_do_not_overflow():
    variable = tf.Variable(tf.cast(np.ones(2), tf.float16))
    accumulator = bigbatch.GradientAccumulator([variable])
    for _ in range(4):
        accumulator.add([tf.cast([1000.0, 2000.0], tf.float16)], weight=100_000)
    assert accumulator.gradients()[0].numpy().tolist() == [1000.0, 2000.0]
