"""Nothing is applied before every micro-batch has succeeded."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import bigbatch


class FailsBackward(keras.layers.Layer):
    """Gathers a row that is not there, in the backward pass, where an input is large. The operation has no side effect,
    so that nobody waits for it who does not wait for the gradient itself.
    """

    def call(self, inputs):
        @tf.custom_gradient
        def identity(x):
            row = tf.where(tf.reduce_max(tf.abs(x)) > 1e3, 1000, 0)
            return tf.identity(x), lambda dy: dy + 0 * tf.gather(dy, [row])

        return identity(inputs)


def build():
    keras.utils.set_random_seed(0)
    hidden = [keras.layers.Dense(32, activation="tanh") for _ in range(8)]
    inputs = keras.Input((6,))
    model = keras.Model(inputs, keras.Sequential([keras.layers.Dense(6), FailsBackward(), *hidden])(inputs))
    model.compile(keras.optimizers.Adam(0.1), "mse")
    return model


@pytest.mark.parametrize("micro_batch_size", [12, 5], ids=["one", "several"])
@pytest.mark.parametrize("batches_per_update", [1, 2], ids=["batch", "window"])
def test_a_gradient_that_fails_leaves_everything_as_it_was(micro_batch_size, batches_per_update):
    x, y = np.ones((24, 6)), np.ones((24, 32))
    model = bigbatch.accumulate(build(), micro_batch_size=micro_batch_size, batches_per_update=batches_per_update)
    model.fit(x, y, batch_size=12, verbose=0)
    before = [variable.numpy() for variable in [*model.variables, *model.optimizer.variables]]
    x[-1] = 1e6
    batch = slice(12, 24) if batches_per_update == 1 else slice(0, 24)
    with pytest.raises(tf.errors.InvalidArgumentError, match="1000"):
        model.fit(x[batch], y[batch], batch_size=12, shuffle=False, verbose=0)
    after = [variable.numpy() for variable in [*model.variables, *model.optimizer.variables]]
    for old, new in zip(before, after, strict=True):
        np.testing.assert_array_equal(new, old)
    model.fit(np.ones((12, 6)), y[:12], batch_size=12, verbose=0)
    assert not np.array_equal(model.get_weights()[0], before[0])
