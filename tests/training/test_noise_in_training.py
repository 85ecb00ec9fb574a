"""The noise of every update against a raw `GradientTape` that takes the same micro-batches one by one."""

import math

import keras
import numpy as np
import pytest
import tensorflow as tf
from test_losses import LABELS, TOKENS, WEIGHTS, X, Y, dense, tagger
from test_models import Gan
from test_replicas import strategy
from test_windows import dataset, parts
from watching import MODES, Recorder, build_anew, fit_data

import bigbatch

losses, layers = keras.losses, keras.layers


def observed(model, fit, callbacks=()):
    """Noise, signal and samples per batch of every update."""
    rows = []

    class Observer(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            vars(self.model)["_accumulation"].observe_noise(lambda *row: rows.append(row))

    fit(model, callbacks=[Observer(), *callbacks])
    return np.array(rows)


def cut(batch, size):
    """The micro-batches of a batch, ragged one first."""
    sizes = [] if size is None else [size] * ((batch - 1) // size)
    return [batch - sum(sizes), *sizes]


def pieces(window, size=None, is_static=False):
    """The first batch comes in halves, unless it is known to have several micro-batches anyway."""
    in_halves = not is_static or size is None or window[0] <= size
    first = [-(-window[0] // 2), window[0] // 2] if in_halves else window[:1]
    return [piece for batch in [*first, *window[1:]] if batch for piece in cut(batch, size)]


def flat(gradients):
    return np.concatenate([tf.convert_to_tensor(gradient).numpy().ravel() for gradient in gradients])


def by_hand(gradients, sizes):
    """Noise and signal of mean gradients of so many samples, by their definition."""
    gradients, sizes = np.array(gradients), np.array(sizes)
    mean = sizes @ gradients / sizes.sum()
    spread = sizes @ np.square(gradients - mean).sum(1) / (len(sizes) - 1) if len(sizes) > 1 else math.nan
    return spread, mean @ mean - spread / sizes.sum()


def gradient(model, x, y, sample_weight=None):
    with tf.GradientTape() as tape:
        loss = model.compute_loss(x, y, model(x, training=True), sample_weight)
    return flat(tape.gradient(loss, model.trainable_variables))


def apply(model, gradients):
    variables = model.trainable_variables
    ends = np.cumsum([int(np.prod(variable.shape)) for variable in variables])[:-1]
    split = [part.reshape(variable.shape) for part, variable in zip(np.split(gradients, ends), variables)]
    model.optimizer.apply([tf.constant(part) for part in split], variables)


def expected(build, arrays, windows, epochs=2):
    """For a loss that is a mean over samples."""
    model, rows = build_anew(build), []
    for _ in range(epochs):
        for sizes, *window in zip(windows, *zip(*parts([sum(sizes) for sizes in windows], *arrays))):
            found = [gradient(model, *part) for part in parts(sizes, *window)]
            rows.append(by_hand(found, sizes))
            apply(model, np.array(sizes) @ np.array(found) / sum(sizes))
    return np.array(rows)


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


def test_several_updates_per_execution_are_all_seen():
    build = lambda steps: dense("mse", steps_per_execution=steps)  # noqa: E731
    seen = [
        observed(bigbatch.accumulate(build_anew(lambda: build(steps)), micro_batch_size=5), fit_data(X, Y))  # noqa: B023
        for steps in (1, 2)
    ]
    np.testing.assert_allclose(*seen, rtol=1e-10)


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
