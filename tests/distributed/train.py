"""One worker: trains every case and leaves its state: `bigbatch launch --workers N train.py FOLDER CASE ...`."""

import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS), str(TESTS / "training"), str(TESTS / "distributed")]

import bigbatch  # noqa: E402


def train(name, strategy):
    import cases
    import keras

    keras.utils.set_random_seed(7)
    if name == "custom_loop":
        return cases.custom_loop(strategy), {}
    _, _, batch_size, settings, _ = cases.CASES[name]
    with strategy.scope():
        model = bigbatch.accumulate(cases.build(name), **settings)
    return model, cases.fit(name, model, batch_size)


def main(folder, names):
    bigbatch.wait_for_workers(60)
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()  # before anything else touches TensorFlow
    import keras
    import numpy as np

    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    for name in names:
        model, logs = train(name, strategy)
        state = {v.path: v.numpy() for v in model.variables + model.optimizer.variables}
        np.savez(Path(folder) / f"{name}-{strategy.cluster_resolver.task_id}.npz", logs=[logs], **state)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
