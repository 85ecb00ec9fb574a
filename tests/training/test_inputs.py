"""Whatever `fit` takes can be split."""

from functools import cache

import keras
import numpy as np
import pytest
import tensorflow as tf
from oracle import BATCH_SIZE, NUM_SAMPLES, SIZES, assert_same, fit_arrays, train

import bigbatch

layers = keras.layers
rng = np.random.default_rng(3)
X, Z, Y = (rng.normal(size=(NUM_SAMPLES, width)) for width in (6, 4, 2))
WEIGHTS = rng.uniform(0.1, 5, size=(NUM_SAMPLES,))
TOKENS = [rng.integers(1, 10, size=rng.integers(1, 9)) for _ in range(NUM_SAMPLES)]


def compiled(inputs, outputs):
    model = keras.Model(inputs, outputs)
    several = isinstance(outputs, list)
    model.compile(keras.optimizers.SGD(0.1), loss="mse", metrics=["mae", "mse"] if several else ["mae"])
    return model


def one_input():
    inputs = keras.Input((6,))
    return compiled(inputs, layers.Dense(2)(layers.Dense(5, activation="tanh")(inputs)))


def nested_inputs():
    inputs = {"a": keras.Input((6,), name="a"), "rest": [keras.Input((4,), name="b"), keras.Input((1,), name="c")]}
    flat = [inputs["a"], *inputs["rest"]]
    return compiled(
        inputs, [layers.Dense(2, name="p")(layers.Concatenate()(flat)), layers.Dense(1, name="q")(inputs["a"])]
    )


class Generator(keras.utils.PyDataset):
    def __len__(self):
        return 3

    def __getitem__(self, index):
        part = slice(index * BATCH_SIZE, (index + 1) * BATCH_SIZE)
        return X[part], Y[part], WEIGHTS[part]


def dataset(*arrays):
    return tf.data.Dataset.from_tensor_slices(arrays if len(arrays) > 1 else arrays[0]).batch(BATCH_SIZE)


def fit_data(make, **arguments):
    return lambda model: model.fit(make(), epochs=2, verbose=0, **arguments)


def generator():
    while True:
        for index in range(3):
            yield Generator()[index]


def ragged_model():
    model = BagOfTokens()
    model.compile(keras.optimizers.SGD(0.1), loss="mse", metrics=["mae"])
    return model


class BagOfTokens(keras.Model):
    def __init__(self):
        super().__init__()
        self.outer = layers.Dense(2)
        self.outer.build((None, 10))
        self.built = True

    def call(self, tokens):
        counts = tf.reduce_sum(tf.one_hot(tokens, 10, dtype=tf.float64), axis=1)
        return self.outer(counts.to_tensor() if isinstance(counts, tf.RaggedTensor) else counts)


def sparse_model():
    inputs = keras.Input((6,), sparse=True)
    return compiled(inputs, layers.Dense(2)(inputs))


def sparse_dataset():
    tensor = tf.sparse.from_dense(np.where(X > 0, X, 0))
    return tf.data.Dataset.from_tensor_slices((tensor, Y)).batch(BATCH_SIZE)


def static_dataset():
    return tf.data.Dataset.from_tensor_slices((X[:24], Y[:24])).batch(BATCH_SIZE, drop_remainder=True)


CASES = {
    "arrays": (one_input, fit_arrays(X, Y)),
    "tensors": (one_input, fit_arrays(tf.constant(X), tf.constant(Y))),
    "nested": (nested_inputs, fit_arrays({"a": X, "rest": [Z, Z[:, :1]]}, [Y, Y[:, :1]])),
    "dataset": (one_input, fit_data(lambda: dataset(X, Y, WEIGHTS))),
    "dataset_of_static_batches": (one_input, fit_data(static_dataset)),
    "py_dataset": (one_input, fit_data(Generator, shuffle=False)),
    "generator": (one_input, fit_data(generator, steps_per_epoch=3)),
    "sparse_tensors": (sparse_model, fit_data(sparse_dataset)),
}


@cache
def whole(name):
    return train(*CASES[name])


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("name", CASES)
def test_equals_the_whole_batch(name, size):
    ours = train(*CASES[name], lambda model: bigbatch.accumulate(model, micro_batch_size=size))
    assert_same(ours, whole(name))


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
def test_ragged_tensors(size):
    ragged = tf.ragged.constant([list(map(int, tokens)) for tokens in TOKENS], dtype="int32")
    fit = fit_data(lambda: dataset(ragged, Y))
    ours = train(ragged_model, fit, lambda model: bigbatch.accumulate(model, micro_batch_size=size))
    assert_same(ours, train(ragged_model, fit))


def test_train_on_batch():
    fit = lambda model: Logs([model.train_on_batch(X, Y, return_dict=True) for _ in range(3)])  # noqa: E731
    ours = train(one_input, fit, lambda model: bigbatch.accumulate(model, micro_batch_size=7))
    assert_same(ours, train(one_input, fit))


class Logs:
    def __init__(self, logs):
        self.history = {name: [log[name] for log in logs] for name in logs[0]}


def test_a_scalar_in_the_batch_is_refused():
    model = bigbatch.accumulate(one_input(), micro_batch_size=4)
    data = dataset(X, Y).map(lambda x, y: (x, y, tf.constant(1.0)))
    with pytest.raises(bigbatch.AccumulationError, match=r"first dimension.*Received: a scalar.*Repeat a scalar"):
        model.fit(data, verbose=0)


def test_unequal_sizes_are_refused():
    model = bigbatch.accumulate(one_input(), micro_batch_size=4)
    data = static_dataset().map(lambda x, y: (x, y[:6]))
    with pytest.raises(bigbatch.AccumulationError, match=r"agree.*Received: first dimensions \[6, 12\].*one row per"):
        model.fit(data, verbose=0)


def test_unequal_sizes_unknown_to_the_trace_are_refused():
    model = bigbatch.accumulate(one_input(), micro_batch_size=4)
    data = dataset(X, Y).map(lambda x, y: (x, tf.concat([y, y], 0)))
    with pytest.raises(tf.errors.InvalidArgumentError, match="agree in their number of samples"):
        model.fit(data, verbose=0)
