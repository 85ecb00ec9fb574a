"""A variable may have a gradient in some micro-batches and none in others: eagerly, Python decides sample by sample."""

from functools import cache

import keras
import pytest
import tensorflow as tf
from mirrored import train_on
from oracle import assert_same, fit_arrays, train
from test_losses import X, Y

import bigbatch

layers = keras.layers
HOT = 5.0


class Gated(keras.Model):
    """Has an expert for hot samples, which nobody asks if there are none."""

    def __init__(self):
        super().__init__()
        self.usual, self.expert = layers.Dense(2), layers.Dense(2)

    def build(self, input_shape):
        self.usual.build(input_shape)
        self.expert.build(input_shape)

    def call(self, inputs):
        is_hot = inputs[:, :1] > HOT
        if tf.executing_eagerly() and not bool(tf.reduce_any(is_hot)):
            return self.usual(inputs)
        return self.usual(inputs) + tf.cast(is_hot, inputs.dtype) * self.expert(inputs)


def gated(**arguments):
    model = Gated()
    # With a momentum and a decay, a gradient of zero is not the same as none.
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9, weight_decay=0.1)
    model.compile(optimizer, loss="mse", run_eagerly=True, **arguments)
    model.build((None, 6))
    return model


def with_hot(places, batch_size=12):
    x = X.copy()
    x[places, 0] = HOT + 1
    return fit_arrays(x, Y, batch_size=batch_size)


# In batches of 12, 12 and 6; those without a hot sample must leave the expert alone.
PLACES = {"first": [0], "middle": [5], "last": [11], "last_batch": [29], "several": [1, 9, 13], "none": []}
SETTINGS = {
    "micro_batches": {"micro_batch_size": 4},
    "ragged": {"micro_batch_size": 5},
    "two_passes": {"micro_batch_size": 5, "whole_batch_loss": True},
}


@cache
def whole(name):
    return train(gated, with_hot(PLACES[name]))


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("name", PLACES)
def test_equals_the_whole_batch(name, settings):
    ours = train(gated, with_hot(PLACES[name]), lambda model: bigbatch.accumulate(model, **settings))
    assert_same(ours, whole(name))


@pytest.mark.parametrize("places", [[4], [20], []], ids=["first_window", "second_window", "none"])
def test_windows(places):
    accumulate = lambda model: bigbatch.accumulate(model, batches_per_update=2, micro_batch_size=5)  # noqa: E731
    assert_same(train(gated, with_hot(places), accumulate), train(gated, with_hot(places, batch_size=24)))


@pytest.mark.parametrize("whole_batch_loss", [False, True], ids=["one_pass", "two_passes"])
@pytest.mark.parametrize("places", [[2], [11], []], ids=["first_replica", "second_replica", "none"])
def test_replicas(places, whole_batch_loss):
    fit = with_hot(places)
    ours = train_on(2, gated, fit, micro_batch_size=4, whole_batch_loss=whole_batch_loss)
    assert_same(ours, train(gated, fit))


def test_a_trace_decides_once():
    """The head of 10 samples in fours has two, which is known while it is traced."""

    class BySize(Gated):
        def call(self, inputs):
            return self.usual(inputs) if inputs.shape[0] == 2 else self.usual(inputs) + self.expert(inputs)

    model = BySize()
    model.compile("sgd", loss="mse")
    bigbatch.accumulate(model, micro_batch_size=4)
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(10, drop_remainder=True)
    with pytest.raises(
        bigbatch.AccumulationError, match=r"same variables.*Received: no gradient for .*kernel.*eagerly"
    ):
        model.fit(data, verbose=0)
