"""Graph, XLA, eager, several steps per execution; and how often things are traced."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from oracle import NUM_SAMPLES, SIZES, assert_same, fit_arrays, train

import bigbatch

layers = keras.layers
rng = np.random.default_rng(5)
X, Y = rng.normal(size=(NUM_SAMPLES, 6)), rng.normal(size=(NUM_SAMPLES, 2))
FIT = fit_arrays(X, Y)

MODES = {
    "graph": {},
    "xla": {"jit_compile": True},
    "eager": {"run_eagerly": True},
    "two_per_execution": {"steps_per_execution": 2},
    "xla_two_per_execution": {"jit_compile": True, "steps_per_execution": 2},
}


class Counting(keras.Model):
    """Counts how often its `train_step` is traced."""

    def __init__(self):
        super().__init__()
        self.inner = layers.Dense(5, activation="tanh", kernel_regularizer="l2")
        self.outer = layers.Dense(2)
        self.num_traces = 0

    def build(self, input_shape):
        self.inner.build(input_shape)
        self.outer.build((None, 5))

    def call(self, inputs):
        return self.outer(self.inner(inputs))

    def train_step(self, data):
        self.num_traces += 1
        return super().train_step(data)


def build(**mode):
    model = Counting()
    model.compile(keras.optimizers.Adam(0.1), loss="mse", metrics=["mae"], **mode)
    return model


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("mode", MODES)
def test_equals_the_whole_batch(mode, size):
    ours = train(lambda: build(**MODES[mode]), FIT, lambda m: bigbatch.accumulate(m, micro_batch_size=size))
    assert_same(ours, train(lambda: build(**MODES[mode]), FIT))


@pytest.fixture
def model():
    model = build()
    model.build((None, 6))
    return model


def batches(*sizes):
    """A dataset of batches whose size is known to the trace."""
    parts = [tf.data.Dataset.from_tensors((X[:size], Y[:size])) for size in sizes]
    return parts[0] if len(parts) == 1 else parts[0].concatenate(parts[1])


def test_two_traces_of_the_train_step_serve_everything(model):
    """One that builds what is lazy, and one for every micro-batch of every batch of every epoch."""
    bigbatch.accumulate(model, micro_batch_size=4)
    FIT(model)
    assert model.num_traces == 2
    FIT(model)
    assert model.num_traces == 2


def test_the_smaller_last_batch_adds_at_most_one(model):
    bigbatch.accumulate(model, micro_batch_size=4)
    model.fit(batches(12), epochs=2, verbose=0)
    before = model.num_traces
    model.fit(batches(6), epochs=2, verbose=0)
    assert model.num_traces <= before + 1


class CountingOps(Counting):
    """Sees the graph that it is traced into."""

    def train_step(self, data):
        self.graph = tf.compat.v1.get_default_graph()
        while getattr(self.graph, "outer_graph", None) is not None and self.graph.outer_graph.building_function:
            self.graph = self.graph.outer_graph
        return super().train_step(data)


def graph_size(num_samples):
    model = CountingOps()
    model.build((None, 6))
    model.compile("sgd", loss="mse")
    bigbatch.accumulate(model, micro_batch_size=4)
    model.fit(np.zeros((num_samples, 6)), np.zeros((num_samples, 2)), batch_size=num_samples, verbose=0)
    graph = model.graph.as_graph_def()
    return len(graph.node) + sum(len(function.node_def) for function in graph.library.function)


def test_the_graph_does_not_grow_with_the_number_of_micro_batches():
    assert graph_size(8) > 100
    assert graph_size(8) == graph_size(1024)


def test_accumulate_again_and_release_take_effect(model):
    seen = []
    model.train_step = lambda data: seen.append(data[0].shape[0]) or Counting.train_step(model, data)
    model.run_eagerly = True
    bigbatch.accumulate(model, micro_batch_size=5)
    model.fit(X[:10], Y[:10], batch_size=10, verbose=0)
    assert seen == [5, 5, 5]  # the first is the survey
    seen.clear()
    bigbatch.accumulate(model, micro_batch_size=2)
    model.fit(X[:10], Y[:10], batch_size=10, verbose=0)
    assert seen == [2] * 6
    seen.clear()
    assert bigbatch.release(model) is model
    model.fit(X[:10], Y[:10], batch_size=10, verbose=0)
    assert seen == [10]


def test_off_is_plain_keras(model):
    bigbatch.accumulate(model)
    FIT(model)
    plain = build()
    plain.build((None, 6))
    FIT(plain)
    assert model.num_traces == plain.num_traces
    assert type(model.train_function) is type(plain.train_function)


def test_a_failed_update_changes_nothing():
    """An error in the middle of the micro-batches leaves weights and optimizer as they were."""
    inputs = keras.Input((6,))
    checked = layers.Lambda(lambda x: tf.debugging.check_numerics(x, "poisoned"), output_shape=(6,))(inputs)
    model = keras.Model(inputs, layers.Dense(2)(checked))
    model.compile(keras.optimizers.Adam(0.1), loss="mse")
    bigbatch.accumulate(model, micro_batch_size=4)
    FIT(model)
    before = [variable.numpy() for variable in model.variables + model.optimizer.variables]
    poisoned = X.copy()
    poisoned[11] = np.nan
    with pytest.raises(tf.errors.InvalidArgumentError, match="poisoned"):
        model.fit(poisoned, Y, batch_size=12, shuffle=False, verbose=0)
    after = [variable.numpy() for variable in model.variables + model.optimizer.variables]
    assert all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))
    FIT(model)
    assert int(model.optimizer.iterations) == 12


def test_what_is_built_is_traced_once():
    """The survey's trace trains, and the optimizer is built before it; Keras itself traces twice."""
    calls = []

    class Counted(keras.layers.Dense):
        def call(self, inputs):
            calls.append(inputs.shape)
            return super().call(inputs)

    model = keras.Sequential([keras.Input((6,)), Counted(2)])
    model.compile("adam", "mse")
    bigbatch.accumulate(model, micro_batch_size=4)
    calls.clear()
    data = tf.data.Dataset.from_tensor_slices((X[:24], Y[:24])).batch(12, drop_remainder=True)
    model.fit(data, verbose=0, epochs=2)
    assert calls == [(4, 6)]


