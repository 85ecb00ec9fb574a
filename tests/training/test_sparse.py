"""Gradients of embeddings stay sparse until the update, and every optimizer sees each row once."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from oracle import NUM_SAMPLES, SIZES, distance, snapshot

import bigbatch

layers = keras.layers
rng = np.random.default_rng(10)
TOKENS = rng.integers(0, 20, size=(NUM_SAMPLES, 8))  # many duplicates, in and between micro-batches
Y = rng.normal(size=(NUM_SAMPLES, 2))

OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.5),
    "momentum": lambda: keras.optimizers.SGD(0.5, momentum=0.9),
    "adam": lambda: keras.optimizers.Adam(0.1),
    "adagrad": lambda: keras.optimizers.Adagrad(0.1),
    "rmsprop": lambda: keras.optimizers.RMSprop(0.1),
    "clipnorm": lambda: keras.optimizers.Adam(0.1, clipnorm=0.01),
    "global_clipnorm": lambda: keras.optimizers.Adam(0.1, global_clipnorm=0.01),
}


def build(optimizer, **mode):
    keras.utils.set_random_seed(7)
    inputs = keras.Input((8,), dtype="int32")
    hidden = layers.GlobalAveragePooling1D()(layers.Embedding(20, 4)(inputs))
    model = keras.Model(inputs, layers.Dense(2)(hidden))
    model.compile(OPTIMIZERS[optimizer](), loss="mse", **mode)
    return model


def dense_reference(optimizer, num_updates):
    """Keras' own Adam squares duplicate rows one by one, so the reference makes the gradient dense first."""
    model = build(optimizer)
    for _ in range(num_updates):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(TOKENS, training=True) - Y))
        gradients = tape.gradient(loss, model.trainable_variables)
        assert isinstance(gradients[0], tf.IndexedSlices)
        model.optimizer.apply([tf.convert_to_tensor(g) for g in gradients], model.trainable_variables)
    return model


@pytest.mark.parametrize("mode", [{}, {"run_eagerly": True}, {"jit_compile": True}], ids=["graph", "eager", "xla"])
@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
def test_equals_the_dense_whole_batch(size, mode):
    assert_equal_to_dense("adam", size, mode)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_kind_of_optimizer(optimizer):
    assert_equal_to_dense(optimizer, 7, {})


def assert_equal_to_dense(optimizer, size, mode):
    reference = dense_reference(optimizer, 3)
    ours = build(optimizer, **mode)
    before = snapshot(ours.weights)
    bigbatch.accumulate(ours, micro_batch_size=size)
    ours.fit(TOKENS, Y, batch_size=NUM_SAMPLES, epochs=3, shuffle=False, verbose=0)
    moved = max(np.abs(a - b).max() for a, b in zip(before, snapshot(reference.weights)))
    assert moved > 0.01
    assert distance(snapshot(ours.weights), snapshot(reference.weights), moved) < 1e-10
    slots = snapshot(reference.optimizer.variables)
    assert distance(snapshot(ours.optimizer.variables), slots, 1.0) < 1e-10


def test_the_loop_holds_no_dense_table():
    """The table's gradient has its dense shape once in the whole graph: after the loop."""
    model = build("sgd")
    bigbatch.accumulate(model, micro_batch_size=4)
    seen = []
    train_step = type(model).train_step

    def look(data):
        logs = train_step(model, data)
        graph = tf.compat.v1.get_default_graph()
        seen.append([op.type for op in graph.get_operations() if op.type == "UnsortedSegmentSum"])
        return logs

    object.__setattr__(model, "train_step", look)
    model.fit(TOKENS, Y, batch_size=NUM_SAMPLES, verbose=0)
    assert seen
    assert not any(seen)
