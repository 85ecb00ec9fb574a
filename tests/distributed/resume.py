"""One worker that backs up every epoch and may kill itself: `bigbatch launch resume.py FOLDER [KILL_AT]`.

KILL_AT counts forward passes of worker 1; an epoch has ten, in micro-batches of three.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import bigbatch


def main(folder, *kill_at):
    bigbatch.wait_for_workers(60)
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    import keras
    import numpy as np
    from fuse import Fuse

    worker = strategy.cluster_resolver.task_id
    fuse = Fuse(*map(int, kill_at)) if worker == 1 else Fuse()
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(60, 6)).astype("float32"), rng.normal(size=(60, 2)).astype("float32")
    keras.utils.set_random_seed(1)
    with strategy.scope():
        layers = [keras.Input((6,)), fuse, keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(2)]
        model = keras.Sequential(layers)
        model.compile(keras.optimizers.Adam(0.05, use_ema=True), loss="mse")
        bigbatch.accumulate(model, micro_batch_size=3)
    # Workers share nothing, so that each needs a folder of its own.
    backup = keras.callbacks.BackupAndRestore(Path(folder) / f"backup-{worker}", delete_checkpoint=False)
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(12)
    history = model.fit(dataset, epochs=3, verbose=0, callbacks=[backup]).history
    variables = model.variables + model.optimizer.variables
    np.savez(Path(folder) / f"weights-{worker}.npz", *(variable.numpy() for variable in variables))
    updates, epochs, loss = int(model.optimizer.iterations.numpy()), len(history["loss"]), history["loss"][-1]
    print(f"updates {updates}, epochs in this run {epochs}, forward passes {fuse.passes}, loss {loss:.9f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
