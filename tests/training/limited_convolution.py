"""Trains a convolution under the limit of the environment, which its whole batch does not fit; leaves what was told."""

import logging
import pickle
import sys
from pathlib import Path

import keras
import numpy as np

import bigbatch


def main():
    told = []
    logging.getLogger("bigbatch").addFilter(lambda record: told.append(record.getMessage()))
    keras.utils.set_random_seed(0)
    x, y = np.random.normal(size=(128, 64, 64, 3)).astype("float32"), np.ones((128, 1), "float32")
    convolutions = [keras.layers.Conv2D(16, 3, activation="relu") for _ in range(3)]
    pooled = keras.layers.GlobalAveragePooling2D()
    model = keras.Sequential([keras.Input((64, 64, 3)), *convolutions, pooled, keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    bigbatch.accumulate(model, micro_batch_size="auto").fit(x, y, batch_size=128, verbose=0)
    Path(sys.argv[1]).write_bytes(pickle.dumps({"told": told, "updates": int(model.optimizer.iterations)}))


if __name__ == "__main__":
    main()
