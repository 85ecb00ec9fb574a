"""An embedding of 500,000 x 64, of which a micro-batch touches a thousand rows."""

import numpy as np
from tensorflow import keras

from workloads.cnn import count, loss, loss_sum  # noqa: F401

SIZE, ROWS, WIDTH, LENGTH = 32, 500_000, 64, 32
layers = keras.layers


def make():
    inputs = keras.Input((LENGTH,), dtype="int32")
    hidden = layers.GlobalAveragePooling1D()(layers.Embedding(ROWS, WIDTH)(inputs))
    return keras.Model(inputs, layers.Dense(10)(layers.Dense(64, activation="relu")(hidden)))


def data(number):
    rng = np.random.default_rng(0)
    return rng.integers(0, ROWS, size=(number, LENGTH)).astype("int32"), rng.integers(0, 10, number).astype("int32")
