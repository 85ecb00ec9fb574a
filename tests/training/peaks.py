"""Measures what an update takes: `python peaks.py WAY FILE`, under TensorFlow's allocator that counts.

One process each, for what another model has left in pieces changes the pieces that are handed out.
"""

import gc
import pickle
import sys
from pathlib import Path
from statistics import median_low

import keras
import tensorflow as tf

import bigbatch

layers = keras.layers
WIDTH = 256
SIZE = 4  # of a micro-batch
NUM_UPDATES = 7


def build():
    """Many weights and few activations, so that copies of gradients are what counts."""
    return compiled(*[layers.Dense(WIDTH, activation="relu") for _ in range(32)])


def build_table():
    """Nearly all weights in one variable, of a size that the allocator does not round."""
    return compiled(layers.Embedding(2**16, 64), layers.GlobalAveragePooling1D())


def compiled(*hidden):
    model = keras.Sequential([keras.Input((WIDTH,)), *hidden, layers.Dense(1)])
    model.compile(keras.optimizers.Adam(), "mse")
    model.optimizer.build(model.trainable_variables)
    return model


def peak(run, *arguments):
    """The usual one above what is there before. The first updates do not count: they give slots their memory."""
    for _ in range(2):
        run(*arguments)
    gc.collect()
    before = memory()["current"]
    found = []
    for _ in range(NUM_UPDATES):
        tf.config.experimental.reset_memory_stats("CPU:0")
        run(*arguments)
        found.append(memory()["peak"] - before)
    return median_low(found)


def memory():
    return tf.config.experimental.get_memory_info("CPU:0")


def floor(model):
    """One micro-batch, forward and backward, whose gradients are kept: a copy of them, and activations."""
    x, y = tf.zeros([SIZE, WIDTH]), tf.zeros([SIZE, 1])

    @tf.function
    def gradients():
        with tf.GradientTape() as tape:
            loss = keras.losses.mean_squared_error(y, model(x, training=True))
        return tape.gradient(loss, model.trainable_variables)

    return peak(gradients)


def update(model, num_samples, **settings):
    """An update by batches of so many samples."""
    bigbatch.accumulate(model, **settings)
    dataset = tf.data.Dataset.from_tensors((tf.zeros([num_samples, WIDTH]), tf.zeros([num_samples, 1]))).repeat()
    model.make_train_function()
    return peak(model.train_function, iter(dataset))


def loop(model):
    """What a custom loop takes, all that it keeps between updates included."""
    variables, optimizer = model.trainable_variables, model.optimizer
    x, y = tf.zeros([SIZE, WIDTH]), tf.zeros([SIZE, 1])
    before = memory()["current"]
    accumulator = bigbatch.GradientAccumulator(variables)

    @tf.function
    def run():
        for _ in tf.range(16):
            with tf.GradientTape() as tape:
                loss = keras.losses.mean_squared_error(y, model(x, training=True))
            accumulator.add(tape.gradient(loss, variables), weight=SIZE)
        accumulator.apply(optimizer)

    above = peak(run)
    return above + memory()["current"] - before


WAYS = {
    "floor": floor,
    "few": lambda model: update(model, 16 * SIZE, micro_batch_size=SIZE),
    "many": lambda model: update(model, 128 * SIZE, micro_batch_size=SIZE),
    "window": lambda model: update(model, SIZE, batches_per_update=16),
    "loop": loop,
    "table": lambda model: update(model, 16 * SIZE, micro_batch_size=SIZE),
}


def main(way, path):
    model = build_table() if way == "table" else build()
    gradients = sum(each.numpy().nbytes for each in model.trainable_variables)
    Path(path).write_bytes(pickle.dumps(WAYS[way](model) / gradients))


if __name__ == "__main__":
    main(*sys.argv[1:])
