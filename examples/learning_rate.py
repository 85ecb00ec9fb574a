"""How the best learning rate moves as the batch grows: `python examples/learning_rate.py [picture.png]`.

A small network sees the same samples of scikit-learn's digits, in updates of 16, 64 and 256, with SGD and with Adam,
over a range of rates. The batches of 16 are the same throughout; `batches_per_update` joins them.
"""

import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import matplotlib

matplotlib.use("Agg")
import numpy as np
import tensorflow as tf
from matplotlib import pyplot
from sklearn.datasets import load_digits

import bigbatch

OPTIMIZERS = {
    "SGD": (keras.optimizers.SGD, 2.0 ** np.arange(-7, 3)),
    "Adam": (keras.optimizers.Adam, 2.0 ** np.arange(-13, -2)),
}
WINDOWS, BATCH_SIZE, EPOCHS = (1, 4, 16), 16, 2


def data():
    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(x))
    return (x[order] / 16).astype("float32"), y[order]


def model_of(optimizer):
    keras.utils.set_random_seed(0)
    layers = [keras.Input((64,)), keras.layers.Dense(32, activation="relu"), keras.layers.Dense(10)]
    model = keras.Sequential(layers)
    model.compile(optimizer, loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def losses(make, rates, window):
    """The loss on all samples after two epochs, for each rate; one model, so that nothing is traced twice."""
    x, y = data()
    batches = tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH_SIZE)
    model = bigbatch.accumulate(model_of(make(0.1)), batches_per_update=window)
    model.optimizer.build(model.trainable_variables)
    state = model.variables + model.optimizer.variables
    initial = [variable.numpy() for variable in state]
    result = []
    for rate in rates:
        for variable, value in zip(state, initial):
            variable.assign(value)
        model.optimizer.learning_rate = float(rate)
        model.fit(batches, epochs=EPOCHS, verbose=0)
        result.append(model.evaluate(x, y, batch_size=512, verbose=0))
    return result


def main():
    path = sys.argv[1] if len(sys.argv) > 1 else "learning-rate.png"
    figure, axes = pyplot.subplots(1, len(OPTIMIZERS), figsize=(9, 3.5), sharey=True)
    for ax, (name, (make, rates)) in zip(axes, OPTIMIZERS.items()):
        for window in WINDOWS:
            curve = losses(make, rates, window)
            best = rates[int(np.nanargmin(curve))]
            print(f"{name:5} updates of {window * BATCH_SIZE:3}: best rate {best:g}, loss {min(curve):.3f}")
            ax.plot(rates, curve, marker="o", markersize=3, label=f"updates of {window * BATCH_SIZE} samples")
        ax.set(xscale="log", yscale="log", xlabel="learning rate", title=name, ylim=(0.02, 5))
    axes[0].set_ylabel("cross-entropy after two epochs (nats)")
    axes[0].legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
