"""A program that trains with windows and may be told to kill itself: `interrupted.py FOLDER HOW [KILL_AT]`.

KILL_AT counts forward passes: with windows of four batches, 14 is in the middle of the fourth.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import keras
import numpy as np
import tensorflow as tf
from fuse import Fuse

import bigbatch

EPOCHS, WINDOW, BATCH_SIZE = 3, 4, 5
fuse = Fuse(*map(int, sys.argv[3:]))


def build():
    keras.utils.set_random_seed(1)
    inputs = keras.Input((6,))
    model = keras.Model(inputs, keras.layers.Dense(2)(keras.layers.Dense(8, activation="tanh")(fuse(inputs))))
    rate = keras.optimizers.schedules.ExponentialDecay(0.05, 3, 0.8)
    model.compile(keras.optimizers.Adam(rate, use_ema=True), loss="mse")
    model.optimizer.build(model.trainable_variables)
    return bigbatch.accumulate(model, batches_per_update=WINDOW)


def dataset():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(70, 6)).astype("float32"), rng.normal(size=(70, 2)).astype("float32")
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH_SIZE)


def by_backup(model, folder):
    """`fit` with `BackupAndRestore`, which restarts the epoch."""
    callback = keras.callbacks.BackupAndRestore(folder / "backup", delete_checkpoint=False)
    model.fit(dataset(), epochs=EPOCHS, verbose=0, callbacks=[callback])


def by_checkpoint(model, folder):
    """Update by update, with model, optimizer and dataset iterator in one checkpoint."""
    iterator = iter(dataset().repeat(EPOCHS))
    checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer, iterator=iterator)
    manager = tf.train.CheckpointManager(checkpoint, folder / "checkpoints", max_to_keep=1)
    checkpoint.restore(manager.latest_checkpoint)
    model.make_train_function()
    while int(model.optimizer.iterations) < 10:
        model.train_function(iterator)
        manager.save()


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    trained = build()
    {"backup": by_backup, "checkpoint": by_checkpoint}[sys.argv[2]](trained, folder)
    np.savez(folder / "weights.npz", *(v.numpy() for v in trained.variables + trained.optimizer.variables))
    print(f"updates {int(trained.optimizer.iterations)}, forward passes {fuse.passes}")
