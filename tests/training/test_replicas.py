"""Several replicas: `fit` under `MirroredStrategy` equals the whole batch on one device, however it is dealt."""

from functools import cache

import keras
import numpy as np
import pytest
import tensorflow as tf
from oracle import NUM_SAMPLES, assert_same, eagerly, fit_arrays, snapshot, train
from test_losses import CASES as LOSSES
from test_losses import X, Y, dense
from test_optimizers import FIT, OPTIMIZERS
from test_optimizers import build as build_with
from test_windows import CASES as WINDOWS
from test_windows import SIZES, dataset, fit, joined

import bigbatch
from bigbatch.training.stream import Limit
from bigbatch.training.update import Update

layers = keras.layers


@cache
def strategy(num_replicas):
    """Two replicas reduce by collectives, three by sums on one device: a process has collectives of one size only."""
    engine = None if num_replicas == 2 else tf.distribute.ReductionToOneDevice()
    return tf.distribute.MirroredStrategy([f"CPU:{index}" for index in range(num_replicas)], cross_device_ops=engine)


def train_on(num_replicas, build, fit, **settings):
    """Built, compiled and accumulated in the strategy's scope, trained outside of it."""

    def build_in_scope():
        with strategy(num_replicas).scope():
            model = bigbatch.accumulate(build(), **settings)
            if not model.built:
                model.build((None, 6))
            return model

    return train(build_in_scope, fit)


def built(build):
    """With its optimizer: one that Keras builds while it traces starts over at every update (ScheduleFreeAdamW)."""

    def build_all():
        model = build()
        model.optimizer.build(model.trainable_variables)
        return model

    return build_all


@pytest.mark.parametrize("num_replicas", [2, 3])
@pytest.mark.parametrize("name", LOSSES)
def test_every_loss(name, num_replicas):
    build, fit = LOSSES[name]
    assert_same(train_on(num_replicas, build, fit, micro_batch_size=4), train(build, fit))


@pytest.mark.parametrize("num_replicas", [2, 3])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer(name, num_replicas):
    build = built(lambda: build_with(name))
    assert_same(train_on(num_replicas, build, FIT, micro_batch_size=2), train(build, FIT))


def regression(optimizer=None, **arguments):
    model = dense("mse")
    model.compile(optimizer or keras.optimizers.Adam(0.1), loss="mse", metrics=["mae"], **arguments)
    return model


MODES = {
    "graph": {},
    "eager": {"run_eagerly": True},
    "steps_per_execution": {"steps_per_execution": 2},
    "xla": {"jit_compile": True},
}


@pytest.mark.parametrize("settings", [{}, {"micro_batch_size": 2}, {"batches_per_update": 2, "micro_batch_size": 2}])
@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_every_execution(mode, settings):
    ours = train_on(2, lambda: regression(**mode), fit(lambda: dataset(SIZES, X, Y)), **settings)
    window = settings.get("batches_per_update", 1)
    assert_same(ours, train(regression, fit(lambda: dataset(joined(SIZES, window), X, Y))))


@pytest.mark.parametrize("size", [None, 2], ids=["batches", "micro_batches"])
@pytest.mark.parametrize("name", WINDOWS)
def test_windows(name, size):
    build, arrays = WINDOWS[name]
    ours = train_on(3, build, fit(lambda: dataset(SIZES, *arrays)), batches_per_update=4, micro_batch_size=size)
    assert_same(ours, train(build, fit(lambda: dataset(joined(SIZES, 4), *arrays))))


def test_windows_of_samples_count_those_of_all_replicas():
    ours = train_on(2, regression, fit(lambda: dataset([4] * 6, X[:24], Y[:24])), samples_per_update=10)
    assert_same(ours, train(regression, fit(lambda: dataset([12, 12], X[:24], Y[:24]))))


@pytest.mark.parametrize("batch_size", [61, 31, 62], ids=["unequal", "last_one_is_alone", "last_replica_has_nothing"])
@pytest.mark.parametrize("num_replicas", [2, 3])
def test_unequal_replicas(num_replicas, batch_size):
    x, y = np.random.default_rng(1).normal(size=(63, 6)), np.ones((63, 2))
    data = lambda: tf.data.Dataset.from_tensor_slices((x, y)).batch(batch_size)  # noqa: E731
    ours = train_on(num_replicas, regression, fit(data), micro_batch_size=8)
    assert_same(ours, train(regression, fit(data)))


def raw(**arguments):
    model = Raw(**arguments)
    model.compile(keras.optimizers.SGD(0.1))
    return model


class Raw(keras.Model):
    """A `train_step` of its own, with a loss that knows nothing of replicas, or that divides by their number."""

    def __init__(self, divide=tf.reduce_mean):
        super().__init__()
        self.dense = layers.Dense(2)
        self.divide = divide

    def build(self, input_shape):
        self.dense.build(input_shape)

    def call(self, inputs):
        return self.dense(inputs)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.divide(tf.reduce_sum(tf.square(y - self(x, training=True)), -1))
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {"loss": loss, "replicas": tf.constant(7)}


