"""Several replicas: `fit` under `MirroredStrategy` equals the whole batch on one device, however it is dealt."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from mirrored import raw, regression, strategy, train_on
from oracle import assert_same, eagerly, fit_arrays, train
from ragged import SIZES, dataset, fit, joined
from test_losses import CASES as LOSSES
from test_losses import X, Y
from test_losses import whole as loss_on_one_device
from test_optimizers import FIT, OPTIMIZERS
from test_optimizers import build as build_with
from test_windows import CASES as WINDOWS
from test_windows import whole as joined_on_one_device

import bigbatch

layers = keras.layers


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
    assert_same(train_on(num_replicas, *LOSSES[name], micro_batch_size=4), loss_on_one_device(name))


# Two replicas reduce in another way than three, and hand the optimizer the same mean: these do most with it.
ON_THREE = ["adam", "clipnorm", "ema_overwrite", "global_clipnorm", "lamb", "loss_scale_factor"]


@pytest.mark.parametrize(
    ("name", "num_replicas"), [(name, 2) for name in OPTIMIZERS] + [(name, 3) for name in ON_THREE]
)
def test_every_optimizer(name, num_replicas):
    build = built(lambda: build_with(name))
    assert_same(train_on(num_replicas, build, FIT, micro_batch_size=2), train(build, FIT))


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


@pytest.mark.parametrize(("num_replicas", "size"), [(2, None), (3, 2)], ids=["batches", "micro_batches"])
@pytest.mark.parametrize("name", WINDOWS)
def test_windows(name, num_replicas, size):
    build, arrays = WINDOWS[name]
    ours = train_on(
        num_replicas, build, fit(lambda: dataset(SIZES, *arrays)), batches_per_update=4, micro_batch_size=size
    )
    assert_same(ours, joined_on_one_device(name, 4))


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


def test_train_on_batch_deals_the_batch_to_the_replicas():
    def fit_by_hand(model):
        for _ in range(3):
            logs = model.train_on_batch(X[:11], Y[:11], return_dict=True)
        return keras.callbacks.History() if not logs else model.fit(X[:11], Y[:11], epochs=1, verbose=0, batch_size=11)

    build = lambda: regression(keras.optimizers.SGD(0.1))  # noqa: E731
    assert_same(train_on(2, build, fit_by_hand, micro_batch_size=2), train(build, fit_by_hand))


@pytest.mark.parametrize("name", ["embedding_mask", "outputs_with_different_masks"])
def test_losses_eagerly(name):
    build, fit = LOSSES[name]
    assert_same(train_on(2, eagerly(build), fit, micro_batch_size=4), loss_on_one_device(name))


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


@pytest.mark.parametrize("times", [1, 2])
def test_losses_of_keras_in_a_loop_divide_by_the_replicas(times):
    """As docs/distributed.md says of loops: whoever does not undo it has half of the update."""
    keras.utils.set_random_seed(7)
    with strategy(2).scope():
        model, loss_fn, optimizer = regression(), keras.losses.MeanSquaredError(), keras.optimizers.SGD(0.1)
        accumulator = bigbatch.GradientAccumulator(model.trainable_variables)
    before = [variable.numpy() for variable in model.trainable_variables]
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(X[:7], training=True) - Y[:7]))
    expected = [-0.1 * gradient.numpy() for gradient in tape.gradient(loss, model.trainable_variables)]

    def add(x, y):
        with tf.GradientTape() as tape:
            loss = loss_fn(y, model(x, training=True)) * times
        accumulator.add(tape.gradient(loss, model.trainable_variables), weight=tf.shape(x)[0])

    data = tf.data.Dataset.from_tensor_slices((X[:7], Y[:7])).batch(7)
    [batch] = strategy(2).experimental_distribute_dataset(data)
    strategy(2).run(add, args=batch)
    accumulator.apply(optimizer)
    for variable, start, movement in zip(model.trainable_variables, before, expected, strict=True):
        assert np.abs(movement).max() > 1e-3
        np.testing.assert_allclose(variable.numpy() - start, movement * times / 2, rtol=1e-10, atol=1e-15)


def test_a_mean_of_means_would_be_caught():
    """The negative control: plain Keras under the same strategy, whose last batch is two samples here and one there."""
    plain = fit_arrays(X[:27], Y[:27])

    def build_in_scope():
        with strategy(2).scope():
            return regression()

    assert_same(train_on(2, regression, plain), train(regression, plain))
    with pytest.raises(AssertionError):
        assert_same(train(build_in_scope, plain), train(regression, plain))
