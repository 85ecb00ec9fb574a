"""What one more micro-batch costs a model with a 500,000 x 64 embedding.

    python benchmarks/embedding.py [--rounds 9]

The limit is the forward and backward pass of a micro-batch alone, its gradient left sparse and reduced to a norm.
"""

import argparse
import os
import statistics
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf

import bigbatch

ROWS, WIDTH, LENGTH, SIZE = 500_000, 64, 32, 32
FEW, MANY = 4, 36


def build(optimizer):
    inputs = keras.Input((LENGTH,), dtype="int32")
    hidden = keras.layers.GlobalAveragePooling1D()(keras.layers.Embedding(ROWS, WIDTH)(inputs))
    model = keras.Model(inputs, keras.layers.Dense(1)(hidden))
    model.compile(optimizer, loss="mse")
    return model


def batch(num_micro_batches):
    rng = np.random.default_rng(0)
    x = rng.integers(0, ROWS, size=(num_micro_batches * SIZE, LENGTH)).astype("int32")
    return x, np.ones((len(x), 1), "float32")


def passes(num_micro_batches):
    """Forward and backward for every micro-batch, and nothing else."""
    # A norm needs every element of the gradient; a sum would be simplified to something cheaper.
    return loop(num_micro_batches, lambda gradient: tf.norm(gradient.values))


def passes_and_scatter(num_micro_batches):
    """The same, with the rows added to a variable: the least that a hand-written loop can do."""
    table = tf.Variable(tf.zeros((ROWS, WIDTH)))

    def keep(gradient):
        table.scatter_add(gradient)
        return 0.0

    return loop(num_micro_batches, keep)


def loop(num_micro_batches, use):
    model = build(keras.optimizers.SGD(0.1))
    x, y = map(tf.constant, batch(num_micro_batches))

    @tf.function
    def gradients(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x, training=True) - y))
        table, *others = tape.gradient(loss, model.trainable_variables)
        return use(table) + tf.add_n([tf.norm(other) for other in others])

    @tf.function
    def run():
        total = tf.constant(0.0)
        for index in tf.range(num_micro_batches):
            part = slice(index * SIZE, (index + 1) * SIZE)
            total += gradients(tf.ensure_shape(x[part], (SIZE, LENGTH)), y[part])
        return total

    return run


def plain(num_micro_batches):
    """Plain Keras on micro-batches: no accumulation, an update for each."""
    model = build(keras.optimizers.SGD(0.1))
    iterator = iter(tf.data.Dataset.from_tensor_slices(batch(num_micro_batches)).batch(SIZE).repeat())
    model.make_train_function()
    return lambda: [model.train_function(iterator) for _ in range(num_micro_batches)]


def accumulated(num_micro_batches):
    model = bigbatch.accumulate(build(keras.optimizers.SGD(0.1)), micro_batch_size=SIZE)
    iterator = iter(tf.data.Dataset.from_tensors(batch(num_micro_batches)).repeat())
    model.make_train_function()
    return lambda: model.train_function(iterator)


def built_in(num_micro_batches):
    optimizer = keras.optimizers.SGD(0.1, gradient_accumulation_steps=num_micro_batches)
    model = build(optimizer)
    iterator = iter(tf.data.Dataset.from_tensor_slices(batch(num_micro_batches)).batch(SIZE).repeat())
    model.make_train_function()
    return lambda: [model.train_function(iterator) for _ in range(num_micro_batches)]


CONTENDERS = (passes, passes_and_scatter, plain, accumulated, built_in)


def seconds(function):
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    rounds = parser.parse_args().rounds
    pairs = {make.__name__: (make(FEW), make(MANY)) for make in CONTENDERS}
    for functions in list(pairs.values()) * 2:
        for function in functions:
            function()
    slopes = {name: [] for name in pairs}
    for _ in range(rounds):
        for name, (few, many) in pairs.items():
            slopes[name].append((seconds(many) - seconds(few)) / (MANY - FEW))
    limit = statistics.median(slopes["passes"])
    for name, values in slopes.items():
        middle = statistics.median(values)
        print(f"{name:18} {1000 * middle:8.2f} ms per micro-batch, {middle / limit:6.2f} of the passes alone")


if __name__ == "__main__":
    main()
