"""Training under `MirroredStrategy`."""

from functools import cache

import keras
import tensorflow as tf
from oracle import train
from test_losses import dense

import bigbatch

layers = keras.layers


@cache
def strategy(num_replicas):
    """Two replicas reduce by collectives, three by sums on one device: a process has collectives of one size only."""
    engine = None if num_replicas == 2 else tf.distribute.ReductionToOneDevice()
    return tf.distribute.MirroredStrategy([f"CPU:{index}" for index in range(num_replicas)], cross_device_ops=engine)


def train_on(num_replicas, build, fit, **settings):
    """Built, compiled and accumulated in the strategy's scope, trained outside of it."""

    def build_in_scope():
        with strategy(num_replicas).scope():
            model = bigbatch.accumulate(build(), **settings)
            if not model.built:
                model.build((None, 6))
            return model

    return train(build_in_scope, fit)


def regression(optimizer=None, **arguments):
    model = dense("mse")
    model.compile(optimizer or keras.optimizers.Adam(0.1), loss="mse", metrics=["mae"], **arguments)
    return model


def raw(**arguments):
    model = Raw(**arguments)
    model.compile(keras.optimizers.SGD(0.1))
    return model


class Raw(keras.Model):
    """A `train_step` of its own, with a loss that knows nothing of replicas, or that divides by their number."""

    def __init__(self, divide=tf.reduce_mean):
        super().__init__()
        self.dense = layers.Dense(2)
        self.divide = divide

    def build(self, input_shape):
        self.dense.build(input_shape)

    def call(self, inputs):
        return self.dense(inputs)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.divide(tf.reduce_sum(tf.square(y - self(x, training=True)), -1))
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {"loss": loss, "replicas": tf.constant(7)}
