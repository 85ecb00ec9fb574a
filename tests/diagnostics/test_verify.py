import dataclasses
import json

import keras
import numpy as np
import pytest
import tensorflow as tf
import verified
from verified import LABELS, SEQUENCES, SIZE, TOKENS, WEIGHTS, X, Y

import bigbatch

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


def state_of(model):
    metrics = [variable for metric in model.metrics for variable in metric.variables]
    return [each.numpy() for each in [*model.variables, *model.optimizer.variables, *metrics]]


def verify(build, x, y, **settings):
    """Verifies a model that has trained a little, and sees that it is left alone."""
    keras.utils.set_random_seed(0)
    keras.backend.clear_session()
    model = build()
    model.fit(x, y, sample_weight=settings.get("sample_weight"), epochs=1, verbose=0)
    before = state_of(model)
    report = bigbatch.verify(model, x, y, **{"micro_batch_size": SIZE, **settings})
    for value, known in zip(state_of(model), before, strict=True):
        np.testing.assert_array_equal(value, known)
    return report


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


def test_accumulated_model_as_it_accumulates():
    model = bigbatch.accumulate(verified.mlp(), micro_batch_size=SIZE, batches_per_update=2)
    report = bigbatch.verify(model, X, Y)
    assert report.micro_batches == (5, 6, 5, 6)
    assert report.exact
    assert model.make_train_function is not None


def test_dataset():
    dataset = tf.data.Dataset.from_tensor_slices((X, Y)).batch(8)
    report = bigbatch.verify(verified.mlp(), dataset, batches_per_update=3, micro_batch_size=5)
    assert report.micro_batches == (3, 5, 3, 5, 1, 5)
    assert report.exact


def test_model_that_is_not_built():
    model = keras.Sequential([L.Dense(4), L.Dense(1)])
    model.compile("adam", "mse", metrics=["mae"])
    assert bigbatch.verify(model, X, Y, micro_batch_size=SIZE).exact
    assert int(model.optimizer.iterations) == 0
    model.fit(X, Y, verbose=0)


@pytest.mark.parametrize("norm", [False, True], ids=["exact", "batch_norm"])
def test_under_a_strategy(norm):
    # Not by collectives, whose numbers two strategies of one process would both begin at 100.
    engine = tf.distribute.ReductionToOneDevice()
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"], cross_device_ops=engine)
    with strategy.scope():
        layers = [L.Dense(4), *([L.BatchNormalization(name="norm")] if norm else []), L.Dropout(0.3), L.Dense(1)]
        model = verified.sequential(*layers)
        model.optimizer.build(model.trainable_variables)
    before = state_of(model)
    report = bigbatch.verify(model, X, Y, micro_batch_size=4)
    assert sum(report.micro_batches) == len(X)
    assert report.exact is not norm, str(report)
    assert [cause.kind for cause in report.causes] == (["batch normalisation"] if norm else [])
    for value, known in zip(state_of(model), before, strict=True):
        np.testing.assert_array_equal(value, known)


def test_report():
    report = verify(CAUGHT["batch_norm"][0], X, Y)
    with pytest.raises(dataclasses.FrozenInstanceError):
        report.exact = True
    told = json.loads(report.to_json())
    assert told["exact"] is False
    assert told["worst"] == {"variable": report.worst.variable, "error": report.worst.error}
    assert {row["kind"] for row in told["table"]} == {"gradient", "weight", "optimizer", "statistic", "log"}
    for words in ["NOT equal", "beyond rounding", "cause: batch normalisation", "norm", "remedy: Freeze them"]:
        assert words in str(report)


def test_plot():
    from matplotlib import pyplot

    axes = verify(verified.mlp, X, Y).plot()
    assert axes.get_ylabel() == "largest difference (relative)"
    assert axes.get_yscale() == "log"
    assert axes.get_xlabel()
    pyplot.close(axes.figure)


def test_messages():
    model = verified.mlp()
    with pytest.raises(ValueError, match=r"`model` must be a compiled Keras 3 model. Received: model=3"):
        bigbatch.verify(3, X, Y, micro_batch_size=2)
    with pytest.raises(ValueError, match=r"at least two micro-batches .* micro_batch_size=None, batches_per_update=1"):
        bigbatch.verify(model, X, Y)
    with pytest.raises(ValueError, match=r"`micro_batch_size` must be .* Received: micro_batch_size=0"):
        bigbatch.verify(model, X, Y, micro_batch_size=0)
    with pytest.raises(ValueError, match=r"`x` must hold samples\."):
        bigbatch.verify(model, X[:0], Y[:0], micro_batch_size=2)
    with pytest.raises(ValueError, match=r"`x` must be arrays or a `tf.data.Dataset`\. Received: x=generator"):
        bigbatch.verify(model, (row for row in X), micro_batch_size=2)
    with pytest.raises(ValueError, match=r"A dataset must hold targets and weights itself\."):
        bigbatch.verify(model, tf.data.Dataset.from_tensor_slices((X, Y)).batch(8), Y, micro_batch_size=2)
    with pytest.raises(ValueError, match=r"`batches_per_update` must be given for a model that joins batches by"):
        bigbatch.verify(bigbatch.accumulate(verified.mlp(), samples_per_update=8), X, Y)
    with pytest.raises(ValueError, match=r"must be given for a model that looks for its own"):
        bigbatch.verify(bigbatch.accumulate(model, micro_batch_size="auto"), X, Y)
