"""One worker that backs up every epoch and may kill itself: `bigbatch launch resume.py FOLDER [KILL_AT]`.

KILL_AT counts forward passes of worker 1; an epoch has ten, in micro-batches of three.
"""

import os
import signal
import sys
from pathlib import Path

import tensorflow as tf

import bigbatch

bigbatch.wait_for_workers(60)
strategy = tf.distribute.MultiWorkerMirroredStrategy()

import keras  # noqa: E402
import numpy as np  # noqa: E402

WORKER = strategy.cluster_resolver.task_id
passes = 0


class Fuse(keras.layers.Layer):
    """Kills the process, with no chance to clean up, when its time has come."""

    def call(self, inputs):
        def burn(x):
            global passes  # noqa: PLW0603
            passes += 1
            if WORKER == 1 and len(sys.argv) > 2 and passes == int(sys.argv[2]):
                os.kill(os.getpid(), signal.SIGKILL)
            return x

        outputs = tf.numpy_function(burn, [inputs], inputs.dtype)
        outputs.set_shape(inputs.shape)
        return outputs


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(60, 6)).astype("float32"), rng.normal(size=(60, 2)).astype("float32")
    keras.utils.set_random_seed(1)
    with strategy.scope():
        layers = [keras.Input((6,)), Fuse(), keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(2)]
        model = keras.Sequential(layers)
        model.compile(keras.optimizers.Adam(0.05, use_ema=True), loss="mse")
        bigbatch.accumulate(model, micro_batch_size=3)
    # Workers share nothing, so that each needs a folder of its own.
    backup = keras.callbacks.BackupAndRestore(folder / f"backup-{WORKER}", delete_checkpoint=False)
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(12)
    history = model.fit(dataset, epochs=3, verbose=0, callbacks=[backup]).history
    np.savez(folder / f"weights-{WORKER}.npz", *(v.numpy() for v in model.variables + model.optimizer.variables))
    updates, epochs = int(model.optimizer.iterations.numpy()), len(history["loss"])
    print(f"updates {updates}, epochs in this run {epochs}, forward passes {passes}, loss {history['loss'][-1]:.9f}")
