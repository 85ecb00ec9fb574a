"""What is saved is plain Keras: it loads where bigbatch was never imported, and back."""

import pickle
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

import bigbatch

layers = keras.layers
rng = np.random.default_rng(11)
X, Y = rng.normal(size=(12, 6)).astype("float32"), rng.normal(size=(12, 2)).astype("float32")


@pytest.fixture(autouse=True)
def float32(float64):
    keras.config.set_floatx("float32")
    keras.config.set_dtype_policy("float32")


@pytest.fixture
def model():
    keras.utils.set_random_seed(7)
    model = keras.Sequential([keras.Input((6,)), layers.Dense(5, activation="tanh"), layers.Dense(2)])
    model.compile(keras.optimizers.Adam(0.1), loss="mse", metrics=["mae"])
    bigbatch.accumulate(model, micro_batch_size=5)
    model.fit(X, Y, verbose=0)
    return model


SAME = "keras.Sequential([keras.Input((6,)), keras.layers.Dense(5, activation='tanh'), keras.layers.Dense(2)])"
LOAD = {
    "keras": "model = keras.models.load_model(path + '/model.keras'); predict = model.predict",
    "weights": (f"model = {SAME};model.load_weights(path + '/model.weights.h5'); predict = model.predict"),
    "export": "loaded = tf.saved_model.load(path + '/exported'); predict = loaded.serve",
    "checkpoint": (
        f"model = {SAME};"
        "model.compile('adam', 'mse'); model.optimizer.build(model.trainable_variables);"
        "tf.train.Checkpoint(model=model, optimizer=model.optimizer).restore(path + '/checkpoint-1').assert_consumed();"
        "predict = model.predict"
    ),
}


@pytest.fixture
def saved(model, tmp_path):
    model.save(tmp_path / "model.keras")
    model.save_weights(tmp_path / "model.weights.h5")
    model.export(tmp_path / "exported", verbose=False)
    tf.train.Checkpoint(model=model, optimizer=model.optimizer).save(tmp_path / "checkpoint")
    np.save(tmp_path / "x.npy", X)
    return tmp_path


@pytest.mark.parametrize("how", LOAD)
def test_loads_in_a_process_that_never_imported_bigbatch(how, model, saved):
    program = (
        "import sys, numpy as np, keras, tensorflow as tf; path = sys.argv[1];"
        f"{LOAD[how]}; np.save(path + '/out.npy', np.array(predict(np.load(path + '/x.npy'))));"
        "assert 'bigbatch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program, str(saved)], check=True, capture_output=True)
    np.testing.assert_allclose(np.load(saved / "out.npy"), model.predict(X, verbose=0), rtol=1e-5, atol=1e-6)


def test_a_loaded_model_goes_on_where_it_stopped(model, saved):
    loaded = keras.models.load_model(saved / "model.keras")
    assert "make_train_function" not in vars(loaded)
    bigbatch.accumulate(loaded, micro_batch_size=5)
    for each in (model, loaded):
        each.fit(X, Y, epochs=2, shuffle=False, verbose=0)
    for a, b in zip(model.variables, loaded.variables, strict=True):
        assert np.array_equal(a.numpy(), b.numpy())
    assert int(loaded.optimizer.iterations) == 3


@pytest.mark.parametrize("change", [lambda model: bigbatch.release(model), lambda model: None], ids=["off", "on"])
def test_switching_keeps_the_optimizer(model, change):
    before = [variable.numpy() for variable in model.optimizer.variables]
    change(model)
    bigbatch.accumulate(model, micro_batch_size=3)
    after = [variable.numpy() for variable in model.optimizer.variables]
    assert all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))
    model.fit(X, Y, verbose=0)
    assert int(model.optimizer.iterations) == 2


def test_a_plain_file_and_ours_hold_the_same_variables(model, tmp_path):
    """Saved and loaded by plain Keras, then accumulated: nothing is missing, nothing is left over."""
    plain = keras.models.clone_model(model)
    plain.compile(keras.optimizers.Adam(0.1), loss="mse")
    plain.fit(X, Y, verbose=0)
    plain.save_weights(tmp_path / "plain.weights.h5")
    model.load_weights(tmp_path / "plain.weights.h5")
    assert all(np.array_equal(a, b) for a, b in zip(plain.get_weights(), model.get_weights(), strict=True))


@keras.saving.register_keras_serializable("tests")
class Mine(keras.Model):
    def __init__(self, units=2):
        super().__init__()
        self.units = units
        self.outer = layers.Dense(units)

    def call(self, inputs):
        return self.outer(inputs)

    def get_config(self):
        return {"units": self.units}


def test_a_saved_model_of_the_users_class_loads_as_that_class(tmp_path):
    model = Mine()
    model.compile("sgd", loss="mse")
    bigbatch.accumulate(model, micro_batch_size=5)
    model.fit(X, Y, verbose=0)
    assert type(model) is Mine
    model.save(tmp_path / "mine.keras")
    loaded = keras.models.load_model(tmp_path / "mine.keras")
    assert type(loaded) is Mine
    np.testing.assert_allclose(loaded.predict(X, verbose=0), model.predict(X, verbose=0), rtol=1e-6)


def test_clones_and_configs_are_plain(model):
    clone = keras.models.clone_model(model)
    assert type(clone) is type(model)
    assert "make_train_function" not in vars(clone)
    config = pickle.loads(pickle.dumps(model.get_config()))
    assert isinstance(keras.Sequential.from_config(config), keras.Sequential)
    assert pickle.loads(pickle.dumps(model)).predict(X, verbose=0).shape == (12, 2)


def test_nothing_of_ours_is_tracked(model):
    assert not any("bigbatch" in name or "accum" in name for name in map(str, model.variables))
    plain = keras.models.clone_model(model)
    assert {v.path for v in model.variables} == {v.path for v in plain.variables}
