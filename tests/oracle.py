"""The reference: plain Keras on whole batches. It shares no code with the package."""

import json
import os
from dataclasses import dataclass

import keras
import numpy as np
import tensorflow as tf

# With batches of 12 out of 30 samples: the last batch of an epoch is smaller.
NUM_SAMPLES, BATCH_SIZE = 30, 12
SIZES = {"one": 1, "divisor": 4, "ragged": 5, "tail_of_one": 11, "whole": 12, "larger": 40}


@dataclass
class Trained:
    initial: list
    weights: list
    optimizer: list
    logs: dict


def snapshot(variables):
    return [variable.numpy() for variable in variables]


def state_of(model, initial, logs):
    optimizers = [value for value in vars(model).values() if isinstance(value, keras.optimizers.Optimizer)]
    return Trained(
        initial=initial,
        weights=snapshot(model.weights),
        optimizer=[variable.numpy() for optimizer in optimizers for variable in optimizer.variables],
        logs=logs,
    )


def train(build, fit, accumulate=None):
    """Builds, trains and returns what there is to compare."""
    keras.utils.set_random_seed(7)
    model = build()
    if not model.built:
        model.build((None, 6))
    assert {variable.dtype for variable in model.trainable_variables} == {"float64"}
    initial = snapshot(model.weights)
    if accumulate is not None:
        accumulate(model)
    return state_of(model, initial, fit(model).history)


def eagerly(build):
    """The same model, that Keras runs without tracing."""

    def eager():
        model = build()
        model.run_eagerly = True
        return model

    return eager


def fit_arrays(x, y, **arguments):
    settings = {"batch_size": BATCH_SIZE, "epochs": 2, "shuffle": False, "verbose": 0} | arguments
    return lambda model: model.fit(x, y, **settings)


def one_update(model, x, y, sample_weight=None):
    """One update by hand on the whole batch; returns its gradients."""
    with tf.GradientTape() as tape:
        loss = model.compute_loss(x, y, model(x, training=True), sample_weight)
    gradients = tape.gradient(loss, model.trainable_variables)
    model.optimizer.apply([tf.convert_to_tensor(gradient) for gradient in gradients], model.trainable_variables)
    return gradients


def distance(ours, theirs, scale):
    """The largest difference, relative to the size of what happened."""
    worst = max(float(np.max(np.abs(a - b), initial=0)) for a, b in zip(ours, theirs, strict=True))
    return worst / scale


def relative_error(ours, theirs):
    """The largest difference of two states, each variable relative to its own size."""
    pairs = zip(ours, theirs, strict=True)
    return max(float(np.max(np.abs(a - b), initial=0)) / max(np.abs(b).max(), 1e-3) for a, b in pairs)


def assert_same_logs(ours, theirs):
    assert ours.keys() == theirs.keys()
    for key, values in theirs.items():
        np.testing.assert_allclose(ours[key], values, rtol=1e-10, err_msg=key)


def update_size(trained):
    return max(float(np.max(np.abs(a - b), initial=0)) for a, b in zip(trained.initial, trained.weights, strict=True))


def record(error):
    """Leaves the measured error of a test for `benchmarks/exactness.py`."""
    if path := os.environ.get("BIGBATCH_ERRORS"):
        with open(path, "a") as file:
            file.write(json.dumps({"test": os.environ["PYTEST_CURRENT_TEST"].split(" ")[0], "error": error}) + "\n")


def assert_same(ours, theirs, tolerance=1e-10):
    """Weights, then optimizer variables, then logs; and the reference must have moved."""
    size = update_size(theirs)
    assert size > 1e-6
    error = distance(ours.weights, theirs.weights, size)
    assert error < tolerance, error
    record(error)
    for mine, reference in zip(ours.optimizer, theirs.optimizer, strict=True):
        np.testing.assert_allclose(
            mine, reference, rtol=tolerance, atol=tolerance * max(1e-12, np.abs(reference).max())
        )
    assert ours.logs.keys() == theirs.logs.keys()
    for name, values in theirs.logs.items():
        np.testing.assert_allclose(ours.logs[name], values, rtol=tolerance, atol=1e-12, err_msg=name)
