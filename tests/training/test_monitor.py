"""`Monitor`: the figures of every update against those of the whole batch by hand."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from gan import Gan
from mirrored import strategy
from ragged import parts
from test_losses import LABELS, TOKEN_WEIGHTS, TOKENS, WEIGHTS, X, Y, dense, tagger
from watching import (
    BATCHES,
    FIGURES,
    MODES,
    SETTINGS,
    build_anew,
    fit_arrays_with,
    fit_data,
    norm,
    norms_by_hand,
    watch,
)

import bigbatch

layers, losses, optimizers = keras.layers, keras.losses, keras.optimizers


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("mode", MODES)
def test_every_update_by_hand(mode, setting):
    settings, sizes, micro_batches = SETTINGS[setting]
    build = lambda: dense("mse", **MODES[mode])  # noqa: E731
    seen = watch(bigbatch.accumulate(build_anew(build), **settings), fit_data(X, Y))
    assert seen.column("samples") == seen.column("weight") == sizes * 2
    assert seen.column("micro_batches") == micro_batches * 2
    norms = norms_by_hand(build, (X, Y), sizes)
    assert max(norms) > 1.1 * min(norms)
    np.testing.assert_allclose(seen.column("gradient_norm"), norms, rtol=1e-10)
    assert all(speed > 0 for speed in seen.column("samples_per_second"))


@pytest.mark.parametrize("setting", SETTINGS)
def test_an_epoch_has_the_means_of_its_updates(setting):
    settings, sizes, _ = SETTINGS[setting]
    seen = watch(bigbatch.accumulate(dense("mse"), **settings), fit_data(X, Y))
    for epoch, logs in enumerate(seen.epochs):
        updates = seen.updates[epoch * len(sizes) : (epoch + 1) * len(sizes)]
        means = {name: np.mean([update[name] for update in updates]) for name in FIGURES}
        np.testing.assert_allclose([logs[name] for name in FIGURES], list(means.values()), rtol=1e-12)
        seconds = sum(update["samples"] / update["samples_per_second"] for update in updates)
        assert logs["samples_per_second"] == pytest.approx(30 / seconds)


@pytest.mark.parametrize("settings", [{}, {"micro_batch_size": 5}, {"batches_per_update": 2}], ids=str)
def test_several_updates_per_execution(settings):
    """The last one's figures; the epoch's are of all."""
    build = lambda: dense("mse", steps_per_execution=2)  # noqa: E731
    seen = watch(bigbatch.accumulate(build_anew(build), **settings), fit_data(X, Y, epochs=1))
    sizes = [24, 6] if "batches_per_update" in settings else BATCHES
    norms = norms_by_hand(build, (X, Y), sizes, epochs=1)
    ends = [1] if len(sizes) == 2 else [1, 2]
    assert seen.column("samples") == [sizes[end] for end in ends]
    np.testing.assert_allclose(seen.column("gradient_norm"), [norms[end] for end in ends], rtol=1e-10)
    [epoch] = seen.epochs
    assert epoch["samples"] == pytest.approx(np.mean(sizes))
    assert epoch["gradient_norm"] == pytest.approx(np.mean(norms), rel=1e-10)


def totals(values):
    return [float(part[0].sum()) for part in parts(BATCHES, values)]


WEIGHED = {
    "samples": (lambda: dense("mse"), (X, Y, WEIGHTS), BATCHES),
    "sum": (lambda: dense(losses.MeanSquaredError(reduction="sum")), (X, Y), BATCHES),
    "weights": (
        lambda: dense(losses.MeanSquaredError(reduction="mean_with_sample_weight")),
        (X, Y, WEIGHTS),
        totals(WEIGHTS),
    ),
    "tokens": (tagger, (TOKENS, LABELS), totals(TOKENS > 0)),
    "tokens_with_weights": (tagger, (TOKENS, LABELS, TOKEN_WEIGHTS), totals(TOKENS > 0)),
}


@pytest.mark.parametrize("size", [None, 5], ids=["whole", "micro_batches"])
@pytest.mark.parametrize("name", WEIGHED)
def test_the_weight_is_what_the_loss_divides_by(name, size):
    build, arrays, weights = WEIGHED[name]
    seen = watch(bigbatch.accumulate(build_anew(build), micro_batch_size=size), fit_data(*arrays, epochs=1))
    np.testing.assert_allclose(seen.column("weight"), weights, rtol=1e-12)
    assert seen.column("samples") == BATCHES
    np.testing.assert_allclose(seen.column("gradient_norm"), norms_by_hand(build, arrays, epochs=1), rtol=1e-10)


def test_the_weight_of_a_sum_in_a_window_is_its_samples():
    model = bigbatch.accumulate(dense(losses.MeanSquaredError(reduction="sum")), batches_per_update=2)
    assert watch(model, fit_data(X, Y, epochs=1)).column("weight") == [24, 6]


SCALED = {
    "dynamic": lambda: optimizers.LossScaleOptimizer(optimizers.SGD(0.1), initial_scale=64.0, dynamic_growth_steps=2),
    "fixed": lambda: optimizers.SGD(0.1, loss_scale_factor=64.0),
    "clipped": lambda: optimizers.SGD(0.1, global_clipnorm=1e-3),
}


@pytest.mark.parametrize("size", [None, 5], ids=["whole", "micro_batches"])
@pytest.mark.parametrize("name", SCALED)
def test_the_norm_is_neither_scaled_nor_clipped(name, size):
    def build(optimizer):
        model = dense("mse")
        model.compile(optimizer, loss="mse")
        return model

    model = bigbatch.accumulate(build_anew(lambda: build(SCALED[name]())), micro_batch_size=size)
    seen = watch(model, fit_data(X, Y))
    plain = {} if name != "clipped" else {"global_clipnorm": 1e-3}
    norms = norms_by_hand(lambda: build(optimizers.SGD(0.1, **plain)), (X, Y))
    assert min(norms) > 0.01
    np.testing.assert_allclose(seen.column("gradient_norm"), norms, rtol=1e-10)


def test_mixed_precision():
    """float16 has eleven bits."""

    def build(policy, optimizer):
        keras.config.set_dtype_policy(policy)
        model = keras.Sequential([keras.Input((6,)), layers.Dense(2)])
        model.set_weights([X[:6, :2], X[0, :2]])  # initial weights are other ones for another dtype
        model.compile(optimizer, loss="mse")
        return model

    scaled = optimizers.LossScaleOptimizer(optimizers.SGD(0.1), initial_scale=8.0)
    model = bigbatch.accumulate(build("mixed_float16", scaled), micro_batch_size=5)
    seen = watch(model, fit_data(X, Y, epochs=1))
    norms = norms_by_hand(lambda: build("float64", optimizers.SGD(0.1)), (X, Y), epochs=1)
    np.testing.assert_allclose(seen.column("gradient_norm"), norms, rtol=2e-3)


def test_an_update_that_overflows_shows_it():
    model = dense("mse")
    model.compile(optimizers.LossScaleOptimizer(optimizers.SGD(0.1)), loss="mse")
    bigbatch.accumulate(model, micro_batch_size=5)
    poisoned = X.copy()
    poisoned[0] = np.inf
    seen = watch(model, fit_data(poisoned, Y, epochs=1))
    assert np.isfinite(seen.column("gradient_norm")).tolist() == [False, True, True]


@pytest.mark.parametrize("size", [None, 5], ids=["whole", "micro_batches"])
def test_the_norm_of_a_custom_train_step_is_over_all_its_optimizers(size):
    real, noise = X, X[:, :2]

    def build():
        model = Gan()
        model.compile(optimizers.SGD(0.1), optimizers.SGD(0.2))
        return model

    model = bigbatch.accumulate(build_anew(build), micro_batch_size=size)
    seen = watch(model, fit_arrays_with(real, noise, epochs=1, batch_size=30))

    reference = build_anew(build)
    pairs = [(reference.discriminator, reference.d_optimizer), (reference.generator, reference.g_optimizer)]
    gradients = []
    for index, (part, optimizer) in enumerate(pairs):
        with tf.GradientTape() as tape:
            loss = reference.losses_of(real, noise)[index]
        gradients.append(tape.gradient(loss, part.trainable_weights))
        if size is None:  # micro-batches all run before the first optimizer is applied
            optimizer.apply(gradients[-1], part.trainable_weights)
    np.testing.assert_allclose(seen.column("gradient_norm"), [norm(gradients[0] + gradients[1])], rtol=1e-10)


@pytest.mark.parametrize("settings", [{}, {"micro_batch_size": 4}, {"micro_batch_size": "auto"}], ids=str)
@pytest.mark.parametrize("mode", [{}, {"run_eagerly": True}], ids=["graph", "eager"])
def test_several_replicas_are_counted_together(mode, settings):
    build = lambda: dense("mse", **mode)  # noqa: E731
    with strategy(2).scope():
        model = bigbatch.accumulate(build_anew(build), **settings)
    seen = watch(model, fit_arrays_with(X, Y, batch_size=29))
    assert seen.column("samples") == seen.column("weight") == [29, 1] * 2
    assert seen.column("micro_batches") == ([8, 1] if settings.get("micro_batch_size") == 4 else [2, 1]) * 2
    norms = norms_by_hand(build, (X, Y), [29, 1])
    np.testing.assert_allclose(seen.column("gradient_norm"), norms, rtol=1e-10)
    assert [epoch["samples"] for epoch in seen.epochs] == [15, 15]


def test_rows_of_an_embedding_are_added_before_their_norm_is_taken():
    tokens = np.ones((12, 8), "int64")  # the same row, again and again

    def build():
        model = keras.Sequential([keras.Input((8,), dtype="int32"), layers.Embedding(10, 4), layers.Flatten()])
        model.add(layers.Dense(2))
        model.compile(optimizers.SGD(0.1), loss="mse")
        return model

    seen = watch(bigbatch.accumulate(build_anew(build)), fit_data(tokens, Y[:12], sizes=[12], epochs=1))
    norms = norms_by_hand(build, (tokens, Y[:12]), [12], epochs=1)
    np.testing.assert_allclose(seen.column("gradient_norm"), norms, rtol=1e-10)
