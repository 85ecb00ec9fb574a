"""The gradient noise scale while a small CNN learns MNIST: `python examples/noise_scale.py FOLDER [picture.png]`.

FOLDER holds MNIST's four files, packed or not; `benchmarks/images.py` says where to get them. Plain SGD, updates of 128
samples in micro-batches of 16, five epochs. McCandlish et al. (2018) found about 900 for MNIST, and much less at first.
"""

import os
import sys
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

import bigbatch

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
import images

BATCH_SIZE, MICRO_BATCH_SIZE, EPOCHS, SHOWN = 128, 16, 5, (10, 30, 100, 200, 469, 938, 1407, 2345)


class Curve(keras.callbacks.Callback):
    """The loss and the noise scale after every update."""

    def __init__(self):
        super().__init__()
        self.rows = []

    def on_train_batch_end(self, batch, logs=None):
        self.rows.append([logs[name] for name in ("loss", "noise_scale", "noise_scale_low", "noise_scale_high")])


def main(folder, picture="noise-scale.png"):
    model, curve = images.small_cnn(keras.optimizers.SGD(0.1)), Curve()
    bigbatch.accumulate(model, micro_batch_size=MICRO_BATCH_SIZE)
    callbacks = [bigbatch.NoiseScale(), curve]
    model.fit(*images.read(folder), batch_size=BATCH_SIZE, epochs=EPOCHS, verbose=0, callbacks=callbacks)
    print("updates   loss   noise scale    with 95 % confidence")
    for number in SHOWN:
        loss, value, low, high = curve.rows[number - 1]
        print(f"{number:>7} {loss:>6.2f} {value:>13.0f} {low:>8.0f} to {high:.0f}")
    draw(curve.rows, picture)


def draw(rows, picture):
    updates = range(1, len(rows) + 1)
    _, values, low, high = zip(*rows)
    ax = pyplot.subplots(figsize=(7, 4))[1]
    ax.fill_between(updates, low, [min(each, 1e5) for each in high], alpha=0.3, label="95 % confidence")
    ax.plot(updates, values, label="noise scale")
    ax.axhline(900, color="C7", linestyle="--", label="McCandlish et al.: about 900")
    ax.axhline(BATCH_SIZE, color="C3", linestyle=":", label=f"updates as they are: {BATCH_SIZE}")
    ax.set(xlabel=f"updates of {BATCH_SIZE} samples", ylabel="samples", yscale="log", ylim=(1, 3e4))
    ax.legend(loc="lower right")
    ax.figure.savefig(picture, dpi=110, bbox_inches="tight")
    print(picture)


if __name__ == "__main__":
    main(*sys.argv[1:])
