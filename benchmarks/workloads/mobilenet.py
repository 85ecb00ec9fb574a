"""MobileNetV2 on images of 64 x 64, its batch normalisation frozen as for fine-tuning: many small operations."""

import numpy as np
from tensorflow import keras

from workloads.cnn import count, loss, loss_sum  # noqa: F401

SIZE = 8
layers = keras.layers


def make():
    model = keras.applications.MobileNetV2((64, 64, 3), weights=None, classes=10, classifier_activation=None)
    for layer in model.layers:
        if isinstance(layer, layers.BatchNormalization):
            layer.trainable = False
    return model


def data(number):
    rng = np.random.default_rng(0)
    return rng.normal(size=(number, 64, 64, 3)).astype("float32"), rng.integers(0, 10, number).astype("int32")
