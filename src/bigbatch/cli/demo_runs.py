"""One run of the demo, in a process of its own: `python -m bigbatch.cli.demo_runs SETTINGS`.

TensorFlow's BFC allocator counts there to the byte, and gives no more than the budget. What happens is told on stdout,
a line of JSON per event; the weights after every update are left in a folder.
"""

from __future__ import annotations

import json
import sys
import time
from math import ceil
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import bigbatch
from bigbatch.training.memory import running_out

LEARNING_RATE = 2e-3


def digits() -> tuple[np.ndarray, np.ndarray]:
    """Scikit-learn's handwritten digits: 1,797 images of 8 x 8 pixels."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    return (x / 16).astype("float32"), y.astype("int32")


def network(num_batches: int | None = None) -> Any:
    """The same small network in every run; `num_batches` is what Keras' own accumulation is to join.

    It is smooth: kinks such as that of relu amplify rounding from update to update, also that of plain Keras.
    """
    keras.utils.set_random_seed(1)
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((64,)),
            layers.Reshape((64, 1)),
            layers.Dense(64, activation="tanh"),
            layers.Permute((2, 1)),
            layers.Dense(64, activation="tanh"),  # mixes the pixels
            layers.Permute((2, 1)),
            layers.Dense(256, activation="tanh"),
            layers.Dense(256, activation="tanh"),
            layers.Dense(32, activation="tanh"),
            layers.Flatten(),
            layers.Dense(10),
        ]
    )
    model.compile(
        keras.optimizers.AdamW(LEARNING_RATE, gradient_accumulation_steps=num_batches),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


def tell(event: str, **values: Any) -> None:
    print(json.dumps({"event": event, **values}), flush=True)


def peak() -> int:
    return int(tf.config.experimental.get_memory_info("CPU:0")["peak"])


class Telling(keras.callbacks.Callback):
    """Tells of the model each time that it has seen another `window` samples, or all of them, in batches of `size`."""

    def __init__(self, window: int, size: int, num_samples: int) -> None:
        super().__init__()
        bounds = [*range(window, num_samples, window), num_samples]
        self._samples = {ceil(bound / size) - 1: bound for bound in bounds}
        self._num_samples, self._num_epochs = num_samples, 0
        self._start = 0.0
        self.weights: list[np.ndarray] = []

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if batch == 0 or batch - 1 in self._samples:
            self.model.reset_metrics()  # what Keras logs is a mean since the last time
            self._start = time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if batch not in self._samples:
            return
        seconds = time.perf_counter() - self._start
        self.weights.append(np.concatenate([np.ravel(weight) for weight in self.model.get_weights()]))
        tell(
            "update",
            samples=self._num_epochs * self._num_samples + self._samples[batch],
            loss=float(logs["loss"]),
            accuracy=float(logs["accuracy"]),
            seconds=seconds,
            peak=peak(),
            num_applied=int(self.model.optimizer.iterations),
        )

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._num_epochs += 1


def train(settings: dict[str, Any]) -> None:
    """Trains, in whichever way, and tells of it."""
    x, y = digits()
    size, window = settings["size"], settings["batch_size"]
    model = network(settings["num_batches"])
    if settings["micro_batch_size"]:
        bigbatch.accumulate(model, micro_batch_size=settings["micro_batch_size"])
    telling = Telling(window, size, len(x))
    tell("begin", num_updates=settings["epochs"] * ceil(len(x) / window))
    with running_out() as outcome:
        model.fit(x, y, batch_size=size, epochs=settings["epochs"], shuffle=False, verbose=0, callbacks=[telling])
    if outcome:
        tell("died", error=_last_words(str(outcome.message)))
        return
    np.save(Path(settings["folder"]) / "weights.npy", telling.weights)
    loss, accuracy = model.evaluate(x, y, batch_size=32, verbose=0)
    tell("end", loss=loss, accuracy=accuracy)


def _last_words(message: str) -> str:
    """Of many lines, the one that says what did not fit."""
    return next((line for line in message.splitlines() if line.startswith("OOM")), message)


def measure(settings: dict[str, Any]) -> None:
    """Makes two updates with micro-batches of each size and tells what they take at most."""
    x, y = digits()
    window = settings["batch_size"]
    for size in settings["sizes"]:
        keras.backend.clear_session()
        model = network()
        bigbatch.accumulate(model, micro_batch_size=size)
        tf.config.experimental.reset_memory_stats("CPU:0")
        model.fit(x[: 2 * window], y[: 2 * window], batch_size=window, shuffle=False, verbose=0)
        tell("peak", micro_batch_size=size, peak=peak())


def main() -> None:
    settings = json.loads(sys.argv[1])
    measure(settings) if settings["sizes"] else train(settings)


if __name__ == "__main__":
    main()
