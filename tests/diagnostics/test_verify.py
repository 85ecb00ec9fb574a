import keras
import numpy as np
import pytest
import tensorflow as tf
import verified
from verified import LABELS, SEQUENCES, TOKENS, WEIGHTS, X, Y, verify

L = keras.layers

EXACT = {
    "regularized": (verified.mlp, X, Y, {}),
    "eager": (lambda: verified.mlp(run_eagerly=True), X, Y, {}),
    "compiled": (lambda: verified.mlp(jit_compile=True), X, Y, {}),
    "weights": (lambda: verified.mlp(weighted_metrics=["mae"]), X, Y, {"sample_weight": WEIGHTS}),
    "window": (verified.mlp, X, Y, {"batches_per_update": 3}),
    "whole_batches": (verified.mlp, X, Y, {"batches_per_update": 3, "micro_batch_size": None}),
    "single_samples": (verified.mlp, X, Y, {"micro_batch_size": 1}),
    "masked": (verified.masked, TOKENS, LABELS, {}),
    "sum": (lambda: verified.mlp(loss=keras.losses.MeanSquaredError(reduction="sum")), X, Y, {}),
    "own_step": (lambda: verified.own_step(lambda y, p, _: tf.reduce_mean(tf.square(y - p))), X, Y, {}),
    "frozen_batch_norm": (
        lambda: verified.sequential(L.Dense(4), L.BatchNormalization(trainable=False), L.Dense(1)),
        X,
        Y,
        {},
    ),
}
REPLAYED = {
    "dropout": (lambda: verified.sequential(L.Dense(8), L.Dropout(0.5, name="half"), L.Dense(1)), X, {"half"}),
    "attention": (verified.attention, SEQUENCES, {"dropout"}),
    "recurrent": (
        lambda: verified.sequential(L.GRU(3, dropout=0.3, recurrent_dropout=0.2, name="gru"), L.Dense(1), x=SEQUENCES),
        SEQUENCES,
        {"gru"},
    ),
    "adds_a_loss": (
        lambda: verified.sequential(L.Dense(4), verified.Sampling(name="sampling"), L.Dense(1)),
        X,
        {"sampling"},
    ),
    "equal_draws": (
        lambda: verified.sequential(L.Dense(4), verified.Repeating(name="repeating"), L.Dense(1)),
        X,
        {"repeating"},
    ),
    "shared": (
        lambda: verified.sequential(*[layer := L.GaussianNoise(0.5, name="noise"), L.Dense(4), layer, L.Dense(1)]),
        X,
        {"noise"},
    ),
}
CAUGHT = {
    "mean_of_means": (lambda: verified.mlp(loss=verified.over_valid), {}, "a reduction that is a mean of means", None),
    "forgotten_weight": (
        lambda: verified.own_step(verified.forgotten_weights),
        {"sample_weight": WEIGHTS},
        "a reduction that is a mean of means",
        None,
    ),
    "sum": (lambda: verified.mlp(loss=verified.added), {}, "a reduction that is a sum", None),
    "contrastive": (
        lambda: verified.mlp(loss=verified.contrastive),
        {},
        "a loss that couples samples",
        "the output",
    ),
    "contrastive_own_step": (
        lambda: verified.own_step(lambda y, p, _: verified.contrastive(y, p)),
        {},
        "a loss that couples samples",
        "the loss",
    ),
    "batch_norm": (
        lambda: verified.sequential(L.Dense(4), L.BatchNormalization(name="norm"), L.Dense(1)),
        {},
        "batch normalisation",
        "norm",
    ),
    "layer": (
        lambda: verified.sequential(L.Dense(4), verified.MiniBatchDeviation(name="deviation"), L.Dense(1)),
        {},
        "layers that mix samples",
        "deviation",
    ),
    "average_per_micro_batch": (
        lambda: verified.compiled(verified.Averaging()),
        {},
        "state that every micro-batch changes",
        "averaging/average",
    ),
    "stale_buffer": (
        lambda: verified.compiled(verified.Buffering()),
        {},
        "state that every micro-batch changes",
        "buffering/average",
    ),
    "metric": (
        lambda: verified.sequential(L.Dense(1), metrics=[verified.relative_error]),
        {},
        "a metric that is a mean of means",
        "relative_error",
    ),
    "mixes_and_draws": (
        lambda: verified.sequential(verified.MixUp(name="mixup"), L.Dense(1)),
        {},
        "layers that mix samples",
        "mixup",
    ),
    "counts_calls": (
        lambda: verified.sequential(L.Dense(4), verified.Counting(name="counting"), L.Dense(1)),
        {},
        "state that every micro-batch changes",
        "sequential/counting/count",
    ),
    "adds_a_sum": (
        lambda: verified.sequential(L.Dense(4), verified.AddingSum(name="adding"), L.Dense(1)),
        {},
        "a reduction that is a sum",
        "adding",
    ),
    "draws_in_train_step": (lambda: verified.compiled(verified.NoisyStep()), {}, "randomness", "train_step"),
    "unseeded": (
        lambda: verified.sequential(L.Dense(4), verified.Unseeded(name="noisy"), L.Dense(1)),
        {},
        "randomness",
        "noisy",
    ),
}


