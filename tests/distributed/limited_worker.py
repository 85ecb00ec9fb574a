"""One worker with a limit of its own: `bigbatch launch --workers 2 limited_worker.py FOLDER CASE LIMIT_IN_MB ...`.

There is one limit for every worker. Nothing here may import TensorFlow before `limit` is done.
"""

import json
import logging
import os
import pickle
import sys
from pathlib import Path

import numpy as np

import bigbatch

# The length of a sample, the number of samples, and the samples of an update.
CASES = {"fits": (1000, 50, 32), "uneven": (20000, 3, 3), "not_one_sample": (20000, 2, 2)}


def build():
    """Weights of a few kB, and half a kB of activations per layer and position; with everything built."""
    import keras

    parts = [keras.layers.Dense(64, activation="tanh", kernel_regularizer="l2") for _ in range(3)]
    model = keras.Sequential([keras.Input((None, 8)), *parts, keras.layers.GlobalAveragePooling1D()])
    model.add(keras.layers.Dense(2))
    model.compile(keras.optimizers.Adam(0.05), loss="mse", metrics=["mae"])
    model.optimizer.build(model.trainable_variables)
    return model


def fit(name, model):
    import tensorflow as tf

    length, num_samples, batch_size = CASES[name]
    rng = np.random.default_rng(3)
    arrays = rng.normal(size=(num_samples, length, 8)), rng.normal(size=(num_samples, 2))
    return model.fit(tf.data.Dataset.from_tensor_slices(arrays).batch(batch_size), epochs=2, verbose=0).history


def state_of(model):
    return [variable.numpy() for variable in model.variables + model.optimizer.variables]


def begin():
    import keras

    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    keras.utils.set_random_seed(7)


def limit(limits):
    index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
    os.environ |= {"TF_CPU_ALLOCATOR_USE_BFC": "1", "TF_CPU_BFC_MEM_LIMIT_IN_MB": limits[index]}
    return index


def main(folder, name, *limits):
    index = limit(limits)
    bigbatch.wait_for_workers(60)
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()  # before anything else touches TensorFlow
    from limited import Told

    begin()
    with strategy.scope():
        model = bigbatch.accumulate(build(), micro_batch_size="auto")
    told, initial, logs, failed = Told(), state_of(model), {}, ""
    logging.getLogger("bigbatch").addHandler(told)
    try:
        logs = fit(name, model)
    except bigbatch.AccumulationError as error:
        failed = f"{type(error).__name__}: {error}"
    result = {"initial": initial, "state": state_of(model), "logs": logs, "told": told.lines, "failed": failed}
    (Path(folder) / str(index)).write_bytes(pickle.dumps(result))


if __name__ == "__main__":
    sys.path.append(str(Path(__file__).parents[1] / "training"))
    main(*sys.argv[1:])