class WithHead(keras.layers.Layer):
    """Has a part that only training builds."""

    def __init__(self):
        super().__init__()
        self.always, self.head = keras.layers.Dense(4), keras.layers.Dense(4)

    def build(self, shape):
        self.always.build(shape)

    def call(self, inputs, training=None):
        return self.always(inputs) + self.head(inputs) if training else self.always(inputs)


class Thawing(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        self.model.layers[0].trainable = True


class Remembering(keras.optimizers.SGD):
    """Writes to its slots when it is built."""

    def build(self, variables):
        if not self.built:
            super().build(variables)
            self.slow = [self.add_variable_from_reference(each, name="slow") for each in variables]
            for slow, variable in zip(self.slow, variables):
                slow.assign(variable)

    def update_step(self, gradient, variable, learning_rate):
        super().update_step(gradient, variable, learning_rate)
        slow = self.slow[self._get_variable_index(variable)]
        slow.assign(0.5 * slow + 0.5 * variable)
        variable.assign(slow)


LATE = {
    "a layer that only training builds": (lambda: [WithHead(), keras.layers.Dense(2)], "adam", True, []),
    "a layer that a callback thaws": (
        lambda: [keras.layers.Dense(4), keras.layers.Dense(2)],
        "adam",
        False,
        [Thawing],
    ),
    "an optimizer that writes when it is built": (lambda: [keras.layers.Dense(2)], Remembering, True, []),
}


@pytest.mark.parametrize("name", LATE)
def test_an_optimizer_is_not_built_too_early(name):
    layers, optimizer, trainable, callbacks = LATE[name]

    def build():
        model = keras.Sequential([keras.Input((6,)), *layers()])
        model.layers[0].trainable = trainable
        model.compile(optimizer() if callable(optimizer) else optimizer, "mse")
        model.evaluate(X, Y, verbose=0)
        return model

    fit = fit_arrays(X, Y, callbacks=[make() for make in callbacks])
    ours = train(build, fit, lambda model: bigbatch.accumulate(model, micro_batch_size=4))
    for mine, theirs in zip(ours.weights, train(build, fit).weights, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-9)
