"""Arguments, errors, callbacks: what a user meets first."""

import subprocess
import sys

import keras
import numpy as np
import pytest

import bigbatch

X, Y = np.zeros((12, 6)), np.ones((12, 2))


@pytest.fixture
def model():
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(2)])
    model.compile(keras.optimizers.SGD(0.1), loss="mse")
    return model


BAD_SIZES = {"zero": 0, "negative": -1, "float": 2.5, "whole_float": 2.0, "bool": True, "string": "16"}


@pytest.mark.parametrize("size", BAD_SIZES.values(), ids=BAD_SIZES)
def test_bad_sizes_change_nothing(model, size):
    before = dict(vars(model))
    expected = r'^`micro_batch_size` must be a positive integer, "auto" or None\.'
    pattern = rf"{expected} Received: micro_batch_size={size!r}\. Use None"
    with pytest.raises((ValueError, TypeError), match=pattern):
        bigbatch.accumulate(model, micro_batch_size=size)
    assert vars(model) == before


def test_bad_sizes_keep_the_earlier_ones(model):
    bigbatch.accumulate(model, micro_batch_size=4)
    train_function = model.make_train_function()
    with pytest.raises(ValueError, match="positive integer"):
        bigbatch.accumulate(model, micro_batch_size=0)
    assert model.make_train_function() is train_function


def test_bad_batch_norm(model):
    with pytest.raises(ValueError, match=r"`batch_norm` must be .* Received: batch_norm='synced'\. Leave it out"):
        bigbatch.accumulate(model, batch_norm="synced")


def test_not_a_model():
    with pytest.raises(TypeError, match=r"`model` must be a Keras 3 `keras.Model`.*Received: model=3\. Pass the model"):
        bigbatch.accumulate(3, micro_batch_size=4)


def test_an_uncompiled_model_at_fit():
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(2)])
    bigbatch.accumulate(model, micro_batch_size=4)
    with pytest.raises(ValueError, match=r"must be compiled.*Received: compiled=False\. Call `model.compile`"):
        model.fit(X, Y, verbose=0)


def test_release_twice(model):
    bigbatch.accumulate(model, micro_batch_size=4)
    bigbatch.release(model)
    with pytest.raises(
        ValueError, match=r"must be accumulated.*Received: model='sequential.*Call `bigbatch.accumulate`"
    ):
        bigbatch.release(model)


def test_release_leaves_no_trace(model):
    model.fit(X, Y, verbose=0)
    names = set(vars(model))
    bigbatch.accumulate(model, micro_batch_size=4)
    model.fit(X, Y, verbose=0)
    bigbatch.release(model)
    assert set(vars(model)) == names
    assert model.make_train_function.__func__ is type(model).make_train_function


def test_no_class_is_changed(model):
    def functions():
        objects = (type(model), keras.Model, keras.losses.Loss, keras.metrics.Mean, keras.optimizers.SGD)
        return [dict(vars(base)) for cls in objects for base in cls.__mro__]

    before = functions()
    bigbatch.accumulate(model, micro_batch_size=4)
    model.fit(X, Y, verbose=0)
    assert functions() == before


def test_no_override_survives_an_update(model):
    bigbatch.accumulate(model, micro_batch_size=4)
    model.fit(X, Y, verbose=0)
    assert "apply" not in vars(model.optimizer)
    assert not any({"update_state", "result"} & set(vars(metric)) for metric in model.metrics)


def test_returns_the_model_and_takes_it_before_compile():
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(2)])
    assert bigbatch.accumulate(model, micro_batch_size=4) is model
    model.compile(keras.optimizers.SGD(0.1), loss="mse")
    model.fit(X, Y, batch_size=12, verbose=0)
    assert int(model.optimizer.iterations) == 1


class Change(keras.callbacks.Callback):
    def __init__(self, change):
        self.change = change

    def on_train_batch_end(self, batch, logs=None):
        self.change(self.model)


@pytest.mark.parametrize(
    "change",
    [lambda model: bigbatch.accumulate(model, micro_batch_size=3), lambda model: bigbatch.accumulate(model)],
    ids=["other_size", "off"],
)
def test_a_callback_may_change_the_size_while_training(model, change):
    bigbatch.accumulate(model, micro_batch_size=5)
    model.fit(X, Y, batch_size=4, epochs=2, verbose=0, callbacks=[Change(change)])
    assert int(model.optimizer.iterations) == 6


class Counter(keras.callbacks.Callback):
    def __init__(self):
        self.batches, self.logs = [], []

    def on_train_batch_end(self, batch, logs=None):
        self.batches.append(batch)
        self.logs.append(sorted(logs))


def test_callbacks_and_steps_count_updates(model):
    counter = Counter()
    bigbatch.accumulate(model, micro_batch_size=2)
    history = model.fit(X, Y, batch_size=5, epochs=2, verbose=0, callbacks=[counter])
    assert counter.batches == [0, 1, 2] * 2
    assert counter.logs == [["loss"]] * 6
    assert history.params["steps"] == 3


def test_validation_and_evaluation_are_untouched(model):
    bigbatch.accumulate(model, micro_batch_size=5)
    history = model.fit(X, Y, batch_size=12, validation_data=(X, Y), verbose=0).history
    np.testing.assert_allclose(history["val_loss"][-1], model.evaluate(X, Y, verbose=0), rtol=1e-6)


def run_python(program):
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)


def test_another_backend_is_refused_by_name(model, monkeypatch):
    monkeypatch.setattr(keras.config, "backend", lambda: "jax")
    pattern = r"\"tensorflow\" backend, the only one.*Received: backend='jax'\. Set KERAS_BACKEND=tensorflow"
    with pytest.raises(ValueError, match=pattern):
        bigbatch.accumulate(model, micro_batch_size=4)


def test_without_tensorflow_the_remedy_is_named():
    done = run_python("import sys, bigbatch; sys.modules['tensorflow'] = None; bigbatch.accumulate")
    assert done.returncode == 1
    assert "needs TensorFlow. Received: no module 'tensorflow'. Install it with" in done.stderr
    assert 'pip install "bigbatch[tensorflow]"' in done.stderr


def test_importing_bigbatch_imports_neither_keras_nor_tensorflow():
    done = run_python("import sys, bigbatch; sys.exit('keras' in sys.modules or 'tensorflow' in sys.modules)")
    assert done.returncode == 0, done.stderr


def test_exported_members():
    assert bigbatch.__all__ == sorted(bigbatch.__all__)
    assert all(getattr(bigbatch, name) for name in bigbatch.__all__)
    assert dir(bigbatch) == bigbatch.__all__
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        bigbatch.nothing  # noqa: B018
