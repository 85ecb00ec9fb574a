"""A file of targets for the command line, as a user writes them. It does things when it is imported, so it is text."""

MODELS = """
import os

import keras
import numpy as np
import tensorflow as tf

print("what a user prints")
os.system("echo what a child prints")
x, y = np.random.default_rng(1).normal(size=(32, 8)).astype("float32"), np.ones((32, 1), "float32")


def compiled(*layers):
    model = keras.Sequential([keras.Input((8,)), *layers, keras.layers.Dense(1)])
    model.compile("sgd", loss="mse")
    return model


def dense():
    return compiled(), x, y


def dataset():
    return compiled(), tf.data.Dataset.from_tensor_slices((x, y)).batch(16)


def normalised():
    return compiled(keras.layers.BatchNormalization(name="norm_of_mine")), x, y


def huge():
    return compiled(keras.layers.Dense(1000), keras.layers.Dense(4000)), x, y


def prints_in_an_update():
    model = compiled(keras.layers.Lambda(lambda x: (os.system("echo what an update prints"), x)[1]))
    return model, x, y


def fails():
    raise KeyError("what went wrong inside")


def fails_in_keras():
    return compiled(), np.ones((32, 5), "float32"), y


def fails_in_bigbatch():
    import bigbatch

    return bigbatch.accumulate(compiled(), micro_batch_size=0), x, y
"""
