"""Models of Keras: a plain loop on every version, and `train_step` where there is one."""

import big_batch
import numpy as np
import pytest
import tensorflow as tf

import bigbatch

X = np.random.RandomState(0).normal(size=(22, 3))
Y = np.random.RandomState(1).normal(size=(22, 2))
KERAS = {"keras": tf.keras}
if big_batch.tf_keras is not None:
    KERAS["tf_keras"] = big_batch.tf_keras
every_keras = pytest.mark.parametrize("keras", sorted(KERAS))


def build(keras, model=None):
    keras.backend.set_floatx("float64")
    layers = keras.layers
    inputs = keras.Input((3,), dtype="float64")
    hidden = layers.Dense(5, activation="tanh", dtype="float64")(inputs)
    outputs = layers.Dense(2, dtype="float64", kernel_regularizer="l2")(hidden)
    made = (model or keras.Model)(inputs, outputs)
    rng = np.random.RandomState(3)
    made.set_weights([rng.normal(size=weight.shape) for weight in made.get_weights()])
    return made


@pytest.fixture(autouse=True)
def restore_floatx():
    yield
    for keras in KERAS.values():
        keras.backend.set_floatx("float32")


def loss_of(model, x, y):
    return tf.reduce_mean(tf.square(model(x, training=True) - y)) + tf.add_n(model.losses)


def gradients(model, x, y):
    with tf.GradientTape() as tape:
        loss = loss_of(model, tf.constant(x), tf.constant(y))
    return tape.gradient(loss, model.trainable_variables)


@every_keras
def test_a_loop_over_windows(keras):
    """Regularizers are part of every micro-batch's loss, and count once."""
    keras = KERAS[keras]
    theirs, optimizer = build(keras), keras.optimizers.Adam(big_batch.RATE)
    initial = theirs.get_weights()
    for start, end in [(0, 12), (12, 22)]:
        pairs = zip(gradients(theirs, X[start:end], Y[start:end]), theirs.trainable_variables)
        optimizer.apply_gradients(list(pairs))
    ours, optimizer = build(keras), keras.optimizers.Adam(big_batch.RATE)
    accumulator = bigbatch.GradientAccumulator(ours.trainable_variables)
    batches = [(X[:5], Y[:5]), (X[5:12], Y[5:12]), (X[12:21], Y[12:21]), (X[21:], Y[21:])]
    for window in bigbatch.windows(batches, batches_per_update=2):
        for x, y in window:
            accumulator.add(gradients(ours, x, y), weight=len(x))
        accumulator.apply(optimizer)
    big_batch.assert_same(ours.get_weights(), theirs.get_weights(), initial)


def with_train_step(keras):
    class Split(keras.Model):
        accumulator = None

        def train_step(self, data):
            for (x, y), size in bigbatch.split(data, 4):
                with tf.GradientTape() as tape:
                    loss = tf.reduce_mean(tf.square(self(x, training=True) - y))
                self.accumulator.add(tape.gradient(loss, self.trainable_variables), weight=size)
            self.accumulator.apply(self.optimizer)
            return {"loss": loss}

    return Split


def with_loop_in_train_step(keras):
    """Keras runs `train_step` without AutoGraph: a loop over an unknown number of samples has its own function."""

    class Looped(keras.Model):
        accumulator = None

        @tf.function
        def update(self, x, y):
            for start in tf.range(0, tf.shape(x)[0], 4):
                with tf.GradientTape() as tape:
                    part = x[start : start + 4], y[start : start + 4]
                    loss = tf.reduce_mean(tf.square(self(part[0], training=True) - part[1]))
                gradients = tape.gradient(loss, self.trainable_variables)
                self.accumulator.add(gradients, weight=tf.shape(part[0])[0])
            self.accumulator.apply(self.optimizer)

        def train_step(self, data):
            self.update(*data)
            return {"updates": self.optimizer.iterations}

    return Looped


if big_batch.VERSION >= (2, 2):

    @every_keras
    def test_a_loop_in_train_step(keras):
        keras = KERAS[keras]
        theirs = build(keras)
        initial = theirs.get_weights()
        optimizer = keras.optimizers.Adam(big_batch.RATE)
        for start, end in [(0, 12), (12, 22)]:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(theirs(X[start:end], training=True) - Y[start:end]))
            pairs = zip(tape.gradient(loss, theirs.trainable_variables), theirs.trainable_variables)
            optimizer.apply_gradients(list(pairs))
        ours = build(keras, with_loop_in_train_step(keras))
        ours.accumulator = bigbatch.GradientAccumulator(ours.trainable_variables)
        ours.compile(keras.optimizers.Adam(big_batch.RATE))
        ours.fit(X, Y, batch_size=12, shuffle=False, verbose=0)
        weights = [variable.numpy() for variable in ours.trainable_variables]
        big_batch.assert_same(weights, theirs.get_weights(), initial)

    @pytest.mark.parametrize("jit_compile", [False, True] if big_batch.VERSION >= (2, 16) else [False])
    @every_keras
    def test_train_step(keras, jit_compile, tmp_path):
        keras = KERAS[keras]
        data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(11, drop_remainder=True)
        theirs = build(keras)
        theirs.layers[-1].kernel_regularizer = None
        initial = theirs.get_weights()
        settings = {"jit_compile": jit_compile} if jit_compile else {}
        optimizer = keras.optimizers.Adam(big_batch.RATE)
        theirs.compile(optimizer, loss="mse", **settings)
        for x, y in data:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(theirs(x, training=True) - y))
            pairs = zip(tape.gradient(loss, theirs.trainable_variables), theirs.trainable_variables)
            optimizer.apply_gradients(list(pairs))
        ours = build(keras, with_train_step(keras))
        ours.accumulator = bigbatch.GradientAccumulator(ours.trainable_variables)
        ours.compile(keras.optimizers.Adam(big_batch.RATE), **settings)
        ours.fit(data, epochs=1, verbose=0)
        big_batch.assert_same(ours.get_weights(), theirs.get_weights(), initial)
        assert len(ours.trainable_variables) == len(theirs.trainable_variables)
        path = str(tmp_path / "model.weights.h5")
        ours.save_weights(path)
        build(keras).load_weights(path)
