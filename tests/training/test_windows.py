"""Several batches per update: a window equals training on its batches joined into one."""

from functools import cache

import keras
import numpy as np
import pytest
import tensorflow as tf
from oracle import NUM_SAMPLES, assert_same, eagerly, train
from ragged import SIZES, dataset, fit, joined, parts
from test_losses import CASES as LOSS_CASES
from test_losses import LABELS, MANY_X, MANY_Y, TOKEN_WEIGHTS, TOKENS, WEIGHTS, X, Y, dense, tagger, two_outputs
from test_optimizers import OPTIMIZERS

import bigbatch
from bigbatch.training.stream import Limit
from bigbatch.training.update import Update

losses, schedules = keras.losses, bigbatch.schedules


CASES = {
    "mean": (LOSS_CASES["mean"][0], (X, Y)),
    "sum": (lambda: LOSS_CASES["sum"][0](), (X, Y)),
    "mean_with_sample_weight": (LOSS_CASES["mean_with_sample_weight"][0], (X, Y, WEIGHTS)),
    "sample_weight": (LOSS_CASES["sample_weight"][0], (X, Y, WEIGHTS)),
    "mask": (tagger, (TOKENS, LABELS)),
    "mask_and_l2": (lambda: tagger(regularizer="l2"), (TOKENS, LABELS)),
    "mask_and_weights": (tagger, (TOKENS, LABELS, TOKEN_WEIGHTS)),
    "different_masks": (two_outputs, (MANY_X, MANY_Y)),
    "different_masks_and_a_sum": (lambda: two_outputs("sum"), (MANY_X, MANY_Y)),
    "add_loss": (LOSS_CASES["add_loss_of_a_mean"][0], (X, Y)),
}
if "regularizers" in LOSS_CASES:
    CASES["regularizers"] = (LOSS_CASES["regularizers"][0], (X, Y))
    CASES["mask_and_activity"] = (lambda: tagger(activity="l2"), (TOKENS, LABELS))
WINDOWS = {"three": 3, "four": 4, "larger_than_the_epoch": 50, "ramp": schedules.ramp(1, 4, updates=4)}


def num_epochs(window):
    return 1 if callable(window) else 2  # a schedule goes on over epochs, the reference here does not


@cache
def whole(name, window):
    """The reference: plain Keras on the joined batches."""
    build, arrays = CASES[name]
    return train(build, fit(lambda: dataset(joined(SIZES, window), *arrays), epochs=num_epochs(window)))


@pytest.mark.parametrize("size", [None, 2], ids=["batches", "micro_batches"])
@pytest.mark.parametrize("window", WINDOWS.values(), ids=WINDOWS)
@pytest.mark.parametrize("name", CASES)
def test_equals_the_joined_batches(name, window, size):
    build, arrays = CASES[name]
    ours = train(
        build,
        fit(lambda: dataset(SIZES, *arrays), epochs=num_epochs(window)),
        lambda model: bigbatch.accumulate(model, batches_per_update=window, micro_batch_size=size),
    )
    assert_same(ours, whole(name, window))


@pytest.mark.parametrize("mode", [{"run_eagerly": True}, {"jit_compile": True}, {"steps_per_execution": 2}], ids=str)
@pytest.mark.parametrize("size", [None, 2], ids=["batches", "micro_batches"])
def test_every_execution(mode, size):
    def build():
        model = dense("mse")
        model.compile(keras.optimizers.Adam(0.1), loss="mse", metrics=["mae"], **mode)
        return model

    ours = train(
        build,
        fit(lambda: dataset(SIZES, X, Y)),
        lambda model: bigbatch.accumulate(model, batches_per_update=4, micro_batch_size=size),
    )
    assert_same(ours, train(build, fit(lambda: dataset(joined(SIZES, 4), X, Y))))


def test_pure_sum_without_regularizers():
    def build():
        model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(2)])
        model.compile(keras.optimizers.SGD(0.01), loss=losses.MeanSquaredError(reduction="sum"))
        return model

    ours = train(
        build, fit(lambda: dataset(SIZES, X, Y)), lambda model: bigbatch.accumulate(model, batches_per_update=4)
    )
    assert_same(ours, train(build, fit(lambda: dataset(joined(SIZES, 4), X, Y))))


def padded_batches(sizes):
    """Each batch is only as wide as its longest sample."""
    for tokens, labels in parts(sizes, TOKENS, LABELS):
        width = max(1, int((tokens > 0).sum(axis=1).max()))
        yield tokens[:, :width], labels[:, :width]


@pytest.mark.parametrize("size", [None, 2], ids=["batches", "micro_batches"])
def test_batches_of_different_padded_lengths_share_a_window(size):
    def build():
        inputs = keras.Input((None,), dtype="int32")
        hidden = keras.layers.Embedding(10, 4, mask_zero=True)(inputs)
        model = keras.Model(inputs, keras.layers.Dense(3, activation="softmax")(hidden))
        model.compile(keras.optimizers.SGD(0.5), loss=losses.SparseCategoricalCrossentropy())
        return model

    spec = (tf.TensorSpec((None, None), tf.int64), tf.TensorSpec((None, None), tf.int64))
    narrow = lambda: tf.data.Dataset.from_generator(lambda: padded_batches(SIZES), output_signature=spec).apply(  # noqa: E731
        tf.data.experimental.assert_cardinality(len(SIZES))
    )
    ours = train(
        build, fit(narrow), lambda model: bigbatch.accumulate(model, batches_per_update=4, micro_batch_size=size)
    )
    assert_same(ours, train(build, fit(lambda: dataset(joined(SIZES, 4), TOKENS, LABELS))))


