"""Training on several workers: run me with `bigbatch launch --workers 2 examples/workers.py`.

Nothing here depends on how the workers were started: `bigbatch launch`, Ray, Slurm and Kubernetes only differ in who
sets TF_CONFIG.
"""

import sys

import bigbatch


def train(epochs=2):
    """One worker's part; returns the model and its history."""
    bigbatch.wait_for_workers(seconds=60)

    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()  # before anything else touches TensorFlow

    import keras
    from sklearn.datasets import load_digits

    keras.utils.set_random_seed(1)
    x, y = load_digits(return_X_y=True)
    dataset = tf.data.Dataset.from_tensor_slices(((x / 16).astype("float32"), y)).batch(256)
    with strategy.scope():
        model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(64, "relu"), keras.layers.Dense(10)])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(1e-3, global_clipnorm=1.0), loss=loss, metrics=["accuracy"])
        bigbatch.accumulate(model, micro_batch_size=16)  # per worker; 128 of the 256 samples are its own
    history = model.fit(dataset, epochs=epochs, verbose=0).history
    return model, history


if __name__ == "__main__":
    model, history = train(*map(int, sys.argv[1:]))
    total = sum(float(abs(weight).sum()) for weight in model.get_weights())
    print(f"loss {history['loss'][-1]:.6f}, accuracy {history['accuracy'][-1]:.4f}, weights {total.hex()}")
