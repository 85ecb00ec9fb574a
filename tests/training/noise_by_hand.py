"""The noise of every update, as observed and by a raw `GradientTape` that takes the same micro-batches one by one."""

import math

import keras
import numpy as np
import tensorflow as tf
from ragged import parts
from watching import build_anew


def observed(model, fit, callbacks=()):
    """Noise, signal and samples per batch of every update."""
    rows = []

    class Observer(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            vars(self.model)["_accumulation"].observe_noise(lambda *row: rows.append(row))

    fit(model, callbacks=[Observer(), *callbacks])
    return np.array(rows)


def cut(batch, size):
    """The micro-batches of a batch, ragged one first."""
    sizes = [] if size is None else [size] * ((batch - 1) // size)
    return [batch - sum(sizes), *sizes]


def pieces(window, size=None, is_static=False):
    """The first batch comes in halves, unless it is known to have several micro-batches anyway."""
    in_halves = not is_static or size is None or window[0] <= size
    first = [-(-window[0] // 2), window[0] // 2] if in_halves else window[:1]
    return [piece for batch in [*first, *window[1:]] if batch for piece in cut(batch, size)]


def flat(gradients):
    return np.concatenate([tf.convert_to_tensor(gradient).numpy().ravel() for gradient in gradients])


def by_hand(gradients, sizes):
    """Noise and signal of mean gradients of so many samples, by their definition."""
    gradients, sizes = np.array(gradients), np.array(sizes)
    mean = sizes @ gradients / sizes.sum()
    spread = sizes @ np.square(gradients - mean).sum(1) / (len(sizes) - 1) if len(sizes) > 1 else math.nan
    return spread, mean @ mean - spread / sizes.sum()


def gradient(model, x, y, sample_weight=None):
    with tf.GradientTape() as tape:
        loss = model.compute_loss(x, y, model(x, training=True), sample_weight)
    return flat(tape.gradient(loss, model.trainable_variables))


def apply(model, gradients):
    variables = model.trainable_variables
    ends = np.cumsum([int(np.prod(variable.shape)) for variable in variables])[:-1]
    split = [part.reshape(variable.shape) for part, variable in zip(np.split(gradients, ends), variables)]
    model.optimizer.apply([tf.constant(part) for part in split], variables)


def expected(build, arrays, windows, epochs=2):
    """For a loss that is a mean over samples."""
    model, rows = build_anew(build), []
    for _ in range(epochs):
        for sizes, *window in zip(windows, *zip(*parts([sum(sizes) for sizes in windows], *arrays))):
            found = [gradient(model, *part) for part in parts(sizes, *window)]
            rows.append(by_hand(found, sizes))
            apply(model, np.array(sizes) @ np.array(found) / sum(sizes))
    return np.array(rows)
