"""`plan`: measures, predicts and recommends, and leaves the model as it was."""

import dataclasses
import itertools
import json
import os

import keras
import numpy as np
import pytest
import tensorflow as tf

import bigbatch
from bigbatch.diagnostics.trials import Trials

pytestmark = pytest.mark.xdist_group("plan")  # most tests share one
layers = keras.layers
rng = np.random.default_rng(0)
X, Y = rng.normal(size=(40, 500, 8)).astype("float32"), rng.normal(size=(40, 1)).astype("float32")
BYTES_PER_SAMPLE = 500 * 64 * 4  # of one activation


def build():
    keras.utils.set_random_seed(1)
    parts = [layers.Dense(64, activation="relu"), layers.BatchNormalization(), layers.Dropout(0.5), layers.Dense(64)]
    model = keras.Sequential([keras.Input((500, 8)), *parts, layers.GlobalAveragePooling1D(), layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"])
    model.fit(X, Y, batch_size=20, verbose=0)
    return model


def state(model):
    variables = [*model.variables, *model.optimizer.variables, *model.metrics_variables]
    return [variable.numpy() for variable in variables]


@pytest.fixture(scope="module")
def made():
    """A plan, and the states of its model before and after."""
    model = build()
    before, function = state(model), model.train_function
    plan = bigbatch.plan(model, X, Y, batch_size=256, memory="30MB")
    assert model.train_function is function
    return plan, before, state(model)


def test_the_model_is_as_before(made):
    _, before, after = made
    assert all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))


def test_the_recommended_size_is_the_fastest_that_fits(made):
    plan, _, _ = made
    fitting = [row for row in plan.table if row.fits]
    fastest = min(fitting, key=lambda row: row.seconds_per_update)
    assert plan.micro_batch_size == fastest.micro_batch_size
    assert all(row.peak <= plan.memory for row in fitting)


def test_the_parts_are_those_of_the_model(made):
    plan, _, _ = made
    assert plan.memory == 30_000_000
    assert plan.measured_by == "the BFC allocator of the CPU, in a process of its own"
    num_trainable = 8 * 64 + 64 + 2 * 64 + 64 * 64 + 64 + 64 + 1
    assert plan.gradients == 4 * num_trainable
    assert 2 * plan.gradients < plan.optimizer_slots < 2 * plan.gradients + 100
    assert plan.weights >= 4 * (num_trainable + 2 * 64)
    # Forward and backward keep several activations of each sample alive.
    assert 3 * BYTES_PER_SAMPLE < plan.per_sample < 16 * BYTES_PER_SAMPLE
    assert plan.fixed > 0


def test_what_was_predicted_was_run_and_came_true(made):
    plan, _, _ = made
    largest = [row for row in plan.table if row.fits][-1]
    assert 1 < largest.micro_batch_size < 256
    assert largest.predicted == pytest.approx(largest.peak, rel=0.15)
    assert largest.peak > 0.5 * plan.memory


def test_a_delay_does_not_count_for_all_micro_batches(monkeypatch):
    """An update of few micro-batches that was slow by chance must not make 128 of them look fast."""

    def run(step, num_samples, at_least=1):
        return 0, 0.001 + 0.010 * num_samples / 8 + (0.005 if num_samples == 16 else 0.0)

    monkeypatch.setattr(Trials, "_run", lambda trials, *arguments: run(*arguments))
    trials = Trials(None, [np.ones((1, 2))], 1024, None)
    assert trials._measure(None, 8).seconds_per_update == pytest.approx(run(None, 1024)[1], rel=0.05)


def test_operations_that_meet_by_chance_are_no_part_of_the_peak():
    """Under a limit, one waits for the other, so the peak is that of most updates."""

    class Meter:
        name, begin, peaks = "made up", lambda meter: None, itertools.chain([100, 170, 100, 130], itertools.repeat(100))

        def end(self):
            return next(self.peaks)

    model = keras.Sequential([keras.Input((2,)), layers.Dense(1)])
    model.compile("adam", "mse")
    model.optimizer.build(model.trainable_variables)
    data = (np.ones((8, 2), "float32"), np.ones((8, 1), "float32"), None)
    # Two micro-batches were run; the inputs and targets of four more samples would have been there, too.
    assert Trials(model, data, 8, Meter()).measure(2).peak == 100 + 4 * 3 * 4


