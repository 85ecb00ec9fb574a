"""The same network on the same batches, plainly and accumulated: `python -m bigbatch.cli.demo`.

Each run is a process of its own, with TensorFlow's BFC allocator, whose peaks are exact to the byte.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

BATCH_SIZE, MICRO_BATCH_SIZE, EPOCHS = 512, 32, 3


def train(micro_batch_size: int | None, folder: Path) -> None:
    """Trains a small network on scikit-learn's digits and leaves its weights and figures in `folder`."""
    import keras
    import tensorflow as tf
    from sklearn.datasets import load_digits

    import bigbatch

    x, y = load_digits(return_X_y=True)
    x = (x / 16).reshape(-1, 8, 8, 1).astype("float32")
    keras.utils.set_random_seed(1)
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.UpSampling2D(4),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.Conv2D(64, 3, strides=2, padding="same", activation="relu"),
            layers.Flatten(),
            layers.Dense(10, activation="softmax"),
        ]
    )
    model.compile(keras.optimizers.AdamW(1e-3), loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    bigbatch.accumulate(model, micro_batch_size=micro_batch_size)
    history = model.fit(x, y, batch_size=BATCH_SIZE, epochs=EPOCHS, shuffle=False, verbose=0).history
    figures = {
        "loss": history["loss"],
        "accuracy": history["accuracy"],
        "updates": int(model.optimizer.iterations),
        "peak_mib": tf.config.experimental.get_memory_info("CPU:0")["peak"] / 2**20,
    }
    (folder / "figures.json").write_text(json.dumps(figures))
    np.savez(folder / "weights.npz", *model.get_weights())


def run_apart(micro_batch_size: int | None) -> tuple[dict[str, Any], list[np.ndarray]]:
    """Runs `train` in a process with an allocator that counts."""
    program = f"from pathlib import Path; from bigbatch.cli import demo; demo.train({micro_batch_size}, Path({{!r}}))"
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"TF_CPU_ALLOCATOR_USE_BFC": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
        subprocess.run([sys.executable, "-c", program.format(folder)], env=environment, check=True)
        figures = json.loads((Path(folder) / "figures.json").read_text())
        with np.load(Path(folder) / "weights.npz") as weights:
            return figures, [weights[name] for name in weights.files]


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints both runs side by side."""
    argparse.ArgumentParser(
        "bigbatch demo",
        description="Trains the same network plainly and accumulated, and compares.",
        epilog="example:\n  bigbatch demo",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    ).parse_args(arguments)
    print(f"scikit-learn's digits, batches of {BATCH_SIZE}, {EPOCHS} epochs, AdamW; training twice ...")
    plain, plain_weights = run_apart(None)
    ours, our_weights = run_apart(MICRO_BATCH_SIZE)
    print(f"{'':34}{'plain Keras':>14}{'bigbatch':>14}")
    print(f"{'samples in memory at a time':34}{BATCH_SIZE:14}{MICRO_BATCH_SIZE:14}")
    print(f"{'updates':34}{plain['updates']:14}{ours['updates']:14}")
    for epoch, (theirs, mine) in enumerate(zip(plain["loss"], ours["loss"]), 1):
        print(f"{f'loss, epoch {epoch}':34}{theirs:14.6f}{mine:14.6f}")
    print(f"{'accuracy':34}{plain['accuracy'][-1]:14.4f}{ours['accuracy'][-1]:14.4f}")
    print(f"{'peak memory, MiB':34}{plain['peak_mib']:14.1f}{ours['peak_mib']:14.1f}")
    distance = max(float(np.abs(a - b).max()) for a, b in zip(plain_weights, our_weights))
    size = max(float(np.abs(weight).max()) for weight in plain_weights)
    print(f"largest distance between the weights: {distance:.1e} (the largest weight is {size:.2f})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