@pytest.mark.parametrize("case", EXACT)
def test_exact(case):
    build, x, y, settings = EXACT[case]
    report = verify(build, x, y, **settings)
    assert report.exact, str(report)
    assert report.causes == report.replayed == ()
    assert 0 < report.worst.error < 1e-5
    assert report.num_updates == 3


@pytest.mark.parametrize("case", REPLAYED)
def test_same_draws(case):
    build, x, names = REPLAYED[case]
    report = verify(build, x, Y)
    assert report.exact, str(report)
    assert names <= set(report.replayed)


@pytest.mark.parametrize("case", CAUGHT)
def test_caught_and_named(case):
    build, settings, kind, part = CAUGHT[case]
    report = verify(build, X, Y, **settings)
    assert not report.exact
    [cause] = report.causes
    assert cause.kind == kind, str(report)
    assert part is None or [name for name, _ in cause.parts] == [part]
    assert max(row.error for row in report.table) > 1e-3
    assert cause.remedy in str(report)


def test_draws_that_differ_are_a_difference(monkeypatch):
    """A control: without replaying, dropout would be caught for what it is not."""
    monkeypatch.setattr("bigbatch.diagnostics.pieces.Pieces._replaying", lambda self, generator: generator.next)
    assert not verify(*REPLAYED["dropout"][:2], Y).exact


def test_weights_of_a_mean_of_means():
    """What the whole batch weighs is measured: here, how many targets of each micro-batch are valid."""
    [cause] = verify(CAUGHT["mean_of_means"][0], X, Y).causes
    valid = [np.sum(part > 0) for part in np.split(Y, [4, 10, 16])]
    np.testing.assert_allclose([weight for _, weight in cause.parts], np.array(valid) / sum(valid), rtol=1e-3)


def test_shares_of_batch_norm():
    """Each layer's share is what the gradient moves by when only that layer sees micro-batches."""

    def build():
        layers = [L.Dense(4), L.BatchNormalization(name="first"), L.Dense(4), L.BatchNormalization(name="second")]
        return verified.sequential(*layers, L.Dropout(0.2), L.Dense(1))

    report = verify(build, X, Y)
    [cause] = report.causes
    assert cause.kind == "batch normalisation"
    assert {name for name, _ in cause.parts} == {"first", "second"}
    assert all(share > 0.01 for _, share in cause.parts)
    assert report.replayed == ("dropout",)


def test_broken_accumulation_is_caught(monkeypatch):
    """If bigbatch itself were wrong, no cause in the model would be found."""
    monkeypatch.setattr("bigbatch.training.micro_batches.MicroBatch.__new__", _with_equal_weights)
    report = verify(verified.mlp, X, Y)
    assert not report.exact
    assert [cause.kind for cause in report.causes] == ["unknown"]


def _with_equal_weights(cls, data, share, weight):
    return tuple.__new__(cls, (data, share, tf.constant(1.0, tf.float64)))