DIVISIONS = {
    "mean": tf.reduce_mean,
    "compute_average_loss": tf.nn.compute_average_loss,
    "by_strategy": lambda loss: tf.reduce_mean(loss) / tf.distribute.get_strategy().num_replicas_in_sync,
    "by_context": lambda loss: tf.reduce_mean(loss) / tf.distribute.get_replica_context().num_replicas_in_sync,
}


@pytest.mark.parametrize("batch_size", [12, 29], ids=["equal", "last_replica_has_nothing"])
@pytest.mark.parametrize("divide", DIVISIONS.values(), ids=DIVISIONS)
def test_custom_train_step(divide, batch_size):
    data = fit_arrays(X, Y, batch_size=batch_size)
    ours = train_on(2, lambda: raw(divide=divide), data, micro_batch_size=4)
    assert_same(ours, train(raw, data))
    assert ours.logs["replicas"] == [7, 7]


def test_batch_norm_pools_over_all_replicas():
    images = np.random.default_rng(1).normal(2, 3, size=(NUM_SAMPLES, 4, 4, 3))

    def build():
        norm = layers.BatchNormalization(momentum=0.8, beta_initializer="ones", trainable=True)
        model = keras.Sequential([keras.Input((4, 4, 3)), norm, layers.Flatten(), layers.Dense(2)])
        model.compile(keras.optimizers.SGD(0.0), loss="mse")
        return model

    def statistics(model):
        norm = model.layers[0]
        fit_arrays(images, Y, batch_size=29)(model)
        return snapshot([norm.moving_mean, norm.moving_variance])

    reference = statistics(build())
    with strategy(2).scope():
        ours = statistics(bigbatch.accumulate(build(), micro_batch_size=4, batch_norm="pooled"))
    assert np.abs(reference[0]).max() > 1
    for mine, theirs in zip(ours, reference, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-10)


def test_a_model_that_was_built_outside_of_the_scope_is_refused():
    with strategy(2).scope():
        model = bigbatch.accumulate(raw(), micro_batch_size=2)
    model.build((None, 6))
    with pytest.raises(bigbatch.AccumulationError, match=r"built in the scope.*kernel"):
        fit_arrays(X, Y)(model)


def test_an_optimizer_that_was_made_outside_of_the_scope_is_refused():
    """Its variables would be moved once by every replica."""
    with strategy(2).scope():
        model = bigbatch.accumulate(dense("mse"), micro_batch_size=2)
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), loss="mse")
    with pytest.raises(bigbatch.AccumulationError, match=r"the optimizer sgd.*, made outside of MirroredStrategy"):
        fit_arrays(X, Y)(model)


def test_an_optimizer_that_is_not_built_is_refused():
    with strategy(2).scope():
        model = raw()
        model.build((None, 6))
        model.second = keras.optimizers.Adam(0.1, name="second")
        bigbatch.accumulate(model, micro_batch_size=2)
    with pytest.raises(bigbatch.AccumulationError, match=r"the optimizer second, which is not built yet"):
        fit_arrays(X, Y)(model)


def test_train_on_batch_deals_the_batch_to_the_replicas():
    def fit_by_hand(model):
        for _ in range(3):
            logs = model.train_on_batch(X[:11], Y[:11], return_dict=True)
        return keras.callbacks.History() if not logs else model.fit(X[:11], Y[:11], epochs=1, verbose=0, batch_size=11)

    build = lambda: regression(keras.optimizers.SGD(0.1))  # noqa: E731
    assert_same(train_on(2, build, fit_by_hand, micro_batch_size=2), train(build, fit_by_hand))


def test_synchronized_batch_norm_is_refused():
    with strategy(2).scope():
        model = keras.Sequential([keras.Input((6,)), layers.BatchNormalization(synchronized=True), layers.Dense(2)])
        model.compile("sgd", loss="mse")
        bigbatch.accumulate(model, micro_batch_size=2, batch_norm="pooled")
    with pytest.raises(bigbatch.AccumulationError, match="must not be synchronized"):
        fit_arrays(X, Y)(model)


@pytest.mark.parametrize("mode", [{}, {"run_eagerly": True}], ids=["graph", "eager"])
def test_an_infinity_on_one_replica_skips_the_update_on_all(mode):
    def build():
        inner = keras.optimizers.SGD(0.1, global_clipnorm=0.5)
        return regression(keras.optimizers.LossScaleOptimizer(inner, initial_scale=8.0), **mode)

    poisoned = X.copy()
    poisoned[11] = np.inf  # the last sample of the first batch: on the second replica only
    data = fit_arrays(poisoned, Y)
    ours, reference = train_on(2, build, data, micro_batch_size=4), train(build, data)
    for trained in (ours, reference):
        assert np.isnan(trained.logs.pop("loss")).any()
        trained.logs.clear()
    assert_same(ours, reference)


