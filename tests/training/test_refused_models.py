"""Models whose update cannot be had from micro-batches are refused, and nothing has changed then."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from oracle import snapshot
from test_models import Subclassed, X, Y, stack

import bigbatch


class NeverApplies(Subclassed):
    def train_step(self, data):
        return {"loss": tf.reduce_mean(self(data[0]))}


@pytest.mark.parametrize("eagerly", [False, True], ids=["graph", "eager"])
def test_a_train_step_that_never_applies_is_refused(eagerly):
    model = NeverApplies()
    model.compile("sgd", loss="mse", run_eagerly=eagerly)
    bigbatch.accumulate(model, micro_batch_size=4)
    with pytest.raises(bigbatch.AccumulationError, match=r"must apply.*Received: NeverApplies.*applied none.*Set the"):
        model.fit(X, Y, verbose=0)


@pytest.mark.parametrize("eagerly", [False, True], ids=["graph", "eager"])
def test_an_optimizer_out_of_sight_is_refused(eagerly):
    hidden = keras.optimizers.SGD(0.1)

    class OptimizerElsewhere(Subclassed):
        def train_step(self, data):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(self(data[0]) ** 2)
            gradients = tape.gradient(loss, self.trainable_variables)
            hidden.apply(gradients[:2], self.trainable_variables[:2])
            self.optimizer.apply(gradients, self.trainable_variables)
            return {"loss": loss}

    model = OptimizerElsewhere()
    model.compile("sgd", loss="mse", run_eagerly=eagerly)
    model.build((None, 6))
    before = snapshot(model.weights)
    bigbatch.accumulate(model, micro_batch_size=4)
    with pytest.raises(
        bigbatch.AccumulationError, match=r"only through optimizers.*Received: .*kernel.*also assigns.*Keep all"
    ):
        model.fit(X, Y, verbose=0)
    assert all(np.array_equal(a, b) for a, b in zip(before, snapshot(model.weights), strict=True))


def test_an_optimizer_that_accumulates_by_itself_is_refused():
    model = keras.Sequential([keras.Input((6,)), *stack()])
    model.compile(keras.optimizers.SGD(0.1, gradient_accumulation_steps=2), loss="mse")
    bigbatch.accumulate(model, micro_batch_size=4)
    with pytest.raises(bigbatch.AccumulationError, match=r"Received: gradient_accumulation_steps=2\. Make the opt"):
        model.fit(X, Y, verbose=0)
