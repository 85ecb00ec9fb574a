"""What XLA does silently, and what is done about it."""

import big_batch
import numpy as np
import pytest
import tensorflow as tf

import bigbatch
from bigbatch.training.tensorflow_private import compiled_by_xla

HAS_XLA = big_batch.VERSION >= (2, 5)


def seen(**options):
    found = []

    @tf.function(**options)
    def function():
        found.append(compiled_by_xla())
        return tf.constant(0)

    function()
    return found[-1]


def test_tracing_for_xla_is_recognised():
    assert not compiled_by_xla()
    assert not seen()
    if HAS_XLA:
        assert seen(jit_compile=True)


if HAS_XLA:

    def test_raise_is_refused_where_assertions_are_dropped():
        variable = tf.Variable(np.ones(2))
        accumulator = bigbatch.GradientAccumulator([variable], nonfinite="raise")
        add = tf.function(lambda gradient: accumulator.add([gradient]), jit_compile=True)
        with pytest.raises(bigbatch.AccumulationError, match="needs assertions, which XLA drops"):
            add(tf.ones(2, tf.float64))

    def test_rows_are_handed_over_dense():
        table = tf.Variable(np.zeros((4, 2)))
        accumulator = bigbatch.GradientAccumulator([table])

        @tf.function(jit_compile=True)
        def update():
            accumulator.add([tf.IndexedSlices(tf.ones((3, 2), tf.float64), [1, 1, 3])], weight=2)
            accumulator.apply(big_batch.Descent())

        update()
        np.testing.assert_allclose(table.numpy()[:, 0] / -big_batch.RATE, [0, 2, 0, 1])