def test_batches_of_a_static_size():
    """Each weighs 1, whatever its size."""
    static = lambda size: tf.data.Dataset.from_tensor_slices((X, Y)).batch(size, drop_remainder=True)  # noqa: E731
    ours = train(
        lambda: dense("mse"), fit(lambda: static(5)), lambda model: bigbatch.accumulate(model, batches_per_update=4)
    )
    assert_same(ours, train(lambda: dense("mse"), fit(lambda: dataset([20, 10], X, Y))))


def test_windows_by_samples():
    """A window closes with the batch that fills it: 4+3+5, 1+4+4+6, 2+1."""
    ours = train(
        lambda: dense("mse"),
        fit(lambda: dataset(SIZES, X, Y)),
        lambda model: bigbatch.accumulate(model, samples_per_update=10),
    )
    assert_same(ours, train(lambda: dense("mse"), fit(lambda: dataset([12, 15, 3], X, Y))))


@pytest.mark.parametrize("name", ["different_masks", "different_masks_and_a_sum"])
def test_held_windows_eagerly(name):
    build, arrays = CASES[name]
    ours = train(
        eagerly(build),
        fit(lambda: dataset(SIZES, *arrays), epochs=1),
        lambda model: bigbatch.accumulate(model, batches_per_update=4, micro_batch_size=2),
    )
    reference = train(build, fit(lambda: dataset(joined(SIZES, 4), *arrays), epochs=1))
    assert_same(ours, reference)


def test_thirty_samples_in_nine_batches():
    assert sum(SIZES) == NUM_SAMPLES
    assert joined(SIZES, 4) == [13, 16, 1]


@pytest.mark.parametrize(("rule", "factors"), [(None, [1, 1, 1]), ("linear", [1, 2, 3]), ("sqrt", [1, 2**0.5, 3**0.5])])
@pytest.mark.parametrize("eagerly", [False, True], ids=["graph", "eager"])
def test_the_applied_rate_follows_the_window(rule, factors, eagerly):
    """Against plain Keras with the factor in its schedule; the stored rate stays as it is."""
    window = schedules.piecewise({0: 1, 1: 2, 2: 3})
    rate = keras.optimizers.schedules.PiecewiseConstantDecay([0, 1], [0.1 * factor for factor in factors])

    def build(learning_rate):
        model = dense("mse")
        model.compile(keras.optimizers.SGD(learning_rate), loss="mse", run_eagerly=eagerly)
        return model

    data = lambda: dataset(SIZES[:6], X[:21], Y[:21])  # noqa: E731
    whole = lambda: dataset(joined(SIZES[:6], window), X[:21], Y[:21])  # noqa: E731
    settings = {"batches_per_update": window, "learning_rate_rule": rule}
    ours = train(lambda: build(0.1), fit(data, epochs=1), lambda model: bigbatch.accumulate(model, **settings))
    reference = train(lambda: build(rate), fit(whole, epochs=1))
    for a, b in zip(ours.weights, reference.weights, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)  # Keras keeps schedules in float32
    assert ours.optimizer[1] == 0.1


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer(name):
    def build():
        model = dense("mse")
        model.compile(OPTIMIZERS[name](), loss="mse", metrics=["mae"])
        return model

    ours = train(
        build, fit(lambda: dataset(SIZES, X, Y)), lambda model: bigbatch.accumulate(model, batches_per_update=4)
    )
    assert_same(ours, train(build, fit(lambda: dataset(joined(SIZES, 4), X, Y))))


def test_batch_norm_statistics_are_those_of_the_window():
    def statistics(sizes, **settings):
        keras.utils.set_random_seed(7)
        norm = keras.layers.BatchNormalization(momentum=0.8)
        model = keras.Sequential([keras.Input((6,)), norm, keras.layers.Dense(2)])
        model.compile("sgd", loss="mse")
        bigbatch.accumulate(model, batch_norm="pooled", **settings)
        model.fit(dataset(sizes, X, Y), epochs=2, verbose=0)
        return norm.moving_mean.numpy(), norm.moving_variance.numpy()

    reference = statistics(joined(SIZES, 4))
    for ours, theirs in zip(statistics(SIZES, batches_per_update=4, micro_batch_size=3), reference, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-10)
    assert np.abs(reference[1] - 1).max() > 0.01


def test_pulling_a_batch_does_not_wait_for_gradients():
    """Such a cycle upsets the order in which oneDNN's kernels replace others, in one process of six."""
    model = dense("mse")
    model.optimizer.build(model.trainable_variables)
    iterator = iter(dataset([4, 4], X, Y))
    traced = tf.function(Update(model, None, pool=True).on_window, autograph=False)
    graph = traced.get_concrete_function(iterator, Limit(tf.constant(4), None), None).graph.as_graph_def()
    [loop] = [node for node in graph.node if node.op == "While"]
    [body] = [each for each in graph.library.function if each.signature.name == loop.attr["body"].func.name]

    # A NoOp waits for all calls, which in the end, when they are inlined, is for what they write: nothing.
    nodes = {node.name: node for node in body.node_def if node.op != "NoOp"}
    optionals = [each.name for each in body.signature.output_arg if each.type == tf.variant.as_datatype_enum]
    waiting, seen = [body.ret[name] for name in optionals], set()
    while waiting:
        name = waiting.pop().lstrip("^").split(":")[0]
        if name in nodes and name not in seen:
            seen.add(name)
            waiting += nodes[name].input
    assert "Less" in {nodes[name].op for name in seen}  # whether the window is open
    [micro_batch] = [node.name for node in body.node_def if "_run_micro_batch" in node.attr["f"].func.name]
    assert micro_batch not in seen
