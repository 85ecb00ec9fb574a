"""One worker: trains every case and leaves its state: `bigbatch launch --workers N train.py FOLDER CASE ...`."""

import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS), str(TESTS / "training"), str(TESTS / "distributed")]

import tensorflow as tf  # noqa: E402

import bigbatch  # noqa: E402

bigbatch.wait_for_workers(60)
strategy = tf.distribute.MultiWorkerMirroredStrategy()  # before anything else touches TensorFlow

import cases  # noqa: E402
import keras  # noqa: E402
import numpy as np  # noqa: E402

keras.config.set_floatx("float64")
keras.config.set_dtype_policy("float64")


def train(name):
    keras.utils.set_random_seed(7)
    if name == "custom_loop":
        return cases.custom_loop(strategy), {}
    _, _, batch_size, settings, _ = cases.CASES[name]
    with strategy.scope():
        model = bigbatch.accumulate(cases.build(name), **settings)
    return model, cases.fit(name, model, batch_size)


if __name__ == "__main__":
    for name in sys.argv[2:]:
        model, logs = train(name)
        state = {v.path: v.numpy() for v in model.variables + model.optimizer.variables}
        np.savez(Path(sys.argv[1]) / f"{name}-{strategy.cluster_resolver.task_id}.npz", logs=[logs], **state)
