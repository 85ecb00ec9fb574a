"""26 million parameters in 25 dense layers: gradients are large, activations are not."""

import numpy as np
from tensorflow import keras

from workloads.cnn import count, loss, loss_sum  # noqa: F401

SIZE = 16
layers = keras.layers


def make():
    hidden = [layers.Dense(1024, activation="relu") for _ in range(24)]
    return keras.Sequential([keras.Input((1024,)), *hidden, layers.Dense(1024)])


def data(number):
    rng = np.random.default_rng(0)
    return rng.normal(size=(number, 1024)).astype("float32"), rng.integers(0, 1024, number).astype("int32")
