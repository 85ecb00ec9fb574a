"""What accumulation gets wrong: small models and batches for `truth.py`, for the Keras of TensorFlow 2.15, too."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow import keras

layers, losses = keras.layers, keras.losses
rng = np.random.default_rng(0)
X, Y = rng.normal(size=(256, 6)).astype("float32"), rng.normal(size=(256, 2)).astype("float32")
HOT = np.where(np.arange(256)[:, None] < 24, np.abs(X) + 2.5, np.minimum(X, 1.5))  # the first three batches of eight
WEIGHTS = rng.uniform(0.1, 5.0, size=256).astype("float32") ** 2
LENGTHS = np.sort(rng.integers(1, 9, size=64))
TOKENS = np.where(np.arange(8) < LENGTHS[:, None], rng.integers(1, 50, size=(64, 8)), 0).astype("int32")
TAGS = rng.integers(0, 3, size=(64, 8)).astype("int32")


@dataclass(frozen=True)
class Case:
    """A model, an optimizer, the batches of an epoch, and how many of them an update joins."""

    model: Any
    optimizer: Any = lambda: keras.optimizers.SGD(0.1)
    arrays: tuple = (X, Y)
    sizes: tuple = (8,) * 4
    number: int = 4
    epochs: int = 1
    loss: Any = "mse"
    looks_at: str = "weights"
    settings: dict = field(default_factory=dict)  # for `bigbatch.accumulate`
    num_replicas: int = 1
    eagerly: bool = False

    def batches(self):
        """Those of an epoch, as arrays."""
        ends = np.cumsum(self.sizes)
        return [tuple(each[end - size : end] for each in self.arrays) for size, end in zip(self.sizes, ends)]

    def joined(self):
        """Those of an epoch as plain Keras should have them: one for each update."""
        batches = self.batches()
        windows = [batches[start : start + self.number] for start in range(0, len(batches), self.number)]
        return [tuple(np.concatenate(each) for each in zip(*window)) for window in windows]


def dense(**arguments):
    keras.utils.set_random_seed(1)
    inputs = keras.Input((6,))
    return keras.Model(inputs, layers.Dense(2, **arguments)(layers.Dense(5, activation="tanh", **arguments)(inputs)))


def tagger():
    keras.utils.set_random_seed(1)
    inputs = keras.Input((8,), dtype="int32")
    hidden = layers.Embedding(50, 4, mask_zero=True)(inputs)
    return keras.Model(inputs, layers.Dense(3)(layers.Dense(4, activation="tanh")(hidden)))


def embedded():
    keras.utils.set_random_seed(1)
    inputs = keras.Input((8,), dtype="int32")
    return keras.Model(inputs, layers.Dense(2)(layers.GlobalAveragePooling1D()(layers.Embedding(50, 4)(inputs))))


def normalised():
    keras.utils.set_random_seed(1)
    inputs = keras.Input((6,))
    return keras.Model(inputs, layers.Dense(2)(layers.BatchNormalization(momentum=0.5)(inputs)))


def in_bfloat16():
    keras.utils.set_random_seed(1)
    inputs = keras.Input((6,))
    return keras.Model(inputs, layers.Dense(2, dtype="bfloat16")(inputs))


def gated():
    """Has an expert for hot samples; eagerly, nobody asks it if there are none, and its gradient is None."""

    class Gated(layers.Layer):
        def __init__(self):
            super().__init__()
            self.usual, self.expert = layers.Dense(2), layers.Dense(2)

        def build(self, shape):
            self.usual.build(shape)
            self.expert.build(shape)

        def call(self, inputs):
            is_hot = inputs[:, :1] > 2
            if tf.executing_eagerly() and not bool(tf.reduce_any(is_hot)):
                return self.usual(inputs)
            return self.usual(inputs) + tf.cast(is_hot, inputs.dtype) * self.expert(inputs)

    keras.utils.set_random_seed(1)
    inputs = keras.Input((6,))
    return keras.Model(inputs, Gated()(inputs))


def contrastive(y_true, y_pred):
    similar = tf.matmul(y_pred, y_pred, transpose_b=True)
    return tf.reduce_logsumexp(similar, axis=1) - tf.linalg.diag_part(similar)


def sgd(rate=0.1, **arguments):
    return lambda: keras.optimizers.SGD(rate, **arguments)


def halving():
    return keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.4, 1, 0.5, staircase=True))


def bounded():
    return dense(kernel_constraint=keras.constraints.MinMaxNorm(0.9, 1.1))


CROSSENTROPY = losses.SparseCategoricalCrossentropy(from_logits=True)
CASES = {
    "equal batches": Case(dense),
    "batches of 32, 32, 32 and 7": Case(dense, sizes=(32, 32, 32, 7)),
    "a tail: 10 batches by fours, 3 epochs": Case(dense, sizes=(8,) * 10, epochs=3),
    "padded text, in buckets": Case(tagger, sgd(0.5), (TOKENS, TAGS), (16,) * 4, loss=CROSSENTROPY),
    'reduction="sum"': Case(dense, sgd(0.01), loss=losses.MeanSquaredError(reduction="sum")),
    "mean_with_sample_weight": Case(dense, arrays=(X, Y, WEIGHTS), loss="mean_with_sample_weight"),
    "a rate that halves with every update": Case(dense, halving, sizes=(8,) * 16),
    "an average of weights (EMA)": Case(
        dense, sgd(use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=None), sizes=(8,) * 16, looks_at="averages"
    ),
    "a constraint": Case(bounded, sgd(0.3)),
    "an embedding, Adam": Case(embedded, lambda: keras.optimizers.Adam(0.1), (TOKENS, Y[:64]), (16,) * 4),
    "no gradient (None) in the last batch": Case(gated, arrays=(HOT, Y), eagerly=True),
    "weights in bfloat16, 256 batches": Case(in_bfloat16, sizes=(1,) * 256, number=256),
    "statistics of batch normalisation": Case(normalised, looks_at="statistics", settings={"batch_norm": "pooled"}),
    "clipping": Case(dense, sgd(global_clipnorm=0.1), sizes=(8, 8, 8, 8)),
    "a contrastive loss": Case(dense, loss=contrastive, settings={"micro_batch_size": 8, "whole_batch_loss": True}),
    "two devices": Case(dense, num_replicas=2),
    "two devices, clipping": Case(dense, sgd(global_clipnorm=0.1), num_replicas=2),
    "two devices, unequal batches": Case(dense, sizes=(8, 8, 8, 3), num_replicas=2),
}
