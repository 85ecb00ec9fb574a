"""Rounding, chance and overflow are told from mistakes, and hide none."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf
import verified
from verified import SIZE, X, Y, verify

import bigbatch

L = keras.layers


def test_low_precision():
    def build():
        keras.config.set_dtype_policy("mixed_bfloat16")
        return verified.mlp()

    report = verify(build, X, Y)
    assert report.exact
    [cause] = report.causes
    assert cause.kind == "low precision"
    assert "bfloat16" in cause.what


@pytest.mark.parametrize("name", ["mixed_float16", "mixed_bfloat16"])
def test_low_precision_does_not_hide_batch_norm(name):
    def build():
        keras.config.set_dtype_policy(name)
        layers = L.Dense(8, activation="tanh"), L.BatchNormalization(), L.Dense(1)
        # With a scale that does not overflow: Keras begins with one that does, and skips updates until it fits.
        optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(), initial_scale=8.0)
        return verified.sequential(*layers, optimizer=optimizer)

    report = verify(build, X, Y)
    assert not report.exact
    assert report.causes[0].kind == "batch normalisation"


def test_chance_is_not_rounding():
    """Eagerly, TensorFlow's own dropout differs from run to run, also from that with the last digits moved."""

    def build():
        noise = L.Lambda(lambda inputs: tf.nn.dropout(inputs, 0.5))
        return verified.sequential(L.Dense(4, activation="tanh"), noise, L.Dense(1), run_eagerly=True)

    report = verify(build, X, Y)
    assert not report.exact
    assert report.causes[0].kind == "randomness or non-determinism"


class Unsteady(L.Layer):
    """As a device whose sums differ a little from run to run."""

    def call(self, inputs):
        return inputs * (1 + 1e-5 * tf.random.normal(tf.shape(inputs)))


def test_a_device_that_is_a_little_unsteady_does_not_hide_batch_norm():
    layers = L.Dense(4, activation="tanh"), Unsteady(), L.BatchNormalization(), L.Dense(1)
    report = verify(lambda: verified.sequential(*layers, run_eagerly=True), X, Y)
    assert [cause.kind for cause in report.causes] == ["batch normalisation"]


class Cancelling(L.Layer):
    """As a sum of large numbers, whose order depends on the batch, and of which little is left."""

    def call(self, inputs):
        return tf.where(tf.shape(inputs)[0] > SIZE, 100_001.0 * inputs - 100_000.0 * inputs, inputs)


def test_a_layer_that_only_rounds_does_not_mix_samples():
    layers = L.Dense(4, activation="tanh"), Cancelling(), L.BatchNormalization(), L.Dense(1)
    report = verify(lambda: verified.sequential(*layers), X, Y)
    assert [(cause.kind, len(cause.parts)) for cause in report.causes] == [("batch normalisation", 1)]


def test_not_finite():
    with np.errstate(invalid="ignore"):
        report = bigbatch.verify(verified.mlp(), X * np.nan, Y, micro_batch_size=SIZE)
    assert not report.exact
    assert [cause.kind for cause in report.causes] == ["values that are not finite"]
    json.loads(report.to_json(), parse_constant=pytest.fail)


def test_float64_is_held_to_its_own_rounding():
    def build():
        keras.config.set_dtype_policy("float64")
        keras.config.set_floatx("float64")
        return verified.mlp()

    report = verify(build, X, Y)
    assert report.exact
    assert report.worst.error < 1e-13
