"""A small transformer that tags padded text: the loss is a mean over words, of which texts have more or fewer."""

import numpy as np
import tensorflow as tf
from tensorflow import keras

from workloads.transformer import LENGTH, SIZE, WORDS, encoded  # noqa: F401

PADDING = -1  # as a tag


def make():
    inputs = keras.Input((LENGTH,), dtype="int32")
    return keras.Model(inputs, keras.layers.Dense(10)(encoded(inputs, dropout=0.0, mask_zero=True)))


def data(number):
    rng = np.random.default_rng(0)
    lengths = np.sort(rng.integers(4, LENGTH + 1, size=number))  # in buckets, as text is
    is_word = np.arange(LENGTH) < lengths[:, None]
    x = np.where(is_word, rng.integers(1, WORDS, size=(number, LENGTH)), 0)
    return x.astype("int32"), np.where(is_word, rng.integers(0, 10, size=(number, LENGTH)), PADDING).astype("int32")


def loss():
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=PADDING)


def loss_sum(x, y, outputs):
    is_word = tf.cast(y != PADDING, outputs.dtype)
    return tf.reduce_sum(is_word * tf.nn.sparse_softmax_cross_entropy_with_logits(tf.maximum(y, 0), outputs))


def count(x, y):
    return tf.cast(tf.math.count_nonzero(y != PADDING), tf.float32)
