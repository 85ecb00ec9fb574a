"""What the benchmarks train, one file each. Imported after TensorFlow's environment is set.

A workload has `SIZE`, the samples of a micro-batch; `make()`, a model; `data(number)`, as many samples; `loss()`; and
for loops in raw TensorFlow `loss_sum(x, y, outputs)` and `count(x, y)`, whose quotient is that loss. All of them work
with the Keras of TensorFlow 2.15, too, for the rival who stayed there.
"""

import importlib

import numpy as np
import tensorflow as tf
from tensorflow import keras

NAMES = ("cnn", "text", "mlp", "recommender", "mobilenet")
BATCH_SIZE, MICRO_BATCH_SIZE = 256, 16


def load(name):
    """The module of a workload."""
    return importlib.import_module(f"workloads.{name}")


def made(name, number=BATCH_SIZE):
    """A model and a batch for it."""
    keras.utils.set_random_seed(0)
    workload = load(name)
    return workload.make(), *workload.data(number)


def compiled(model, **arguments):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-3), loss=loss, **arguments)
    return model


def initialised(model):
    """The same weights in every version of Keras."""
    rng = np.random.default_rng(0)
    for variable in model.trainable_variables:
        if len(variable.shape) > 1:
            scale = np.prod(variable.shape[:-1]) ** -0.5
            variable.assign(rng.normal(size=tuple(variable.shape)).astype("float32") * scale)
    return model


def whole(workload, number):
    """Its samples as one batch, again and again."""
    return again_and_again(tf.data.Dataset.from_tensors(workload.data(number * workload.SIZE)))


def parts(workload, number):
    """Its samples in batches of one micro-batch for every replica."""
    size = workload.SIZE * num_replicas()
    arrays = [each.reshape(-1, size, *each.shape[1:]) for each in workload.data(number * workload.SIZE)]
    return again_and_again(tf.data.Dataset.from_tensor_slices(tuple(arrays)))


def again_and_again(data):
    """Without autotuning, whose thread sleeps as long as the iterator is old, and is waited for when it is deleted."""
    options = tf.data.Options()
    options.autotune.enabled = False
    return data.repeat().with_options(options)


def iterator_of(data):
    """What the strategy in scope gives to its replicas."""
    strategy = tf.distribute.get_strategy()
    return iter(data if strategy.num_replicas_in_sync == 1 else strategy.experimental_distribute_dataset(data))


def num_replicas():
    return tf.distribute.get_strategy().num_replicas_in_sync
