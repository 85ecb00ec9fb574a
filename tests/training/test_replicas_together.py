"""What replicas hand to each other, what they share, and what is refused because they cannot."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from mirrored import raw, regression, strategy, train_on
from oracle import NUM_SAMPLES, assert_same, fit_arrays, snapshot, train
from test_losses import X, Y, dense

import bigbatch
from bigbatch.training.stream import ONE_BATCH
from bigbatch.training.update import Update

layers = keras.layers


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
        graph = traced.get_concrete_function(iterator, ONE_BATCH, None).graph
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
