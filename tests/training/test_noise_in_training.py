"""The noise of every update against a raw `GradientTape` that takes the same micro-batches one by one."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from gan import Gan
from mirrored import strategy
from noise_by_hand import by_hand, expected, gradient, observed, pieces
from ragged import dataset, parts
from test_losses import LABELS, TOKENS, WEIGHTS, X, Y, dense, tagger
from watching import MODES, build_anew, fit_data

import bigbatch

losses, layers = keras.losses, keras.layers


# What is accumulated, and the batches of every update of an epoch.
SETTINGS = {
    "whole": ({}, [[12], [12], [6]]),
    "micro_batches": ({"micro_batch_size": 5}, [[12], [12], [6]]),
    "auto": ({"micro_batch_size": "auto"}, [[12], [12], [6]]),
    "windows": ({"batches_per_update": 2}, [[12, 12], [6]]),
    "windows_of_micro_batches": ({"batches_per_update": 2, "micro_batch_size": 5}, [[12, 12], [6]]),
    "windows_auto": ({"batches_per_update": 2, "micro_batch_size": "auto"}, [[12, 12], [6]]),
    "samples": ({"samples_per_update": 20}, [[12, 12], [6]]),
}


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("mode", MODES)
def test_every_update_by_hand(mode, setting):
    settings, windows = SETTINGS[setting]
    build = lambda: dense("mse", **MODES[mode])  # noqa: E731
    seen = observed(bigbatch.accumulate(build_anew(build), **settings), fit_data(X, Y))
    size = settings["micro_batch_size"] if settings.get("micro_batch_size") == 5 else None
    theirs = expected(build, (X, Y), [pieces(window, size, is_static=mode == "eager") for window in windows])
    assert np.ptp(theirs[:, 0]) > 0.1 * theirs[:, 0].mean()
    np.testing.assert_allclose(seen[:, :2], theirs, rtol=1e-10)


@pytest.mark.parametrize("setting", SETTINGS)
def test_the_update_stays_that_of_the_whole_batch(setting):
    settings, _ = SETTINGS[setting]
    models = [bigbatch.accumulate(build_anew(lambda: dense("mse", metrics=["mae"])), **settings) for _ in range(2)]
    histories = [
        fit_data(X, Y)(model, callbacks).history
        for model, callbacks in zip(models, ([], [bigbatch.NoiseScale(), bigbatch.Monitor()]))
    ]
    for plain, watched in zip(*(model.get_weights() for model in models)):
        np.testing.assert_allclose(watched, plain, rtol=1e-10)
    for name, values in histories[0].items():
        np.testing.assert_allclose(histories[1][name], values, rtol=1e-10)


def test_batches_of_a_static_size_are_not_halved():
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(10, drop_remainder=True)
    model = bigbatch.accumulate(build_anew(lambda: dense("mse")), micro_batch_size=4)
    seen = observed(model, lambda model, callbacks: model.fit(data, callbacks=callbacks, verbose=0))
    theirs = expected(lambda: dense("mse"), (X, Y), [[2, 4, 4]] * 3, epochs=1)
    np.testing.assert_allclose(seen[:, :2], theirs, rtol=1e-10)


def test_a_batch_of_one_sample_tells_nothing():
    noise = bigbatch.NoiseScale()
    model = bigbatch.accumulate(build_anew(lambda: dense("mse")))
    seen = observed(model, fit_data(X[:5], Y[:5], sizes=[2, 1, 2], epochs=1), [noise])
    assert np.isfinite(seen[:, 0]).tolist() == [True, False, True]
    plain = build_anew(lambda: dense("mse"))
    fit_data(X[:5], Y[:5], sizes=[2, 1, 2], epochs=1)(plain, [])
    for ours, theirs in zip(model.get_weights(), plain.get_weights()):
        np.testing.assert_allclose(ours, theirs, rtol=1e-10)


def test_sums_weigh_their_samples():
    """The noise scale is a ratio: a loss a thousand times larger has the same."""
    build = lambda: dense(losses.MeanSquaredError(reduction="sum"), jit_compile=False)  # noqa: E731
    build_free = lambda: free_of_regularizers(losses.MeanSquaredError(reduction="sum"))  # noqa: E731
    for make in (build, build_free):
        for settings, window in (({"micro_batch_size": 5}, pieces([12], 5)), ({"batches_per_update": 2}, None)):
            model = bigbatch.accumulate(build_anew(make), **settings)
            seen = observed(model, fit_data(X, Y, sizes=[12] if window else [6, 6], epochs=1))
            model, sizes = build_anew(make), np.array(window or pieces([6, 6]))
            of_sums = [gradient(model, *part) for part in parts(sizes, X[:12], Y[:12])]
            if make is build:  # a regularizer is in every sum, and counts once
                constant = 2 * gradient(model, X[:1], Y[:1]) - gradient(model, X[[0, 0]], Y[[0, 0]])
                of_samples = [(each - constant) / size + constant / 12 for each, size in zip(of_sums, sizes)]
            else:
                of_samples = [each / size for each, size in zip(of_sums, sizes)]
            noise, signal = by_hand(of_samples, sizes)
            assert seen[0, 0] / seen[0, 1] == pytest.approx(noise / signal, rel=1e-9)


def free_of_regularizers(loss):
    model = keras.Sequential([keras.Input((6,)), layers.Dense(5, activation="tanh"), layers.Dense(2)])
    model.compile(keras.optimizers.SGD(0.01), loss=loss)
    return model


def test_weights_are_what_the_loss_divides_by():
    build = lambda: free_of_regularizers(losses.MeanSquaredError(reduction="mean_with_sample_weight"))  # noqa: E731
    model = bigbatch.accumulate(build_anew(build), batches_per_update=3)
    seen = observed(model, fit_data(X[:12], Y[:12], WEIGHTS[:12], sizes=[4, 4, 4], epochs=1))
    model, sizes = build_anew(build), [2, 2, 4, 4]
    found = [gradient(model, *part) for part in parts(sizes, X[:12], Y[:12], WEIGHTS[:12])]
    weights = [part[0].sum() for part in parts(sizes, WEIGHTS[:12])]
    noise, signal = by_hand(found, weights)
    np.testing.assert_allclose(seen[0, :2], [noise * 12 / sum(weights), signal], rtol=1e-10)


def test_masked_tokens():
    """A micro-batch weighs its tokens; the scale is in samples, of as many tokens as they have here."""
    sizes = pieces([12], 5)
    model = bigbatch.accumulate(build_anew(tagger), micro_batch_size=5)
    seen = observed(model, fit_data(TOKENS[:12], LABELS[:12], sizes=[12], epochs=1))
    model = build_anew(tagger)
    tokens = [(part[0] != 0).sum() for part in parts(sizes, TOKENS[:12])]
    assert np.ptp(np.divide(tokens, sizes)) > 3
    noise, signal = by_hand([gradient(model, *part) for part in parts(sizes, TOKENS[:12], LABELS[:12])], tokens)
    np.testing.assert_allclose(seen[0, :2], [noise * 12 / sum(tokens), signal], rtol=1e-6)


def test_rows_of_an_embedding_are_added_up():
    def build():
        model = keras.Sequential([keras.Input((8,)), layers.Embedding(10, 4), layers.Flatten(), layers.Dense(1)])
        model.compile("sgd", "mse")
        return model

    x, y = np.random.default_rng(3).integers(0, 10, size=(12, 8)), Y[:12, :1]
    seen = observed(bigbatch.accumulate(build_anew(build), micro_batch_size=4), fit_data(x, y, sizes=[12], epochs=1))
    sizes = pieces([12], 4)
    theirs = expected(build, (x, y), [sizes], epochs=1)
    np.testing.assert_allclose(seen[:, :2], theirs, rtol=1e-10)


def test_a_scaled_loss_has_the_same_noise():
    def scaled():
        model = dense("mse")
        model.compile(keras.optimizers.LossScaleOptimizer(model.optimizer, initial_scale=64.0), "mse")
        return model

    seen = [
        observed(bigbatch.accumulate(build_anew(build), micro_batch_size=5), fit_data(X, Y))
        for build in (scaled, lambda: dense("mse"))
    ]
    np.testing.assert_allclose(*seen, rtol=1e-10)


def test_every_optimizer_of_a_model_counts():
    rng = np.random.default_rng(0)
    x, noise = rng.normal(size=(12, 6)), rng.normal(size=(12, 2))
    models = [bigbatch.accumulate(build_anew(Gan), micro_batch_size=size) for size in (4, 6)]
    for model in models:
        model.compile(keras.optimizers.SGD(0.0), keras.optimizers.SGD(0.0))
    data = tf.data.Dataset.from_tensors((x, noise))
    for model in models:
        seen = observed(model, lambda model, callbacks: model.fit(data, callbacks=callbacks, verbose=0))
        assert np.isfinite(seen).all()
        assert seen[0, 0] > 0


@pytest.mark.parametrize(("settings", "size"), [({"micro_batch_size": 5}, 5), ({}, None)], ids=str)
def test_two_replicas(settings, size):
    with strategy(2).scope():
        model = build_anew(lambda: dense("mse"))
        model.optimizer.build(model.trainable_variables)
        bigbatch.accumulate(model, **settings)
    seen = observed(
        model, lambda model, callbacks: model.fit(dataset([16], X[:16], Y[:16]), callbacks=callbacks, verbose=0)
    )
    theirs = expected(lambda: dense("mse"), (X[:16], Y[:16]), [pieces([8], size) * 2], epochs=1)
    np.testing.assert_allclose(seen[:, :2], theirs, rtol=1e-10)


def test_several_updates_per_execution_are_all_seen():
    build = lambda steps: dense("mse", steps_per_execution=steps)  # noqa: E731
    seen = [
        observed(bigbatch.accumulate(build_anew(lambda: build(steps)), micro_batch_size=5), fit_data(X, Y))  # noqa: B023
        for steps in (1, 2)
    ]
    np.testing.assert_allclose(*seen, rtol=1e-10)
