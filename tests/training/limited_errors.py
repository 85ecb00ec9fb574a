"""What does not fit at all, under the limit of the environment: `python limited_errors.py CASE FILE`."""

import pickle
import sys
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import bigbatch

rng = np.random.default_rng(3)
SHORT = rng.normal(size=(8, 20, 8)), rng.normal(size=(8, 2))
LONG = rng.normal(size=(2, 20000, 8)), rng.normal(size=(2, 2))  # one sample takes about 55 MiB


def begin():
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    keras.utils.set_random_seed(7)


def recurring():
    """With all that a micro-batch touches: sums of metrics, seeds, moving statistics."""
    inputs = keras.Input((None, 8))
    hidden = inputs
    for _ in range(3):
        hidden = keras.layers.Dense(64, activation="tanh")(hidden)
    hidden = keras.layers.Dropout(0.2, seed=3)(keras.layers.BatchNormalization()(hidden))
    model = keras.Model(inputs, keras.layers.Dense(2)(keras.layers.GlobalAveragePooling1D()(hidden)))
    model.compile(keras.optimizers.Adam(0.01), loss="mse", metrics=["mae"])
    return bigbatch.accumulate(model, micro_batch_size="auto")


def state_of(model):
    of_metrics = {f"metric/{metric.name}/{v.name}": v for metric in model.metrics for v in metric.variables}
    variables = {v.path: v for v in model.variables + model.optimizer.variables} | of_metrics
    return {path: variable.numpy() for path, variable in variables.items()}


def fit(model, *batches, **arguments):
    spec = tf.TensorSpec([None, None, 8], tf.float64), tf.TensorSpec([None, 2], tf.float64)
    dataset = tf.data.Dataset.from_generator(lambda: iter(batches), output_signature=spec)
    model.fit(dataset.apply(tf.data.experimental.assert_cardinality(len(batches))), verbose=0, **arguments)


def failure_of(call):
    try:
        call()
    except (bigbatch.AccumulationError, tf.errors.ResourceExhaustedError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def not_one_sample():
    """A long batch after two short ones; then short ones again. And the same without it."""
    begin()
    model, states = recurring(), []
    states.append(state_of(model))
    note = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: states.append(state_of(model)))
    failed = failure_of(lambda: fit(model, SHORT, SHORT, LONG, callbacks=[note]))
    states.append(state_of(model))
    fit(model, SHORT, SHORT)
    begin()
    undisturbed = recurring()
    fit(undisturbed, SHORT, SHORT)
    fit(undisturbed, SHORT, SHORT)
    return {"failed": failed, "states": states, "after": state_of(model), "undisturbed": state_of(undisturbed)}


def half_an_update():
    """16 MB of weights and 32 of slots. An update takes 33 MiB more while it is applied, and less before."""
    begin()
    model = keras.Sequential([keras.Input((1000,)), keras.layers.Dense(2000, use_bias=False), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.01), loss="mse")
    bigbatch.accumulate(model, micro_batch_size="auto")
    x, y = rng.normal(size=(4, 1000)), rng.normal(size=(4, 1))

    def update():
        model.fit(x, y, batch_size=4, verbose=0)

    proven = failure_of(update)
    ballast = [tf.fill([2**18], float(number)) for number in range(BALLAST)]
    failed = failure_of(update)
    del ballast
    return {"proven": proven, "failed": failed}


BALLAST = 60  # MiB
CASES = {"not_one_sample": not_one_sample, "half_an_update": half_an_update}


def main(name, file):
    Path(file).write_bytes(pickle.dumps(CASES[name]()))


if __name__ == "__main__":
    main(*sys.argv[1:])
