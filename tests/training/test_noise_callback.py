"""What `NoiseScale` logs, where it measures nothing and says so, and what it refuses."""

import logging

import keras
import numpy as np
import pytest
from noise_by_hand import observed
from test_losses import X, Y, dense
from watching import Recorder, build_anew, fit_data

import bigbatch

layers = keras.layers


def test_logs():
    recorder, noise = Recorder(), bigbatch.NoiseScale(decay=0.9, confidence=0.8)
    model = bigbatch.accumulate(build_anew(lambda: dense("mse")), micro_batch_size=5)
    seen = observed(model, fit_data(X, 5 * X[:, :2], epochs=4), [recorder, noise])
    weights = 0.9 ** np.arange(len(seen))[::-1]
    assert noise.value == pytest.approx(weights @ seen[:, 0] / (weights @ seen[:, 1]), rel=1e-10)
    low, high = noise.interval
    assert low <= noise.value <= high
    last = recorder.epochs[-1]
    assert (last["noise_scale"], last["noise_scale_low"], last["noise_scale_high"]) == (noise.value, low, high)
    assert recorder.updates[-1]["noise_scale"] == noise.value
    again = bigbatch.NoiseScale()
    fit_data(X, 5 * X[:, :2])(model, [again])
    assert again.value > 0


def batch_normalised():
    model = keras.Sequential([keras.Input((6,)), layers.BatchNormalization(), layers.Dense(2)])
    model.compile("sgd", "mse")
    return model


def test_batches_are_not_halved_where_they_are_normalised():
    model = bigbatch.accumulate(batch_normalised())
    with pytest.raises(ValueError, match="at least two micro-batches"):
        fit_data(X, Y)(model, [bigbatch.NoiseScale()])
    with pytest.raises(ValueError, match="at least two micro-batches"):
        bigbatch.accumulate(model, batches_per_update=bigbatch.schedules.noise_scale(1, 8))
    bigbatch.accumulate(model, batches_per_update=2, batch_norm="pooled")
    seen = observed(model, fit_data(X, Y, sizes=[6] * 5))
    assert np.isfinite(seen[:, 0]).tolist() == [True, True, False] * 2  # a tail of one batch


@pytest.mark.parametrize("size", [1000, "auto"])
def test_an_epoch_without_a_measurement_says_so_once(size, caplog):
    model = bigbatch.accumulate(batch_normalised(), micro_batch_size=size, batch_norm="pooled")
    with caplog.at_level(logging.WARNING, logger="bigbatch"):
        fit_data(X, Y, epochs=2)(model, [bigbatch.NoiseScale()])
    [message] = [record.getMessage() for record in caplog.records if "noise" in record.getMessage()]
    assert "No update of epoch 1 measured its noise" in message


def test_misuse():
    with pytest.raises(ValueError, match=r"`NoiseScale` must watch an accumulated model"):
        fit_data(X, Y)(dense("mse"), [bigbatch.NoiseScale()])
    coupled = bigbatch.accumulate(dense("mse"), micro_batch_size=4, whole_batch_loss=True)
    with pytest.raises(ValueError, match="gradients of their own"):
        fit_data(X, Y)(coupled, [bigbatch.NoiseScale()])
    with pytest.raises(ValueError, match="free in the logs"):
        fit_data(X, Y)(bigbatch.accumulate(dense("mse")), [bigbatch.NoiseScale(), bigbatch.NoiseScale()])
    for arguments in ({"decay": 1.0}, {"confidence": 0}):
        with pytest.raises(ValueError, match="between 0 and 1"):
            bigbatch.NoiseScale(**arguments)


def test_an_empty_batch_changes_nothing():
    weights = []
    for callbacks in ([], [bigbatch.NoiseScale()]):
        for settings in ({}, {"micro_batch_size": 2}):
            model = bigbatch.accumulate(build_anew(lambda: dense("mse")), **settings)
            fit_data(X[:8], Y[:8], sizes=[4, 0, 4], epochs=1)(model, callbacks)
            weights.append(model.get_weights()[0])
    assert np.isfinite(weights).all()
    np.testing.assert_allclose(weights, [weights[0]] * 4, rtol=1e-10)


def test_layers_that_are_made_when_a_model_is_built():
    class Late(keras.Model):
        def build(self, shape):
            self.normalised, self.out = layers.BatchNormalization(), layers.Dense(2)
            self.normalised.build(shape)
            self.out.build(shape)

        def call(self, inputs, training=False):
            return self.out(self.normalised(inputs, training=training))

    model = Late()
    model.compile("sgd", "mse")
    bigbatch.accumulate(model, micro_batch_size=3, batch_norm="pooled")
    assert np.isfinite(observed(model, fit_data(X, Y))).all()


def test_a_callback_begins_anew_with_another_model():
    shared, own = bigbatch.NoiseScale(), bigbatch.NoiseScale()
    for callback in (shared, shared, own):
        model = bigbatch.accumulate(build_anew(lambda: dense("mse")), micro_batch_size=5)
        fit_data(X, 5 * X[:, :2])(model, [callback])
    assert shared.value == pytest.approx(own.value, rel=1e-12)
