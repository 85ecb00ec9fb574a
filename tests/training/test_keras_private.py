"""Guards: each fails when Keras or TensorFlow moves a private name that we use."""

import inspect

import keras
import numpy as np
import pytest
import tensorflow as tf

from bigbatch.training import keras_private


@pytest.fixture
def model():
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(2, activity_regularizer="l2")])
    model.compile(keras.optimizers.SGD(0.1), loss="mse", metrics=["mae"])
    model.fit(np.ones((4, 6)), np.ones((4, 2)), verbose=0)
    return model


def test_compile_loss_holds_one_entry_per_output(model):
    compiled = keras_private.compile_loss(model)
    assert compiled.built
    [entry] = compiled._flat_losses
    assert isinstance(entry.loss, keras.losses.Loss)
    assert list(inspect.signature(type(compiled).build).parameters) == ["self", "y_true", "y_pred"]


def test_loss_trackers(model):
    assert [metric.name for metric in keras_private.loss_trackers(model)] == ["loss"]
    assert keras_private.output_loss_trackers(model) == []


def test_flatten_layers(model):
    nested = keras.Sequential([keras.Input((6,)), model])
    assert model.layers[0] in keras_private.flatten_layers(nested)


def test_losses_of_samples(model):
    model(np.ones((4, 6)))
    assert keras_private.has_losses_of_samples(model)
    plain = keras.Sequential([keras.Input((6,)), keras.layers.Dense(2, kernel_regularizer="l2")])
    plain(np.ones((4, 6)))
    assert not keras_private.has_losses_of_samples(plain)


def test_nothing_lasts_without_effects(model):
    layer = keras.layers.Dropout(0.5, seed=1)
    layer.build((None, 6))
    with keras_private.without_effects(model):
        layer(np.ones((4, 6)), training=True)
        assert model.losses == []
    assert layer.seed_generator.state.numpy().tolist() == [1, 0]


def test_optimizer_variables(model):
    assert [v.path for v in keras_private.optimizer_variables(model.optimizer)] == [
        v.path for v in model.trainable_variables
    ]


def test_make_function_leaves_xla_to_the_step(model):
    model.jit_compile = True
    function = keras_private.make_function(model, lambda batch: {"loss": tf.reduce_sum(batch[0])})
    assert model.jit_compile is True
    assert float(function(iter([(tf.ones((3, 2)),)]))["loss"]) == 6.0


def test_masks():
    embedded = keras.layers.Embedding(5, 2, mask_zero=True)(tf.constant([[1, 0]]))
    assert keras_private.get_keras_mask(embedded).numpy().tolist() == [[True, False]]
    weights = keras_private.apply_mask(tf.constant([2.0, 3.0]), tf.constant([True, False]), "float32", "sum")
    assert weights.numpy().tolist() == [2.0, 0.0]


def test_mask_epsilon():
    """It was 1e-7 in Keras 3.12 and is gone in 3.15."""
    assert round(keras_private.mask_epsilon(), 12) in (0.0, 1e-7)


def test_a_scratch_graph_builds_but_does_not_run():
    layer, ran = keras.layers.Dense(2), tf.Variable(0)
    with keras_private.FuncGraph("scratch").as_default():
        layer(tf.ones((1, 3)))
        ran.assign_add(1)
    assert layer.kernel.shape == (3, 2)
    assert int(ran) == 0


def test_compile_check_is_a_method_of_its_own():
    assert list(inspect.signature(keras.Model._assert_compile_called).parameters) == ["self", "method_name"]


def test_batch_norm_assigns_by_momentum():
    """With no momentum, a call assigns its very moments, once each."""
    layer = keras.layers.BatchNormalization(momentum=0.0)
    x = np.arange(12.0).reshape(4, 3)
    layer(x, training=True)
    np.testing.assert_allclose(layer.moving_mean, x.mean(0), rtol=1e-6)
    np.testing.assert_allclose(layer.moving_variance, x.var(0), rtol=1e-6)


def test_moving_averages():
    variable = keras.Variable([1.0])
    optimizer = keras.optimizers.SGD(0.1, use_ema=True)
    optimizer.build([variable])
    assert [average.shape for average in keras_private.moving_averages(optimizer)] == [(1,)]


@pytest.mark.parametrize("name", ["_all_reduce_sum_gradients", "_overwrite_model_variables_with_average_value"])
def test_what_an_optimizer_does_for_replicas(name):
    first, _ = inspect.signature(getattr(keras.optimizers.SGD, name)).parameters
    assert first == "self"


def test_what_is_built_before_training():
    parameters = inspect.signature(keras.Model._maybe_symbolic_build).parameters
    assert list(parameters) == ["self", "iterator", "data_batch"]


def test_the_number_of_replicas_is_a_property_of_the_class():
    extended = tf.distribute.get_strategy().extended
    assert isinstance(type(extended)._num_replicas_in_sync, property)
    assert tf.distribute.get_strategy().num_replicas_in_sync == extended._num_replicas_in_sync == 1


def test_masks_can_be_put_on_tensors():
    tensor, mask = tf.zeros([2, 3]), tf.ones([2, 3], tf.bool)
    keras_private.set_keras_mask(tensor, mask)
    assert keras_private.get_keras_mask(tensor) is mask


def test_seeds_count_draws():
    """A seed is repeated by adding to it what was drawn since."""
    [generator] = keras_private.seed_generators(keras.layers.Dropout(0.5, seed=3))
    first, second = generator.next().numpy(), generator.next().numpy()
    assert list(second - first) == [0, 1]
    assert list(generator.state.numpy() - second) == [0, 1]
