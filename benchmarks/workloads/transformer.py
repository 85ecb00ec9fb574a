"""A small transformer that classifies texts of one length."""

import numpy as np
from tensorflow import keras

from workloads.cnn import count, loss, loss_sum  # noqa: F401

SIZE, LENGTH, WIDTH, WORDS = 16, 64, 64, 1000
layers = keras.layers


def encoded(inputs, dropout=0.1, **embedding):
    """The sequence of outputs for a sequence of words."""
    hidden = layers.Embedding(WORDS, WIDTH, **embedding)(inputs)
    for _ in range(2):
        attended = layers.MultiHeadAttention(4, WIDTH // 4)(hidden, hidden)
        hidden = layers.LayerNormalization()(layers.Add()([hidden, layers.Dropout(dropout)(attended)]))
        expanded = layers.Dense(WIDTH)(layers.Dense(4 * WIDTH, activation="gelu")(hidden))
        hidden = layers.LayerNormalization()(layers.Add()([hidden, layers.Dropout(dropout)(expanded)]))
    return hidden


def make():
    inputs = keras.Input((LENGTH,), dtype="int32")
    return keras.Model(inputs, layers.Dense(10)(layers.GlobalAveragePooling1D()(encoded(inputs))))


def data(number):
    rng = np.random.default_rng(0)
    return rng.integers(0, WORDS, size=(number, LENGTH)).astype("int32"), rng.integers(0, 10, number).astype("int32")
