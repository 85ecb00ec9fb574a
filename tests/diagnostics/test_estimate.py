"""`noise_scale` on linear regression, whose noise scale is known in closed form."""

import json
import math

import keras
import numpy as np
import pytest
import tensorflow as tf

import bigbatch
from bigbatch.diagnostics.estimate import Estimate

VARIANCES = np.array([1.0, 0.5, 2.0, 0.1])
OFFSET = np.array([0.5, -1.0, 0.3, 2.0])  # of the weights from the truth
NOISE = 1.5


def closed_form():
    """For normal features x and g = 2 x (x * offset - e): tr(Cov(g)) over |E(g)|^2."""
    gradient = 2 * VARIANCES * OFFSET
    squares = 4 * (VARIANCES @ OFFSET**2 + NOISE**2) * VARIANCES.sum() + 2 * gradient @ gradient
    return (squares - gradient @ gradient) / (gradient @ gradient)


def regression():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, use_bias=False)])
    model.compile("adam", "mse", metrics=["mae"])
    model.set_weights([OFFSET[:, None]])
    return model


def data(num_batches, batch_size=16, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(num_batches * batch_size, 4)) * VARIANCES**0.5
    y = rng.normal(size=(num_batches * batch_size, 1)) * NOISE
    return tf.data.Dataset.from_tensor_slices((x.astype("float32"), y.astype("float32"))).batch(batch_size)


@pytest.mark.parametrize("micro_batch_size", [None, 5, 1])
def test_closed_form(micro_batch_size):
    found = bigbatch.noise_scale(regression(), data(2000), micro_batch_size=micro_batch_size, confidence=0.999)
    low, high = found.interval
    assert low < closed_form() < high
    assert found.value == pytest.approx(closed_form(), rel=0.15)
    assert high - low < 0.5 * closed_form()
    assert found.samples_per_update == 16
    assert found.num_samples == 32_000


