"""Fitting with a `Monitor`, and what its figures should be."""

import keras
import numpy as np
import tensorflow as tf
from oracle import fit_arrays, one_update
from ragged import dataset, parts

import bigbatch

FIGURES = ("samples", "weight", "micro_batches", "gradient_norm")
BATCHES = [12, 12, 6]  # of an epoch of thirty samples


class Recorder(keras.callbacks.Callback):
    """What a callback sees that comes before the monitor."""

    def __init__(self):
        super().__init__()
        self.updates, self.epochs = [], []

    def on_train_batch_end(self, batch, logs=None):
        self.updates.append(dict(logs))

    def on_epoch_end(self, epoch, logs=None):
        self.epochs.append(dict(logs))

    def column(self, name):
        return [logs[name] for logs in self.updates]


def watch(model, fit):
    """Fits with a monitor; returns what another callback has seen."""
    recorder = Recorder()
    fit(model, callbacks=[recorder, bigbatch.Monitor()])
    return recorder


def fit_data(*arrays, sizes=BATCHES, **arguments):
    return lambda model, callbacks: model.fit(
        dataset(sizes, *arrays), callbacks=callbacks, verbose=0, **({"epochs": 2} | arguments)
    )


def build_anew(build):
    keras.utils.set_random_seed(7)
    return build()


def norm(gradients):
    dense = [tf.convert_to_tensor(gradient).numpy() for gradient in gradients]
    return float(np.sqrt(sum((gradient**2).sum() for gradient in dense)))


def norms_by_hand(build, arrays, sizes=BATCHES, epochs=2):
    """The norms of a raw `GradientTape` on whole batches of plain Keras."""
    model = build_anew(build)
    return [norm(one_update(model, *batch)) for _ in range(epochs) for batch in parts(sizes, *arrays)]


def num_parts(size):
    return [-(-each // size) for each in BATCHES]


def fit_arrays_with(*arrays, **arguments):
    return lambda model, callbacks: fit_arrays(*arrays, callbacks=callbacks, **arguments)(model)


MODES = {
    "graph": {},
    "xla": {"jit_compile": True},
    "eager": {"run_eagerly": True},
}
SETTINGS = {
    "whole": ({}, BATCHES, [1, 1, 1]),
    "micro_batches": ({"micro_batch_size": 5}, BATCHES, num_parts(5)),
    "auto": ({"micro_batch_size": "auto"}, BATCHES, [1, 1, 1]),
    "windows": ({"batches_per_update": 2}, [24, 6], [2, 1]),
    "windows_of_micro_batches": ({"batches_per_update": 2, "micro_batch_size": 5}, [24, 6], [6, 2]),
    "windows_auto": ({"batches_per_update": 2, "micro_batch_size": "auto"}, [24, 6], [2, 1]),
    "samples": ({"samples_per_update": 20}, [24, 6], [2, 1]),
}
