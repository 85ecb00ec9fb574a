"""What is trained on several workers, and on one device for reference."""

import keras
import numpy as np
import tensorflow as tf
from coupled import pairs
from mirrored import raw
from test_losses import LABELS, MANY_X, MANY_Y, TOKENS, tagger, two_outputs

import bigbatch

EPOCHS = 2
rng = np.random.default_rng(3)
X, Y = rng.normal(size=(61, 6)), rng.normal(size=(61, 2))
POISONED = X.copy()
POISONED[1] = np.inf


def dense(optimizer=None, loss="mse", normalise=False):
    inputs = keras.Input((6,))
    hidden = keras.layers.Dense(5, activation="tanh", kernel_regularizer="l2")(inputs)
    if normalise:  # with nothing behind it that depends on how a batch is normalised
        hidden = keras.layers.Concatenate()([hidden, 0 * keras.layers.BatchNormalization(momentum=0.5)(inputs)])
    model = keras.Model(inputs, keras.layers.Dense(2)(hidden))
    model.compile(optimizer or keras.optimizers.Adam(0.05, global_clipnorm=0.1), loss=loss, metrics=["mae"])
    return model


def scaled():
    inner = keras.optimizers.SGD(0.1)
    return dense(keras.optimizers.LossScaleOptimizer(inner, initial_scale=8.0))


summed = lambda: dense(keras.optimizers.SGD(0.01), keras.losses.MeanSquaredError(reduction="sum"))  # noqa: E731
# The model, the data, the samples of a batch, the settings, and the samples of an update.
CASES = {
    "plain": (dense, (X, Y), 31, {}, 31),
    "micro_batches": (dense, (X, Y), 31, {"micro_batch_size": 4}, 31),
    "one_worker_has_nothing": (dense, (X, Y), 60, {"micro_batch_size": 7}, 60),
    "windows": (dense, (X, Y), 8, {"batches_per_update": 3}, 24),
    "windows_of_micro_batches": (dense, (X, Y), 8, {"batches_per_update": 3, "micro_batch_size": 3}, 24),
    "windows_of_samples": (dense, (X, Y), 8, {"samples_per_update": 20}, 24),
    "sum": (summed, (X, Y), 31, {"micro_batch_size": 4}, 31),
    "tokens": (tagger, (TOKENS, LABELS), 12, {"micro_batch_size": 4}, 12),
    "different_masks": (two_outputs, (MANY_X, MANY_Y), 12, {"micro_batch_size": 4}, 12),
    "different_masks_in_windows": (two_outputs, (MANY_X, MANY_Y), 4, {"batches_per_update": 3}, 12),
    "own_train_step": (raw, (X, Y), 31, {"micro_batch_size": 4}, 31),
    "batch_norm": (lambda: dense(normalise=True), (X, Y), 31, {"micro_batch_size": 4, "batch_norm": "pooled"}, 31),
    "whole_batch_loss": (pairs, (X, Y), 31, {"micro_batch_size": 4, "whole_batch_loss": True}, 31),
    "infinity": (scaled, (POISONED, Y), 31, {"micro_batch_size": 4}, 31),
}


def data(arrays, batch_size):
    return tf.data.Dataset.from_tensor_slices(tuple(arrays)).batch(batch_size)


def build(name):
    """The model, with everything that Keras would make later."""
    model = CASES[name][0]()
    if not model.built:
        model.build((None, 6))
    model.optimizer.build(model.trainable_variables)
    return model


def fit(name, model, batch_size):
    _, arrays, validation_batch_size, *_ = CASES[name]
    # `evaluate` is Keras' own: it takes the mean over replicas, which is exact for means over samples only.
    validation = data(arrays, validation_batch_size).take(1) if name in ("plain", "micro_batches", "windows") else None
    return model.fit(data(arrays, batch_size), epochs=EPOCHS, verbose=0, validation_data=validation).history


def custom_loop(strategy):
    """`GradientAccumulator` in a traced loop: windows of two batches, dealt by the strategy."""
    with strategy.scope():
        model = dense()
        accumulator = bigbatch.GradientAccumulator(model.trainable_variables)
        model.optimizer.build(model.trainable_variables)

    @tf.function
    def add(x, y):
        def add_here(x, y):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(y - model(x, training=True)))
            accumulator.add(tape.gradient(loss, model.trainable_variables), weight=tf.shape(x)[0])

        strategy.run(add_here, args=(x, y))

    apply = tf.function(lambda: strategy.run(lambda: accumulator.apply(model.optimizer)))
    dataset = strategy.experimental_distribute_dataset(data((X, Y), 16))
    for _ in range(EPOCHS):
        for window in bigbatch.windows(dataset, batches_per_update=2):
            for x, y in window:
                add(x, y)
            apply()
    return model


def custom_loop_on_one_device():
    """The same, batch by batch, with nothing of ours."""
    model = dense()
    for _ in range(EPOCHS):
        for x, y in data((X, Y), 32):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(y - model(x, training=True)))
            model.optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
    return model
