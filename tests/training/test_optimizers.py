"""Every Keras optimizer takes the same step as on the whole batch, and takes it once."""

from functools import cache

import keras
import numpy as np
import pytest
from oracle import NUM_SAMPLES, assert_same, fit_arrays, train

import bigbatch

optimizers = keras.optimizers
halving = lambda: optimizers.schedules.ExponentialDecay(0.1, decay_steps=2, decay_rate=0.5, staircase=True)  # noqa: E731

OPTIMIZERS = {
    "adadelta": lambda: optimizers.Adadelta(0.1),
    "adafactor": lambda: optimizers.Adafactor(0.1),
    "adagrad": lambda: optimizers.Adagrad(0.1),
    "adam": lambda: optimizers.Adam(0.1),
    "adam_amsgrad": lambda: optimizers.Adam(0.1, amsgrad=True),
    "adamax": lambda: optimizers.Adamax(0.1),
    "adamw": lambda: optimizers.AdamW(0.1, weight_decay=0.1),
    "ftrl": lambda: optimizers.Ftrl(0.1),
    "lamb": lambda: optimizers.Lamb(0.1),
    "lion": lambda: optimizers.Lion(0.01),
    "multioptimizer": lambda: optimizers.MultiOptimizer(
        optimizers.OptimizerMap(optimizers.Adam(0.1), {".*bias": optimizers.SGD(0.1)})
    ),
    "nadam": lambda: optimizers.Nadam(0.1),
    "rmsprop": lambda: optimizers.RMSprop(0.1, momentum=0.5, centered=True),
    "schedulefreeadamw": lambda: optimizers.ScheduleFreeAdamW(0.1),
    "sgd": lambda: optimizers.SGD(0.1, momentum=0.9, nesterov=True),
    "weight_decay": lambda: optimizers.SGD(0.1, weight_decay=0.1),
    "clipnorm": lambda: optimizers.SGD(0.1, clipnorm=0.05),
    "global_clipnorm": lambda: optimizers.SGD(0.1, global_clipnorm=0.05),
    "clipvalue": lambda: optimizers.SGD(0.1, clipvalue=0.01),
    "ema": lambda: optimizers.Adam(0.1, use_ema=True, ema_momentum=0.8),
    "ema_overwrite": lambda: optimizers.Adam(0.1, use_ema=True, ema_momentum=0.8, ema_overwrite_frequency=2),
    "schedule": lambda: optimizers.SGD(halving()),
    "loss_scale_factor": lambda: optimizers.SGD(0.1, loss_scale_factor=8.0),
}

for newer in {"MultiOptimizer", "ScheduleFreeAdamW"} - set(vars(optimizers)):  # since Keras 3.13
    del OPTIMIZERS[newer.lower()]

rng = np.random.default_rng(1)
FIT = fit_arrays(rng.normal(size=(NUM_SAMPLES, 6)), rng.normal(size=(NUM_SAMPLES, 2)))


def build(name):
    inputs = keras.Input((6,))
    hidden = keras.layers.Dense(5, activation="tanh", kernel_constraint=keras.constraints.MaxNorm(1.0))(inputs)
    model = keras.Model(inputs, keras.layers.Dense(2, kernel_regularizer="l2")(hidden))
    model.compile(OPTIMIZERS[name](), loss="mse", metrics=["mae"])
    return model


@cache
def whole(name):
    return train(lambda: build(name), FIT)


@pytest.mark.parametrize("size", [1, 5], ids=["one", "ragged"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_equals_the_whole_batch(name, size):
    """An optimizer is handed one mean, whatever it was made of; the other sizes are those of test_losses.py."""
    ours = train(lambda: build(name), FIT, lambda model: bigbatch.accumulate(model, micro_batch_size=size))
    assert_same(ours, whole(name))


def test_every_optimizer_of_keras_is_here():
    of_keras = {
        name.lower()
        for name, value in vars(optimizers).items()
        if isinstance(value, type) and issubclass(value, optimizers.Optimizer)
    }
    # Muon fails under float64 in Keras itself; it has its own test in float32. The others wrap or are abstract.
    assert of_keras - {"optimizer", "lossscaleoptimizer", "muon"} <= set(OPTIMIZERS)


def test_muon_in_float32():
    keras.config.set_floatx("float32")
    keras.config.set_dtype_policy("float32")
    x, y = rng.normal(size=(12, 6)).astype("float32"), rng.normal(size=(12, 2)).astype("float32")

    def run(size):
        keras.utils.set_random_seed(7)
        model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(5, activation="tanh"), keras.layers.Dense(2)])
        model.compile(optimizers.Muon(0.05), loss="mse")
        before = model.get_weights()
        bigbatch.accumulate(model, micro_batch_size=size)
        model.fit(x, y, batch_size=12, epochs=3, shuffle=False, verbose=0)
        return before, model.get_weights()

    before, reference = run(None)
    _, ours = run(5)
    moved = max(np.abs(a - b).max() for a, b in zip(before, reference))
    assert moved > 0.01
    # Muon orthogonalises in bfloat16: its own rounding is the limit.
    assert max(np.abs(a - b).max() for a, b in zip(ours, reference)) < 1e-2 * moved


def test_iterations_count_updates():
    keras.utils.set_random_seed(7)
    model = build("adam")
    bigbatch.accumulate(model, micro_batch_size=1)
    FIT(model)
    assert int(model.optimizer.iterations) == 6
