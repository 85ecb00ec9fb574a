"""The models and batches that the benchmarks train. Imported after TensorFlow's environment is set."""

import keras
import numpy as np

layers = keras.layers
BATCH_SIZE, MICRO_BATCH_SIZE = 256, 16


def cnn():
    keras.utils.set_random_seed(0)
    inputs = keras.Input((32, 32, 3))
    hidden = inputs
    for filters in (32, 64, 64):
        hidden = layers.Conv2D(filters, 3, padding="same", activation="relu")(hidden)
        hidden = layers.MaxPooling2D()(hidden)
    model = keras.Model(inputs, layers.Dense(10)(layers.Flatten()(hidden)))
    rng = np.random.default_rng(0)
    return model, rng.normal(size=(BATCH_SIZE, 32, 32, 3)).astype("float32"), rng.integers(0, 10, BATCH_SIZE)


def transformer(length=64, width=64):
    keras.utils.set_random_seed(0)
    inputs = keras.Input((length,), dtype="int32")
    hidden = layers.Embedding(1000, width)(inputs)
    for _ in range(2):
        attended = layers.MultiHeadAttention(4, width // 4)(hidden, hidden)
        hidden = layers.LayerNormalization()(layers.Add()([hidden, layers.Dropout(0.1)(attended)]))
        expanded = layers.Dense(width)(layers.Dense(4 * width, activation="gelu")(hidden))
        hidden = layers.LayerNormalization()(layers.Add()([hidden, layers.Dropout(0.1)(expanded)]))
    model = keras.Model(inputs, layers.Dense(10)(layers.GlobalAveragePooling1D()(hidden)))
    rng = np.random.default_rng(0)
    return model, rng.integers(0, 1000, size=(BATCH_SIZE, length)).astype("int32"), rng.integers(0, 10, BATCH_SIZE)


def mlp():
    keras.utils.set_random_seed(0)
    hidden = [layers.Dense(1024, activation="relu") for _ in range(24)]
    model = keras.Sequential([keras.Input((1024,)), *hidden, layers.Dense(1024)])
    rng = np.random.default_rng(0)
    return model, rng.normal(size=(BATCH_SIZE, 1024)).astype("float32"), rng.integers(0, 1024, BATCH_SIZE)


def compiled(model, **arguments):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-3), loss=loss, **arguments)
    return model


WORKLOADS = {"cnn": cnn, "transformer": transformer}
LARGE = {**WORKLOADS, "mlp": mlp}  # the last with 26 million parameters
