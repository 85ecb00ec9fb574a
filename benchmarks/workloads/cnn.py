"""Three convolutions on images of 32 x 32: much to compute, little to store."""

import numpy as np
import tensorflow as tf
from tensorflow import keras

SIZE = 16
layers = keras.layers


def make():
    inputs = keras.Input((32, 32, 3))
    hidden = inputs
    for filters in (32, 64, 64):
        hidden = layers.Conv2D(filters, 3, padding="same", activation="relu")(hidden)
        hidden = layers.MaxPooling2D()(hidden)
    return keras.Model(inputs, layers.Dense(10)(layers.Flatten()(hidden)))


def data(number):
    rng = np.random.default_rng(0)
    return rng.normal(size=(number, 32, 32, 3)).astype("float32"), rng.integers(0, 10, number).astype("int32")


def loss():
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def loss_sum(x, y, outputs):
    return tf.reduce_sum(tf.nn.sparse_softmax_cross_entropy_with_logits(y, outputs))


def count(x, y):
    return tf.cast(tf.shape(y)[0], tf.float32)