@pytest.mark.parametrize("name", ["embedding_mask", "outputs_with_different_masks"])
def test_losses_eagerly(name):
    build, fit = LOSSES[name]
    assert_same(train_on(2, eagerly(build), fit, micro_batch_size=4), train(build, fit))


def test_logs_of_every_batch_are_those_of_one_device():
    class Batches(keras.callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.logs = []

        def on_train_batch_end(self, batch, logs=None):
            self.logs.append([float(logs["loss"]), float(logs["mae"])])

    ours, reference = Batches(), Batches()
    train_on(2, regression, fit_arrays(X, Y, batch_size=29, callbacks=[ours]), micro_batch_size=4)
    train(regression, fit_arrays(X, Y, batch_size=29, callbacks=[reference]))
    np.testing.assert_allclose(ours.logs, reference.logs, rtol=1e-10)


def test_validation_and_release():
    def fit(model):
        history = fit_arrays(X, Y, validation_data=(X[:8], Y[:8]))(model)
        if "_accumulation" in vars(model):
            bigbatch.release(model)
        return history

    assert_same(train_on(2, regression, fit, micro_batch_size=4), train(regression, fit))


def test_nothing_stays_overridden():
    with strategy(2).scope():
        model = bigbatch.accumulate(regression(), micro_batch_size=2)
    fit_arrays(X, Y)(model)
    assert "_all_reduce_sum_gradients" not in vars(model.optimizer)
    assert strategy(2).num_replicas_in_sync == 2
    assert type(strategy(2).extended).__name__ == "MirroredExtended"
    assert "_num_replicas_in_sync" not in vars(type(strategy(2).extended)) or isinstance(
        vars(type(strategy(2).extended))["_num_replicas_in_sync"], property
    )


def test_a_mean_of_means_would_be_caught():
    """The negative control: plain Keras under the same strategy, whose last batch is two samples here and one there."""
    plain = fit_arrays(X[:27], Y[:27])

    def build_in_scope():
        with strategy(2).scope():
            return regression()

    assert_same(train_on(2, regression, plain), train(regression, plain))
    with pytest.raises(AssertionError):
        assert_same(train(build_in_scope, plain), train(regression, plain))


@pytest.fixture
def float32(float64):
    keras.config.set_floatx("float32")
    keras.config.set_dtype_policy("float32")


def collectives(model, micro_batch_size):
    """Dtype and length of every collective of one update of 16 samples, and how many others hide in functions."""
    data = tf.data.Dataset.from_tensor_slices((X.astype("float32"), Y.astype("float32"))).batch(16)
    iterator = iter(strategy(2).experimental_distribute_dataset(data))
    update = Update(model, micro_batch_size, pool=True)
    with strategy(2).scope():
        traced = tf.function(update.on_window, autograph=False)
        graph = traced.get_concrete_function(iterator, Limit(tf.constant(1), None), None).graph
    found = [op.inputs[0] for op in graph.get_operations() if op.type.startswith("Collective")]
    functions = graph.as_graph_def().library.function
    hidden = [node for function in functions for node in function.node_def if node.op.startswith("Collective")]
    return [(value.dtype.name, value.shape.num_elements()) for value in found], hidden


@pytest.mark.parametrize("micro_batch_size", [8, 2, 1], ids=["1_micro_batch", "4_micro_batches", "8_micro_batches"])
def test_the_gradients_travel_once_and_together(micro_batch_size, float32):
    with strategy(2).scope():
        model = bigbatch.accumulate(dense("mse"))  # without metrics, which travel by themselves
    fit_arrays(X.astype("float32"), Y.astype("float32"))(model)
    num_parameters = model.count_params()
    # On each of two replicas: the weight, the loss with its weight and its samples; then all gradients.
    once = [("float64", 4)] * 2 + [("float32", num_parameters)] * 2
    assert collectives(model, micro_batch_size) == (sorted(once, reverse=True), [])


def test_float32(float32):
    def run(train):
        keras.utils.set_random_seed(7)
        return train()

    def on_replicas():
        with strategy(2).scope():
            model = bigbatch.accumulate(regression(keras.optimizers.SGD(0.1)), micro_batch_size=4)
        return fit_arrays(x, y, batch_size=29)(model).history, model.get_weights()

    def on_one():
        model = regression(keras.optimizers.SGD(0.1))
        return fit_arrays(x, y, batch_size=29)(model).history, model.get_weights()

    x, y = X.astype("float32"), Y.astype("float32")
    (ours, our_weights), (theirs, their_weights) = run(on_replicas), run(on_one)
    np.testing.assert_allclose(ours["mae"], theirs["mae"], rtol=1e-5)
    assert max(np.abs(a - b).max() for a, b in zip(our_weights, their_weights, strict=True)) < 1e-6