def test_unbiased_and_covered_over_many_seeds():
    """One run of 3000 batches, looked at as 100 runs of 30."""
    model, rows = bigbatch.accumulate(regression(), micro_batch_size=4), []
    model.optimizer.learning_rate = 0.0

    class Observer(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            vars(self.model)["_accumulation"].observe_noise(lambda noise, signal, _: rows.append((noise, signal)))

    model.fit(data(3000, seed=1), verbose=0, callbacks=[Observer()])
    gradient = 2 * VARIANCES * OFFSET
    truth = np.array([closed_form() * gradient @ gradient, gradient @ gradient])
    errors = np.mean(rows, 0) - truth
    assert (np.abs(errors) < 3.5 * np.std(rows, 0) / len(rows) ** 0.5).all()
    runs = [smoothed(rows[start : start + 30]) for start in range(0, 3000, 30)]
    held = [low <= closed_form() <= high for low, high in (run.interval(0.9) for run in runs)]
    assert 0.8 <= np.mean(held) <= 0.98


def smoothed(pairs):
    result = bigbatch.core.noise.Smoothed(decay=1.0)
    for pair in pairs:
        result.add(*pair)
    return result


def test_the_model_is_not_changed():
    inputs = keras.Input((4,))
    hidden = keras.layers.Dropout(0.5)(keras.layers.BatchNormalization()(inputs))
    model = keras.Model(inputs, keras.layers.Dense(1)(hidden))
    model.compile("adam", "mse", metrics=["mae"])
    model.fit(data(3), verbose=0)
    variables = [*model.variables, *model.optimizer.variables, *model.metrics_variables]
    before = [variable.numpy() for variable in variables]
    bigbatch.noise_scale(model, data(5), micro_batch_size=4)
    for variable, value in zip(variables, before):
        np.testing.assert_array_equal(variable.numpy(), value)
    model.fit(data(1), verbose=0)  # trains, and is plain Keras
    assert any((variable.numpy() != value).any() for variable, value in zip(variables, before))


def test_as_it_accumulates():
    model = bigbatch.accumulate(regression(), batches_per_update=4)
    assert bigbatch.noise_scale(model, data(3)).samples_per_update == 64
    model = bigbatch.accumulate(regression(), micro_batch_size=4, whole_batch_loss=True)
    with pytest.raises(ValueError, match="gradients of their own"):
        bigbatch.noise_scale(model, data(3))


def test_any_iterable_of_batches():
    batches = [(x.numpy(), y.numpy(), None) for x, y in data(3)]
    model = keras.Sequential([keras.layers.Dense(1)])  # not built
    model.compile("sgd", "mse")
    assert bigbatch.noise_scale(model, batches).num_samples == 48


def estimate(value, samples_per_update, interval=(1.0, 1e6)):
    return Estimate(value, interval, 0.95, samples_per_update, 6400, 400)


ADVICE = {
    (900.0, 64.0): "updates of 64 are 14.1 times smaller than the noise scale: four times larger batches should need "
    "about 3.3 times fewer updates.",
    (900.0, 7200.0): "updates of 7200 are 8 times larger than the noise scale: four times smaller batches should need "
    "only 1.3 times as many updates, and 3 times fewer samples.",
    (900.0, 1000.0): "updates of 1000 are about as large as the noise scale, where neither updates nor samples are "
    "wasted.",
}


@pytest.mark.parametrize("numbers", ADVICE, ids=str)
def test_advice_is_one_sentence(numbers):
    assert estimate(*numbers).advice == ADVICE[numbers]
    assert ADVICE[numbers] in str(estimate(*numbers))


def test_too_little_to_tell():
    found = bigbatch.noise_scale(regression(), data(2))
    assert found.interval == (0.0, math.inf)
    assert "too few samples" in found.advice
    told = json.loads(found.to_json(), parse_constant=pytest.fail)
    assert told["interval"] == [0.0, None]
    assert told["value"] == pytest.approx(found.value)


def test_the_trade_off():
    found = estimate(900.0, 64.0)
    assert found.updates_needed(900) == 2.0
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("agg")
    ax = found.plot()
    updates, samples = (dict(zip(*line.get_data())) for line in ax.lines[:2])
    assert min(updates.values()) > 1
    assert min(samples.values()) > 1
    assert [text.get_text() for text in ax.get_legend().get_texts()][:2] == ["updates", "samples"]


def test_misuse():
    with pytest.raises(ValueError, match="two micro-batches"):
        bigbatch.noise_scale(regression(), [])
    with pytest.raises(ValueError, match="two micro-batches"):
        bigbatch.noise_scale(regression(), data(3, batch_size=1))
    with pytest.raises(ValueError, match="compiled"):
        bigbatch.noise_scale(keras.Sequential(), data(3))
    with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        model = regression()
    with pytest.raises(bigbatch.AccumulationError, match="one replica"):
        bigbatch.noise_scale(model, data(3))


def test_updates_that_are_counted_in_samples():
    model = bigbatch.accumulate(regression(), samples_per_update=40)
    assert bigbatch.noise_scale(model, data(3)).samples_per_update == 48
    tailed = data(3).concatenate(data(1, batch_size=1))
    assert bigbatch.noise_scale(regression(), tailed, micro_batch_size=4).samples_per_update == 16


def test_loss_scaling_does_not_overflow():
    """The factor of a `LossScaleOptimizer` begins at 2**15, and would not fall, for nothing is applied."""
    found = []
    for policy in ("float32", "mixed_float16"):
        keras.config.set_dtype_policy(policy)
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(4, activation="tanh"), keras.layers.Dense(1)])
        model.compile("adam", "mse")
        loud = data(200).map(lambda x, y: (x, 8 * x[:, :1] + y))
        found.append(bigbatch.noise_scale(model, loud, micro_batch_size=4).value)
    assert found[1] == pytest.approx(found[0], rel=0.02)


def test_sparse_inputs():
    inputs = keras.Input((4,), sparse=True)
    model = keras.Model(inputs, keras.layers.Dense(1)(inputs))
    model.compile("sgd", "mse")
    x = tf.sparse.from_dense(np.eye(12, 4, dtype="float32"))
    sparse = tf.data.Dataset.from_tensor_slices((x, np.arange(12, dtype="float32")[:, None])).batch(6)
    assert bigbatch.noise_scale(model, sparse, micro_batch_size=2).num_micro_batches == 6


def test_confidence_is_a_fraction():
    for confidence in (95, 0, -0.5):
        with pytest.raises(ValueError, match="between 0 and 1"):
            bigbatch.noise_scale(regression(), data(3), confidence=confidence)


@pytest.mark.parametrize("value", [0.0, math.inf])
def test_every_estimate_can_be_drawn(value):
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("agg")
    assert estimate(value, 64.0).plot().lines
