"""Any model that `fit` trains: built or not, of any kind, with its own `train_step`."""

from functools import cache

import keras
import numpy as np
import pytest
import tensorflow as tf
from gan import Gan
from oracle import BATCH_SIZE, NUM_SAMPLES, SIZES, assert_same, distance, fit_arrays, snapshot, train, update_size
from oracle import eagerly as run_eagerly

import bigbatch

layers = keras.layers
rng = np.random.default_rng(4)
X, Y = rng.normal(size=(NUM_SAMPLES, 6)), rng.normal(size=(NUM_SAMPLES, 2))
FIT = fit_arrays(X, Y)


def stack():
    return [layers.Dense(5, activation="tanh"), layers.Dense(2)]


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.blocks = stack()

    def build(self, input_shape):
        self.blocks[0].build(input_shape)
        self.blocks[1].build((None, 5))

    def call(self, inputs):
        return self.blocks[1](self.blocks[0](inputs))


class OwnTrainStep(Subclassed):
    """As in the Keras guide on customizing `fit`: own loss, own metrics."""

    def __init__(self):
        super().__init__()
        self.loss_tracker = keras.metrics.Mean(name="loss")
        self.mae = keras.metrics.MeanAbsoluteError(name="mae")
        self.loss_fn = keras.losses.MeanSquaredError()

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.loss_fn(y, y_pred)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        self.loss_tracker.update_state(loss)
        self.mae.update_state(y, y_pred)
        return {"loss": self.loss_tracker.result(), "mae": self.mae.result(), "raw": loss, "constant": 3.0}

    @property
    def metrics(self):
        return [self.loss_tracker, self.mae]


class UsesComputeLoss(Subclassed):
    """The other train step of the guide; applies without naming the variables."""

    def train_step(self, data):
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=sample_weight)
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables))
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
            else:
                metric.update_state(y, y_pred)
        return {metric.name: metric.result() for metric in self.metrics}


def compiled(model, build_optimizer=False):
    model.compile(keras.optimizers.Adam(0.1), loss="mse", metrics=["mae"])
    if build_optimizer:
        model.build((None, 6))
        model.optimizer.build(model.trainable_variables)
    return model


def functional():
    inputs = keras.Input((6,))
    outputs = inputs
    for layer in stack():
        outputs = layer(outputs)
    return keras.Model(inputs, outputs)


MODELS = {
    "sequential": lambda: compiled(keras.Sequential([keras.Input((6,)), *stack()])),
    "functional": lambda: compiled(functional()),
    "subclassed": lambda: compiled(Subclassed()),
    "own_train_step": lambda: compiled(OwnTrainStep()),
    "uses_compute_loss": lambda: compiled(UsesComputeLoss(), build_optimizer=True),
    "nested": lambda: compiled(keras.Sequential([keras.Input((6,)), functional(), layers.Dense(2)])),
}


@cache
def whole(name):
    return train(MODELS[name], FIT)


@pytest.mark.parametrize("eagerly", [False, True], ids=["graph", "eager"])
@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("name", MODELS)
def test_equals_the_whole_batch(name, size, eagerly):
    build = run_eagerly(MODELS[name]) if eagerly else MODELS[name]
    ours = train(build, FIT, lambda model: bigbatch.accumulate(model, micro_batch_size=size))
    assert_same(ours, whole(name))


@pytest.mark.parametrize("eagerly", [False, True], ids=["graph", "eager"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_sequential_model_that_is_not_yet_built(when, eagerly):
    def run(size):
        keras.utils.set_random_seed(7)
        model = keras.Sequential(stack())
        if when == "before":
            bigbatch.accumulate(model, micro_batch_size=size)
        model.compile(keras.optimizers.SGD(0.1), loss="mse", metrics=["mae"], run_eagerly=eagerly)
        if when == "after":
            bigbatch.accumulate(model, micro_batch_size=size)
        logs = FIT(model).history
        return model.get_weights(), logs

    weights, logs = run(None)
    ours, our_logs = run(5)
    for a, b in zip(ours, weights, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10)
    np.testing.assert_allclose(our_logs["loss"], logs["loss"], rtol=1e-10)
    np.testing.assert_allclose(our_logs["mae"], logs["mae"], rtol=1e-10)
    assert logs["loss"][1] < logs["loss"][0]


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
def test_a_gan_applies_each_optimizer_once(size):
    """Both gradients belong to the weights before the update (docs/exactness.md)."""
    keras.utils.set_random_seed(7)
    ours, reference = Gan(), Gan()
    reference.set_weights(ours.get_weights())
    before = snapshot(reference.weights)
    for gan in (ours, reference):
        gan.compile(keras.optimizers.Adam(0.1), keras.optimizers.SGD(0.1, momentum=0.9))
    bigbatch.accumulate(ours, micro_batch_size=size)
    logs = ours.fit(X[:BATCH_SIZE], Y[:BATCH_SIZE], batch_size=BATCH_SIZE, verbose=0).history

    with tf.GradientTape(persistent=True) as tape:
        d_loss, g_loss = reference.losses_of(X[:BATCH_SIZE], Y[:BATCH_SIZE])
    for optimizer, loss, part in (
        (reference.d_optimizer, d_loss, reference.discriminator),
        (reference.g_optimizer, g_loss, reference.generator),
    ):
        optimizer.apply(tape.gradient(loss, part.trainable_weights), part.trainable_weights)

    moved = max(np.abs(a - b).max() for a, b in zip(before, snapshot(reference.weights)))
    assert moved > 0.01
    assert distance(snapshot(ours.weights), snapshot(reference.weights), moved) < 1e-10
    np.testing.assert_allclose([logs["d_loss"][0], logs["g_loss"][0]], [d_loss, g_loss], rtol=1e-10)
    assert int(ours.d_optimizer.iterations) == int(ours.g_optimizer.iterations) == 1


def test_a_variable_without_gradient_is_left_alone():
    class HalfUsed(Subclassed):
        def build(self, input_shape):
            super().build(input_shape)
            self.unused = self.add_weight(shape=(3,), initializer="ones")

    build = lambda: compiled(HalfUsed())  # noqa: E731
    with pytest.warns(UserWarning, match="Gradients do not exist"):
        reference = train(build, FIT)
    with pytest.warns(UserWarning, match="Gradients do not exist"):
        ours = train(build, FIT, lambda model: bigbatch.accumulate(model, micro_batch_size=5))
    assert_same(ours, reference)


def test_the_update_moves_by_the_gradient_of_the_whole_batch():
    """One update of plain SGD shows the gradient itself, against a tape on the whole batch."""
    keras.utils.set_random_seed(7)
    model = functional()
    model.compile(keras.optimizers.SGD(1.0), loss="mse")
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(X) - Y))
    gradients = tape.gradient(loss, model.trainable_variables)
    before = snapshot(model.weights)
    bigbatch.accumulate(model, micro_batch_size=7)
    model.fit(X, Y, batch_size=NUM_SAMPLES, verbose=0)
    for old, new, gradient in zip(before, snapshot(model.weights), gradients, strict=True):
        np.testing.assert_allclose(old - new, gradient, rtol=1e-10, atol=1e-15)


def test_the_reference_itself_moves():
    assert update_size(train(MODELS["functional"], FIT)) > 0.1
