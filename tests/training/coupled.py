"""Models whose loss couples the samples of a batch."""

import keras
import numpy as np
import tensorflow as tf

layers = keras.layers
rng = np.random.default_rng(5)
LEFT, RIGHT = rng.normal(size=(30, 6)), rng.normal(size=(30, 5))
TARGETS = rng.normal(size=(30, 1))


def info_nce(left, right):
    """Every sample's pair against those of all others; one number per sample."""
    similarities = tf.matmul(left, right, transpose_b=True)
    labels = tf.range(tf.shape(similarities)[0])
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, similarities)


class InfoNCE(keras.losses.Loss):
    def call(self, y_true, y_pred):
        return info_nce(*tf.split(y_pred, 2, axis=-1))


def correlation(y_true, y_pred):
    y_true, y_pred = y_true - tf.reduce_mean(y_true), y_pred - tf.reduce_mean(y_pred)
    norms = tf.sqrt(tf.reduce_sum(y_true**2) * tf.reduce_sum(y_pred**2))
    return 1 - tf.reduce_sum(y_true * y_pred) / norms


def compiled(model, loss, **settings):
    model.compile(keras.optimizers.SGD(0.5), loss=loss, **settings)
    return model


def pairs(*more, **settings):
    """Two outputs of one network, side by side."""
    parts = [layers.Dense(6, activation="tanh", kernel_regularizer="l2"), *more, layers.Dense(8)]
    return compiled(keras.Sequential([keras.Input((6,)), *parts]), InfoNCE(), **settings)


def correlated(**settings):
    model = keras.Sequential([keras.Input((6,)), layers.Dense(5, activation="tanh"), layers.Dense(1)])
    return compiled(model, correlation, metrics=["mae"], **settings)


def mixed_terms():
    """A loss that couples and one that does not, and a layer that adds its own."""
    inputs = keras.Input((6,))
    hidden = layers.Dense(5, activation="tanh", activity_regularizer="l2")(inputs)
    outputs = {"near": layers.Dense(1, name="near")(hidden), "far": layers.Dense(1, name="far")(hidden)}
    losses = {"near": "mse", "far": correlation}
    return compiled(keras.Model(inputs, outputs), losses, loss_weights={"near": 0.5, "far": 2.0})


class Towers(keras.Model):
    """Two inputs, two outputs, and a loss of its own making."""

    def __init__(self):
        super().__init__()
        self.left = layers.Dense(4, kernel_regularizer="l2")
        self.right = layers.Dense(4)

    def build(self, _):
        self.left.build((None, 6))
        self.right.build((None, 5))

    def call(self, inputs):
        return self.left(inputs[0]), self.right(inputs[1])

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return tf.reduce_mean(info_nce(*y_pred)) + sum(self.losses)


class OwnTowers(Towers):
    """The same in a `train_step` of its own."""

    def train_step(self, data):
        x, _ = data
        with tf.GradientTape() as tape:
            left, right = self(x, training=True)
            loss = tf.reduce_mean(info_nce(left, right)) + sum(self.losses)
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {"loss": loss}


class PartsOnly(Towers):
    """A `train_step` that calls the towers, and never the model."""

    def train_step(self, data):
        (left, right), _ = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(info_nce(self.left(left), self.right(right)))
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {"loss": loss}


# The model, its inputs and its targets.
CASES = {
    "pairs": (pairs, LEFT, TARGETS),
    "eager": (lambda: pairs(run_eagerly=True), LEFT, TARGETS),
    "compiled": (lambda: pairs(jit_compile=True), LEFT, TARGETS),
    "steps_per_execution": (lambda: pairs(steps_per_execution=2), LEFT, TARGETS),
    "correlation": (correlated, LEFT, TARGETS),
    "mixed_terms": (mixed_terms, LEFT, {"near": TARGETS, "far": TARGETS + LEFT[:, :1]}),
    "towers": (lambda: compiled(Towers(), None), (LEFT, RIGHT), TARGETS),
    "own_train_step": (lambda: compiled(OwnTowers(), None), (LEFT, RIGHT), TARGETS),
}
