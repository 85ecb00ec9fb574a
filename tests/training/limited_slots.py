"""Trains a model whose slots have one shape under the limit of the environment: `python limited_slots.py SIZE FILE`."""

import logging
import pickle
import sys
from pathlib import Path

import keras
import numpy as np
from limited import Told

import bigbatch

rng = np.random.default_rng(5)
X, Y = rng.normal(size=(1600, 400)).astype("float32"), rng.integers(0, 3, 1600)


def main(size, file):
    told = Told()
    logging.getLogger("bigbatch").addHandler(told)
    keras.utils.set_random_seed(7)
    hidden = [keras.layers.Dense(400, activation="tanh", use_bias=False) for _ in range(10)]
    model = keras.Sequential([keras.Input((400,)), *hidden])
    model.compile(keras.optimizers.Adam(0.01), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    bigbatch.accumulate(model, micro_batch_size=size if size == "auto" else int(size))
    model.fit(X, Y, batch_size=1600, epochs=3, shuffle=False, verbose=0)
    Path(file).write_bytes(pickle.dumps({"weights": model.get_weights(), "told": told.lines}))


if __name__ == "__main__":
    main(*sys.argv[1:])
