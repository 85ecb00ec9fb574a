"""Trains one case three ways under a limit of memory, that of the environment: `python limited.py CASE FILE`.

With "auto", with the size that "auto" has found, and plainly; leaves what came of each.
"""

import logging
import pickle
import re
import sys
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import bigbatch

layers = keras.layers
rng = np.random.default_rng(5)
IMAGES, CLASSES = rng.normal(size=(200, 24, 24, 4)), rng.integers(0, 3, 200)
LENGTHS = (8, 8, 1000, 8, 1200, 16)
TEXTS = [(rng.normal(size=(48, length, 16)), rng.integers(0, 3, 48)) for length in LENGTHS]


def images(random=False, **arguments):
    parts = [layers.Dense(32, activation="relu", kernel_regularizer="l2")]
    if random:
        parts += [layers.BatchNormalization(), layers.Dropout(0.2)]
    parts += [layers.Dense(32, activation="relu"), layers.Flatten(), layers.Dense(3)]
    return compiled(keras.Sequential([keras.Input((24, 24, 4)), *parts]), **arguments)


def texts():
    inputs = keras.Input((None, 16))
    hidden = inputs
    for _ in range(3):
        hidden = layers.Dense(64, activation="tanh")(hidden)
    return compiled(keras.Model(inputs, layers.Dense(3)(layers.GlobalAveragePooling1D()(hidden))))


def compiled(model, **arguments):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01), loss, metrics=["accuracy"], **arguments)
    return model


class Own(keras.Model):
    """Changes state that Keras knows nothing of."""

    def __init__(self):
        super().__init__()
        self.inner = images()
        self.seen = tf.Variable(0.0, trainable=False)
        self.noise = tf.random.Generator.from_seed(3)

    def call(self, inputs):
        return self.inner(inputs)

    def train_step(self, data):
        x, y = data
        self.seen.assign_add(tf.cast(tf.shape(x)[0], tf.float32))
        return super().train_step((x + self.noise.normal(tf.shape(x), dtype=x.dtype), y))


def own():
    model = compiled(Own())
    model.build((None, 24, 24, 4))
    return model


def fit_images(model):
    return model.fit(IMAGES, CLASSES, batch_size=160, epochs=2, shuffle=False, verbose=0).history


def fit_windows(model):
    return model.fit(IMAGES, CLASSES, batch_size=80, epochs=2, shuffle=False, verbose=0).history


def fit_texts(model):
    spec = tf.TensorSpec([None, None, 16], tf.float64), tf.TensorSpec([None], tf.int64)
    dataset = tf.data.Dataset.from_generator(lambda: iter(TEXTS), output_signature=spec)
    dataset = dataset.apply(tf.data.experimental.assert_cardinality(len(TEXTS)))
    return model.fit(dataset, epochs=2, verbose=0).history


def train_on_batches(model):
    return {"loss": [model.train_on_batch(IMAGES[:n], CLASSES[:n])[0] for n in (160, 160, 30)]}


# The model, how it is trained, and the settings beside the size.
POOLED = {"batch_norm": "pooled"}
CASES = {
    "exact": (images, fit_images, {}),
    "random": (lambda: images(random=True), fit_images, POOLED),
    "jit": (lambda: images(random=True, jit_compile=True), fit_images, POOLED),
    "eager": (lambda: images(random=True, run_eagerly=True), fit_images, POOLED),
    "executions": (lambda: images(random=True, steps_per_execution=2), fit_images, POOLED),
    "windows": (lambda: images(random=True), fit_windows, {**POOLED, "batches_per_update": 3}),
    "own": (own, fit_images, {}),
    "spike": (texts, fit_texts, {}),
    "train_on_batch": (lambda: images(random=True), train_on_batches, POOLED),
}


# In MiB; about halfway between what the whole batch takes and what 40 samples do.
LIMITS = {"exact": 60, "own": 62, "windows": 65, "spike": 100, "eager": 130, "jit": 125}
LIMITS |= dict.fromkeys(("random", "executions", "train_on_batch"), 85)


class Told(logging.Handler):
    """What bigbatch has to say."""

    def __init__(self):
        super().__init__()
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())


def train(name, micro_batch_size):
    """What there is to compare, and how it ended."""
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    keras.utils.set_random_seed(7)
    build, fit, settings = CASES[name]
    model, told = build(), Told()
    logging.getLogger("bigbatch").addHandler(told)
    if micro_batch_size is not None:
        bigbatch.accumulate(model, micro_batch_size=micro_batch_size, **settings)
    failed, logs = "", {}
    try:
        logs = fit(model)
    except (tf.errors.ResourceExhaustedError, bigbatch.AccumulationError) as error:
        failed = f"{type(error).__name__}: {error}"
    logging.getLogger("bigbatch").removeHandler(told)
    own_state = [model.seen, model.noise.state] if isinstance(model, Own) else []
    variables = [*model.variables, *model.optimizer.variables, *own_state]
    return {"values": [v.numpy() for v in variables], "logs": logs, "told": told.lines, "failed": failed}


def found(told):
    """The size in the last thing that "auto" has told."""
    return int(re.search(r"micro_batch_size=(\d+)", told[-1])[1]) if told else None


def main(name, file):
    auto = train(name, "auto")
    size = found(auto["told"])
    fixed = None if size is None else train(name, size)
    # The last, and only then: where XLA runs out of memory without us, TensorFlow frees some of it twice.
    plain = train(name, None) if name != "jit" else None
    Path(file).write_bytes(pickle.dumps({"plain": plain, "auto": auto, "fixed": fixed, "size": size}))


if __name__ == "__main__":
    main(*sys.argv[1:])