def test_it_can_be_read(made):
    plan, _, _ = made
    page = str(plan)
    assert f"recommended for batches of 256: micro_batch_size={plan.micro_batch_size}" in page
    assert "fits in 28.6 MiB" in page
    assert len(page.splitlines()) == len(plan.table) + 4
    assert json.loads(plan.to_json())["table"][0]["micro_batch_size"] == 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan.micro_batch_size = 3


def test_it_can_be_seen(made):
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("agg")
    axes = made[0].plot()
    assert axes.get_xlabel() == "micro-batch size (samples)"
    assert axes.get_ylabel() == "peak memory (MiB)"
    assert axes.figure.axes[1].get_ylabel() == "time per update of 256 samples (s)"
    assert made[0].plot(axes) is axes


def test_a_class_that_cannot_travel_is_measured_here_and_put_back():
    class Local(keras.Model):
        def __init__(self):
            super().__init__()
            self.inner = layers.Dense(1)

        def call(self, inputs):
            return self.inner(layers.GlobalAveragePooling1D()(inputs))

    model = Local()
    model.compile("adam", "mse")
    model.fit(X, Y, verbose=0)
    before = state(model)
    dataset = tf.data.Dataset.from_tensor_slices((X, Y)).batch(8)
    plan = bigbatch.plan(model, dataset, batch_size=4)
    assert plan.measured_by.startswith("resident memory of the process; in this process, because ")
    assert "Local cannot be imported elsewhere" in plan.measured_by
    assert plan.memory <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert all(np.array_equal(a, b) for a, b in zip(before, state(model), strict=True))


def test_too_little_memory_says_how_much_is_needed():
    pattern = (
        r"^One sample at a time must fit the memory\. Received: memory=1\.0 MiB, and one sample needs .* Use mixed"
    )
    with pytest.raises(bigbatch.AccumulationError, match=pattern):
        bigbatch.plan(build(), X, Y, batch_size=8, memory="1MiB")


@pytest.mark.parametrize("memory", ["lots", "8 potatoes", 0, -1, 2.5, True], ids=repr)
def test_bad_memory(memory):
    with pytest.raises(
        (ValueError, TypeError), match=r'^`memory` must be bytes: .*"8GB" or "512MiB"\. Received: memory='
    ):
        bigbatch.plan(build(), X, Y, batch_size=8, memory=memory)


def test_bad_arguments():
    with pytest.raises(ValueError, match=r"^`model` must be a compiled Keras 3 model\."):
        bigbatch.plan(keras.Sequential([layers.Dense(1)]), X, Y, batch_size=8)
    with pytest.raises(ValueError, match=r"^`batch_size` must be a positive integer\. Received: batch_size=0\."):
        bigbatch.plan(build(), X, Y, batch_size=0)


def test_a_strategy_is_refused():
    with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        model = keras.Sequential([keras.Input((500, 8)), layers.Dense(1)])
        model.compile("adam", "mse")
    with pytest.raises(bigbatch.AccumulationError, match=r"^A plan must be made for one replica\."):
        bigbatch.plan(model, X, Y, batch_size=8)


def test_a_model_that_is_not_built():
    model = keras.Sequential([layers.Dense(4), layers.GlobalAveragePooling1D(), layers.Dense(1)])
    model.compile("adam", "mse", metrics=["mae"])
    plan = bigbatch.plan(model, X, Y, batch_size=4, memory="1GB")
    assert plan.gradients == plan.weights == 4 * (8 * 4 + 4 + 4 + 1)
    model.fit(X, Y, verbose=0)
    assert int(model.optimizer.iterations) == 2
