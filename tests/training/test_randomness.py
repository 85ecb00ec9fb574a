"""Dropout draws fresh noise per micro-batch, and its state is as saved as ever."""

import keras
import numpy as np
import tensorflow as tf

import bigbatch

layers = keras.layers


class Noise(layers.Layer):
    """Remembers what its dropout let through."""

    def __init__(self):
        super().__init__()
        self.dropout = layers.Dropout(0.5, seed=3)
        self.seen = []

    def call(self, inputs, training=None):
        outputs = self.dropout(tf.ones_like(inputs), training=training)
        self.seen.append(outputs)
        return inputs * outputs


def build():
    inputs = keras.Input((6,))
    noise = Noise()
    model = keras.Model(inputs, layers.Dense(2)(noise(inputs)))
    model.compile(keras.optimizers.SGD(0.1), loss="mse", run_eagerly=True)
    noise.seen.clear()
    return model, noise


def fit(model, epochs=1):
    model.fit(np.ones((12, 6)), np.ones((12, 2)), batch_size=12, epochs=epochs, verbose=0)


def test_each_micro_batch_draws_its_own():
    model, noise = build()
    bigbatch.accumulate(model, micro_batch_size=4)
    fit(model)
    draws = [draw.numpy() for draw in noise.seen[1:]]  # the first belongs to the survey
    assert [draw.shape for draw in draws] == [(4, 6)] * 3
    assert len({draw.tobytes() for draw in draws}) == 3


def test_the_survey_does_not_advance_the_seed():
    model, noise = build()
    bigbatch.accumulate(model, micro_batch_size=4)
    fit(model)
    assert np.array_equal(noise.seen[0], noise.seen[1])
    assert noise.dropout.seed_generator.state.numpy().tolist() == [3, 3]


def test_the_seed_after_save_and_load_is_that_of_plain_keras(tmp_path):
    """Keras does not put the state of a layer's seed into a `.keras` file; accumulation neither adds nor takes."""

    def state_after_loading(size):
        model = keras.Sequential([keras.Input((6,)), layers.Dropout(0.5, seed=3), layers.Dense(2)])
        model.compile(keras.optimizers.SGD(0.1), loss="mse")
        bigbatch.accumulate(model, micro_batch_size=size)
        fit(model)
        model.save(tmp_path / "model.keras")
        return keras.models.load_model(tmp_path / "model.keras").layers[0].seed_generator.state.numpy().tolist()

    assert state_after_loading(5) == state_after_loading(None)


def test_the_seed_goes_on_from_one_fit_to_the_next():
    model = keras.Sequential([keras.Input((6,)), layers.Dropout(0.5, seed=3), layers.Dense(2)])
    model.compile(keras.optimizers.SGD(0.1), loss="mse")
    bigbatch.accumulate(model, micro_batch_size=5)
    fit(model, epochs=2)
    fit(model)
    assert model.layers[0].seed_generator.state.numpy().tolist() == [3, 9]


def test_micro_batches_with_the_same_draws_give_the_same_update():
    """Against a hand-written loop that replays the seeds micro-batch by micro-batch."""
    rng = np.random.default_rng(8)
    x, y = rng.normal(size=(12, 6)), rng.normal(size=(12, 2))
    keras.utils.set_random_seed(7)
    model = keras.Sequential([keras.Input((6,)), layers.Dropout(0.5, seed=3), layers.Dense(2)])
    model.compile(keras.optimizers.SGD(1.0), loss="mse")
    weights = model.get_weights()
    gradients = []
    for start, stop in ((0, 2), (2, 7), (7, 12)):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x[start:stop], training=True) - y[start:stop]))
        gradients.append([(stop - start) / 12 * g for g in tape.gradient(loss, model.trainable_variables)])
    expected = [w - sum(parts) for w, parts in zip(weights, zip(*gradients, strict=True), strict=True)]

    model.layers[0].seed_generator.state.assign([3, 0])
    bigbatch.accumulate(model, micro_batch_size=5)
    model.fit(x, y, batch_size=12, shuffle=False, verbose=0)
    for ours, theirs in zip(model.get_weights(), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-10)
