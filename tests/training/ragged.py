"""Batches of any size, and what they are when they are joined."""

import numpy as np
import tensorflow as tf

SIZES = [4, 3, 5, 1, 4, 4, 6, 2, 1]  # batches of any size: nine of them, thirty samples


def parts(sizes, *arrays):
    ends = np.cumsum(sizes)
    cut = lambda start, stop: tf.nest.map_structure(lambda array: array[start:stop], arrays)  # noqa: E731
    return [cut(stop - size, stop) for size, stop in zip(sizes, ends, strict=True)]


def dataset(sizes, *arrays):
    """A dataset of batches of the given sizes, with a known number of batches."""
    spec = tf.nest.map_structure(lambda array: tf.TensorSpec((None, *array.shape[1:]), array.dtype), arrays)

    def batches():
        for batch in parts(sizes, *arrays):
            # Under `MirroredStrategy`, TensorFlow writes into memory that a generator hands out.
            yield tf.nest.map_structure(np.copy, batch)

    data = tf.data.Dataset.from_generator(batches, output_signature=spec)
    return data.apply(tf.data.experimental.assert_cardinality(len(sizes)))


def joined(sizes, windows):
    """The sizes of the windows; the last may be short."""
    result, rest = [], list(sizes)
    while rest:
        number = windows(len(result)) if callable(windows) else windows
        result.append(sum(rest[:number]))
        rest = rest[number:]
    return result


def fit(data, **arguments):
    return lambda model: model.fit(data(), **({"epochs": 2, "verbose": 0} | arguments))
