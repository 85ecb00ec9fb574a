"""Trains on two replicas with "auto", under the limit of the environment: `python limited_replicas.py ENGINE FILE`."""

import logging
import pickle
import sys
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from limited import Told

import bigbatch

ENGINES = {"one_device": tf.distribute.ReductionToOneDevice, "default": lambda: None}
rng = np.random.default_rng(3)
X, Y = rng.normal(size=(50, 1000, 8)), rng.normal(size=(50, 2))


def build():
    """Weights of a few kB, and half a kB of activations per layer and position."""
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    keras.utils.set_random_seed(7)
    parts = [keras.layers.Dense(64, activation="tanh", kernel_regularizer="l2") for _ in range(3)]
    model = keras.Sequential([keras.Input((1000, 8)), *parts, keras.layers.GlobalAveragePooling1D()])
    model.add(keras.layers.Dense(2))
    model.compile(keras.optimizers.Adam(0.05), loss="mse", metrics=["mae"])
    model.optimizer.build(model.trainable_variables)
    return model


def values(model):
    return [variable.numpy() for variable in model.variables + model.optimizer.variables]


def fit(model):
    """The last batch is not dealt evenly."""
    return model.fit(X, Y, batch_size=33, epochs=2, shuffle=False, verbose=0).history


def main(engine, file):
    [cpu] = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"], cross_device_ops=ENGINES[engine]())
    with strategy.scope():
        model = bigbatch.accumulate(build(), micro_batch_size="auto")
    told, before = Told(), values(model)
    logging.getLogger("bigbatch").addHandler(told)
    result = {"logs": fit(model), "told": told.lines, "before": before, "after": values(model)}
    copies = [strategy.experimental_local_results(variable.value) for variable in model.variables]
    result["copies"] = [[copy.numpy() for copy in each] for each in copies]
    Path(file).write_bytes(pickle.dumps(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
