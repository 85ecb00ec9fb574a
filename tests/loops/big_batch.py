"""The reference for custom loops: a raw `GradientTape` on the whole batch. It shares no code with the package.

These tests run on Python 3.7 with TensorFlow 1.14 and on all later ones (`make test-matrix`), so nothing here may be
newer. What a version does not have is left out of the lists below.
"""

import json
import os

import numpy as np
import tensorflow as tf

VERSION = tuple(int(number) for number in tf.__version__.split(".")[:2])
RATE = 0.0625  # exact in every precision: some optimizers keep it in float32
ROWS = 7


def keras_optimizers(optimizers):
    return {
        "sgd": lambda: optimizers.SGD(RATE),
        "momentum": lambda: optimizers.SGD(RATE, momentum=0.9, nesterov=True),
        "adam": lambda: optimizers.Adam(RATE),
        "rmsprop": lambda: optimizers.RMSprop(RATE),
        "adagrad": lambda: optimizers.Adagrad(RATE),
        "clipped": lambda: optimizers.SGD(RATE, clipnorm=0.1),
    }


def v1_optimizers():
    train = tf.compat.v1.train
    return {
        "v1_sgd": lambda: train.GradientDescentOptimizer(RATE),
        "v1_momentum": lambda: train.MomentumOptimizer(RATE, 0.9),
        "v1_adam": lambda: train.AdamOptimizer(RATE),
        "v1_adagrad": lambda: train.AdagradOptimizer(RATE),
        "v1_rmsprop": lambda: train.RMSPropOptimizer(RATE),
        "v1_ftrl": lambda: train.FtrlOptimizer(RATE, l1_regularization_strength=0.01),
    }


class Descent:
    """Any object with `apply_gradients`."""

    def __init__(self):
        self.variables = []

    def apply_gradients(self, pairs):
        for gradient, variable in pairs:
            if gradient is not None:
                variable.assign_sub(RATE * tf.convert_to_tensor(gradient))


OPTIMIZERS = keras_optimizers(tf.keras.optimizers)
OPTIMIZERS.update(v1_optimizers())
OPTIMIZERS["own"] = Descent
try:
    import tf_keras

    named = keras_optimizers(tf_keras.optimizers)
    OPTIMIZERS.update({"tf_keras_" + name: make for name, make in named.items()})
except ImportError:
    tf_keras = None


def variables(dtype="float64"):
    """A table, a hidden layer and an output, and one variable that no loss depends on."""
    rng = np.random.RandomState(7)
    shapes = {"table": (ROWS, 3), "kernel": (3, 4), "bias": (4,), "scale": (), "unused": (2,)}
    values = {name: rng.normal(size=shape).astype(dtype) for name, shape in shapes.items()}
    return [tf.Variable(value, name=name) for name, value in values.items()]


def data(num_samples, seed=0):
    rng = np.random.RandomState(seed)
    ids = rng.randint(0, ROWS - 2, size=(num_samples, 5))  # duplicates, and two rows that never come
    return tf.constant(ids), tf.constant(rng.normal(size=(num_samples, 4)))


def loss(variables, ids, y):
    table, kernel, bias, scale, _ = variables
    hidden = tf.tanh(tf.matmul(tf.reduce_mean(tf.gather(table, ids), 1), kernel) + bias)
    return tf.reduce_mean(tf.square(scale * hidden - y))


def gradients(variables, ids, y):
    with tf.GradientTape() as tape:
        value = loss(variables, ids, y)
    return tape.gradient(value, variables)


def dense(gradients):
    return [None if gradient is None else tf.convert_to_tensor(gradient) for gradient in gradients]


def train(variables, optimizer, batches):
    """One update per batch, each on the whole of it; `IndexedSlices` densified (Keras squares duplicate rows apart)."""
    for ids, y in batches:
        optimizer.apply_gradients(list(zip(dense(gradients(variables, ids, y)), variables)))


def state(optimizer):
    """The optimizer's variables, other than the learning rate and counters that no update changes."""
    owned = optimizer.variables
    return [variable.numpy() for variable in (owned() if callable(owned) else owned)]


def snapshot(variables):
    return [variable.numpy() for variable in variables]


def assert_same(ours, theirs, initial, tolerance=1e-10):
    """Relative to the update; and the reference must have moved."""
    size = max(np.abs(a - b).max() for a, b in zip(theirs, initial))
    assert size > 1e-6
    error = max(np.abs(a - b).max() for a, b in zip(ours, theirs)) / size
    assert error < tolerance
    record(error)


def record(error):
    """Leaves the measured error of a test for `benchmarks/exactness.py`."""
    path = os.environ.get("BIGBATCH_ERRORS")
    if path:
        with open(path, "a") as file:
            test = os.environ["PYTEST_CURRENT_TEST"].split(" ")[0]
            file.write(json.dumps({"test": test, "error": float(error)}) + "\n")
