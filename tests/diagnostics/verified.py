"""Models to verify: some that accumulate exactly, and some that must be caught; and how they are verified."""

import keras
import numpy as np
import tensorflow as tf

import bigbatch

L = keras.layers
NUM_SAMPLES, SIZE = 22, 6
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(NUM_SAMPLES, 4))
Y = RANDOM.normal(size=(NUM_SAMPLES, 1)) + 0.1
Y[::SIZE] = 3.0  # so that every micro-batch has a target that counts
WEIGHTS = RANDOM.uniform(0.1, 2.0, size=NUM_SAMPLES)
SEQUENCES = RANDOM.normal(size=(NUM_SAMPLES, 3, 4))
TOKENS = np.sort(RANDOM.integers(0, 7, size=(NUM_SAMPLES, 5)))[:, ::-1].copy()
LABELS = RANDOM.integers(0, 3, size=(NUM_SAMPLES, 5))


def sequential(*layers, x=X, loss="mse", **settings):
    model = keras.Sequential([keras.Input(x.shape[1:]), *layers])
    model.compile(settings.pop("optimizer", "adam"), loss, **settings)
    return model


def mlp(**settings):
    return sequential(L.Dense(8, activation="tanh", kernel_regularizer="l2"), L.Dense(1), metrics=["mae"], **settings)


def masked():
    layers = L.Embedding(7, 4, mask_zero=True), L.Dense(3, activation="softmax")
    model = keras.Sequential([keras.Input((5,), dtype="int32"), *layers])
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def attention():
    inputs = keras.Input(SEQUENCES.shape[1:])
    hidden = L.MultiHeadAttention(2, 2, dropout=0.3)(inputs, inputs) + inputs
    outputs = L.Dense(1)(L.GlobalAveragePooling1D()(L.Dropout(0.5)(L.LayerNormalization()(hidden))))
    model = keras.Model(inputs, outputs)
    model.compile("sgd", "mse")
    return model


def over_valid(y_true, y_pred):
    """A masked mean of its own making."""
    valid = tf.cast(y_true > 0, y_pred.dtype)
    return tf.reduce_sum(valid * tf.square(y_true - y_pred)) / tf.reduce_sum(valid)


def added(y_true, y_pred):
    return tf.reduce_sum(tf.square(y_true - y_pred))


def contrastive(y_true, y_pred):
    similar = tf.matmul(y_pred, y_pred, transpose_b=True)
    return tf.reduce_mean(tf.reduce_logsumexp(similar, axis=1) - tf.linalg.diag_part(similar))


def relative_error(y_true, y_pred):
    return tf.reduce_sum(tf.abs(y_true - y_pred)) / tf.reduce_sum(tf.abs(y_true))


class MiniBatchDeviation(L.Layer):
    def call(self, inputs):
        return inputs * tf.math.reduce_std(inputs)


class Unseeded(L.Layer):
    def call(self, inputs):
        return inputs + tf.random.normal(tf.shape(inputs), dtype=inputs.dtype)


class Drawing(L.Layer):
    """A layer with a seed of its own."""

    def __init__(self, **settings):
        super().__init__(**settings)
        self.seed = keras.random.SeedGenerator(2)


class MixUp(Drawing):
    """Draws, and mixes samples, too."""

    def call(self, inputs):
        share = keras.random.uniform((), seed=self.seed, dtype=inputs.dtype)
        return share * inputs + (1 - share) * tf.reverse(inputs, [0])


class Repeating(Drawing):
    """Draws every number twice."""

    def call(self, inputs):
        seed = (tf.cast(self.seed.next(), tf.int32) + 1) // 2  # of what has been drawn before, an odd number
        return inputs + tf.random.stateless_normal(tf.shape(inputs), seed, dtype=inputs.dtype)


class Sampling(Drawing):
    """Draws, and adds a loss."""

    def call(self, inputs):
        self.add_loss(tf.reduce_mean(tf.square(inputs)))
        return inputs + keras.random.normal(tf.shape(inputs), seed=self.seed, dtype=inputs.dtype)


class AddingSum(L.Layer):
    def call(self, inputs):
        self.add_loss(0.01 * tf.reduce_sum(tf.square(inputs)))
        return inputs


class Counting(L.Layer):
    """Uses a number that every call changes."""

    def build(self, _):
        self.count = self.add_weight(shape=(), trainable=False, initializer="zeros", name="count")

    def call(self, inputs):
        self.count.assign_add(1.0)
        return inputs * (1 + self.count)


class OwnStep(keras.Model):
    """A model that never calls itself: its loss is none of Keras' business."""

    def __init__(self, loss):
        super().__init__()
        self.encoder = L.Dense(3, kernel_regularizer="l2")
        self.loss_of_batch = loss

    def call(self, inputs):
        return self.encoder(inputs)

    def train_step(self, data):
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        with tf.GradientTape() as tape:
            loss = self.loss_of_batch(y, self.encoder(x), sample_weight) + sum(self.losses)
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {"loss": loss}


def own_step(loss):
    model = OwnStep(loss)
    model.compile("sgd")
    return model


def forgotten_weights(y_true, y_pred, sample_weight):
    """Divides by its summed weights, which nobody else knows of."""
    values = tf.reduce_mean(tf.square(y_true - y_pred), axis=-1)
    sample_weight = tf.cast(sample_weight, values.dtype)
    return tf.reduce_sum(values * sample_weight) / tf.reduce_sum(sample_weight)


class NoisyStep(keras.Model):
    """Draws in its `train_step`, outside of any layer."""

    def __init__(self):
        super().__init__()
        self.dense = L.Dense(1)
        self.seed = keras.random.SeedGenerator(1)

    def call(self, inputs):
        return self.dense(inputs)

    def train_step(self, data):
        x, y = data
        return super().train_step((x + keras.random.normal(tf.shape(x), seed=self.seed, dtype=x.dtype), y))


class Averaging(keras.Model):
    """Moves an average of its weights in every run of `train_step`."""

    def __init__(self):
        super().__init__()
        self.dense = L.Dense(1)
        self.average = self.add_weight(shape=(4, 1), initializer="zeros", trainable=False, name="average")

    def call(self, inputs):
        return self.dense(inputs)

    def train_step(self, data):
        logs = super().train_step(data)
        self.average.assign(0.9 * self.average + 0.1 * self.dense.kernel)
        return logs


class Buffering(Averaging):
    """Adds gradients to a buffer that it forgets to empty."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self(x) - tf.cast(y, self.compute_dtype)))
        kernel, bias = tape.gradient(loss, self.trainable_variables)
        self.average.assign_add(kernel)
        self.optimizer.apply([tf.identity(self.average), bias], self.trainable_variables)
        return {"loss": loss}


def compiled(model):
    model.compile("sgd", "mse")
    return model


def state_of(model):
    metrics = [variable for metric in model.metrics for variable in metric.variables]
    return [each.numpy() for each in [*model.variables, *model.optimizer.variables, *metrics]]


def verify(build, x, y, **settings):
    """Verifies a model that has trained a little, and sees that it is left alone."""
    keras.utils.set_random_seed(0)
    keras.backend.clear_session()
    model = build()
    model.fit(x, y, sample_weight=settings.get("sample_weight"), epochs=1, verbose=0)
    before = state_of(model)
    report = bigbatch.verify(model, x, y, **{"micro_batch_size": SIZE, **settings})
    for value, known in zip(state_of(model), before, strict=True):
        np.testing.assert_array_equal(value, known)
    return report
