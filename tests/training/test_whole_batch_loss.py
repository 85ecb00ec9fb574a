"""`whole_batch_loss`: equal to plain Keras on the whole batch, whatever the loss does with its samples."""

from contextlib import nullcontext

import coupled
import keras
import numpy as np
import pytest
import tensorflow as tf
from coupled import CASES, LEFT, TARGETS, pairs
from mirrored import strategy, train_on
from oracle import SIZES, assert_same, distance, fit_arrays, train, update_size
from ragged import dataset, fit, joined
from test_losses import CASES as LOSSES

import bigbatch

layers = keras.layers
FIT = fit_arrays(LEFT, TARGETS)


def whole(**settings):
    settings = {"micro_batch_size": 5, **settings}
    return lambda model: bigbatch.accumulate(model, whole_batch_loss=True, **settings)


@pytest.mark.parametrize("name", CASES)
def test_coupled(name):
    build, x, y = CASES[name]
    assert_same(train(build, fit_arrays(x, y), whole()), train(build, fit_arrays(x, y)))


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
def test_sizes(size):
    assert_same(train(pairs, FIT, whole(micro_batch_size=size)), train(pairs, FIT))


@pytest.mark.parametrize("name", LOSSES)
def test_every_other_loss(name):
    """Masked, weighted and regularized ones are only losses of the outputs, too."""
    build, fit = LOSSES[name]
    assert_same(train(build, fit, whole(micro_batch_size=4)), train(build, fit))


def test_ordinary_accumulation_is_caught():
    """A control: without it, the same loss sees only its micro-batch."""
    ours, theirs = train(pairs, FIT, lambda model: bigbatch.accumulate(model, micro_batch_size=5)), train(pairs, FIT)
    assert distance(ours.weights, theirs.weights, update_size(theirs)) > 0.1


@pytest.mark.parametrize("settings", [{"batches_per_update": 3}, {"samples_per_update": 9}])
def test_windows_are_joined(settings):
    """Every sample of an update meets all others, whichever batch it came in."""
    sizes = [4, 5, 3, 6, 6, 6]
    updates = {"batches_per_update": joined(sizes, 3), "samples_per_update": [9, 9, 12]}[next(iter(settings))]
    ours = train(pairs, fit(lambda: dataset(sizes, LEFT, TARGETS)), whole(**settings))
    assert_same(ours, train(pairs, fit(lambda: dataset(updates, LEFT, TARGETS))))


@pytest.mark.parametrize("name", ["pairs", "mixed_terms", "eager"])
@pytest.mark.parametrize("num_replicas", [2, 3])
def test_samples_of_all_replicas(name, num_replicas):
    """30 samples in batches of 13: replicas have unequal shares."""
    build, x, y = CASES[name]
    settings = {"micro_batch_size": 2, "whole_batch_loss": True}
    fit = fit_arrays(x, y, batch_size=13)
    assert_same(train_on(num_replicas, build, fit, **settings), train(build, fit))


def test_a_replica_without_samples():
    fit = fit_arrays(LEFT[:25], TARGETS[:25], batch_size=12)
    ours = train_on(2, pairs, fit, micro_batch_size=4, whole_batch_loss=True)
    assert_same(ours, train(pairs, fit))


def in_order(model, x, size):
    """The outputs of the model, micro-batch by micro-batch, as it draws."""
    first = (len(x) - 1) % size + 1
    parts = [x[:first], *np.split(x[first:], (len(x) - first) // size)]
    return tf.concat([model(part, training=True) for part in parts], 0)


@pytest.mark.parametrize("jit_compile", [False, True], ids=["graph", "compiled"])
def test_draws_are_the_same_in_both_passes(jit_compile):
    """Equal to a reference that draws for every micro-batch, in order, and differentiates all at once."""

    def build():
        return pairs(layers.Dropout(0.5), layers.GaussianNoise(0.3), jit_compile=jit_compile)

    keras.utils.set_random_seed(7)
    model = build()
    if jit_compile:  # XLA draws other bits from the same seed
        call = tf.function(model.call, jit_compile=True)
        model.call = call
    with tf.GradientTape() as tape:
        loss = model.compute_loss(LEFT, TARGETS, in_order(model, LEFT[:12], 5))
    gradients = tape.gradient(loss, model.trainable_variables)
    before = [variable.numpy() for variable in model.trainable_variables]
    model.optimizer.apply(gradients, model.trainable_variables)
    reference = [variable.numpy() for variable in model.trainable_variables]
    seeds = [variable.numpy() for variable in model.non_trainable_variables]

    keras.utils.set_random_seed(7)
    ours = whole()(build())
    ours.fit(LEFT[:12], TARGETS[:12], batch_size=12, shuffle=False, verbose=0)
    scale = max(np.abs(a - b).max() for a, b in zip(before, reference, strict=True))
    assert scale > 1e-3
    assert distance([each.numpy() for each in ours.trainable_variables], reference, scale) < 1e-10
    for seed, known in zip(ours.non_trainable_variables, seeds, strict=True):
        np.testing.assert_array_equal(seed.numpy(), known)


def test_statistics_move_once():
    """Those of a batch norm that nothing depends on are exact; they move in one of the passes only."""

    def build():
        inputs = keras.Input((6,))
        beside = 0 * layers.BatchNormalization(momentum=0.5)(inputs)
        return coupled.compiled(keras.Model(inputs, layers.Dense(8)(inputs + beside)), coupled.InfoNCE())

    assert_same(train(build, FIT, whole(batch_norm="pooled")), train(build, FIT))


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_mixed_precision(policy):
    keras.config.set_floatx("float32")
    keras.config.set_dtype_policy(policy)
    results = []
    for accumulate in (lambda model: model, whole()):
        keras.utils.set_random_seed(7)
        model = pairs()
        before = model.get_weights()
        accumulate(model).fit(LEFT, TARGETS, batch_size=30, verbose=0)
        results.append(model.get_weights())
    moved = max(np.abs(a - b).max() for a, b in zip(before, results[0]))
    assert moved > 1e-3
    # Ten times the precision of the type: ordinary accumulation is off by 0.5.
    assert distance(*results, moved) < {"mixed_float16": 1e-2, "mixed_bfloat16": 8e-2}[policy]


def test_verify_sees_the_whole_batch():
    model = whole()(pairs())
    assert bigbatch.verify(model, LEFT, TARGETS).exact


def test_no_further_traces():
    model = whole()(pairs())
    count = []
    call = model.call
    object.__setattr__(model, "call", lambda *args, **kwargs: count.append(1) or call(*args, **kwargs))
    model.fit(LEFT, TARGETS, batch_size=10, verbose=0)
    traced = len(count)
    model.fit(LEFT, TARGETS, batch_size=10, epochs=3, verbose=0)
    assert len(count) == traced


@pytest.mark.parametrize("wrap", [lambda f: f, tf.function], ids=["eager", "traced"])
def test_custom_loop(wrap):
    """The naive program of the docstring, with dropout and a layer that adds a loss."""
    keras.utils.set_random_seed(7)
    model = pairs(layers.Dropout(0.5), layers.Dense(6, activity_regularizer="l2"))
    x = tf.constant(LEFT[:12])

    def loss_of(outputs):
        return tf.reduce_mean(coupled.info_nce(*tf.split(outputs, 2, axis=-1)))

    @wrap
    def ours():
        with tf.GradientTape() as tape:
            loss = loss_of(bigbatch.in_micro_batches(model, x, micro_batch_size=5)) + sum(model.losses)
        return loss, tape.gradient(loss, model.trainable_variables)

    seeds = [variable.numpy() for variable in model.non_trainable_variables]
    loss, gradients = ours()
    for variable, seed in zip(model.non_trainable_variables, seeds, strict=True):
        variable.assign(seed)
    with tf.GradientTape() as tape:
        outputs, added = [], 0.0
        for part in (x[:2], x[2:7], x[7:]):
            outputs.append(model(part, training=True))
            of_samples = sum(loss for layer in model.layers for loss in layer._losses)
            added += of_samples * len(part) / 12
        of_weights = sum(
            variable.regularizer(variable) for variable in model.trainable_variables if variable.regularizer
        )
        reference = loss_of(tf.concat(outputs, 0)) + added + of_weights
    expected = tape.gradient(reference, model.trainable_variables)
    np.testing.assert_allclose(loss, reference, rtol=1e-12)
    assert max(np.abs(gradient).max() for gradient in expected) > 1e-3
    for mine, theirs in zip(gradients, expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("num_replicas", [1, 2])
def test_monitor(num_replicas):
    log = {}
    with strategy(num_replicas).scope() if num_replicas > 1 else nullcontext():
        model = whole()(pairs())
    keep = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: log.update(logs))
    model.fit(LEFT, TARGETS, batch_size=30, verbose=0, callbacks=[bigbatch.Monitor(), keep])
    assert (log["samples"], log["micro_batches"]) == (30, 6)  # or, on two replicas, three each
    assert log["gradient_norm"] > 0


def test_a_model_that_is_never_called_is_refused():
    """Nothing of it would be split, and nobody would know."""
    model = whole()(coupled.compiled(coupled.PartsOnly(), None))
    before = model.get_weights()
    with pytest.raises(bigbatch.AccumulationError, match=r"^`train_step` must call the model for its forward pass"):
        model.fit((coupled.LEFT, coupled.RIGHT), TARGETS, batch_size=10, verbose=0)
    for mine, known in zip(model.get_weights(), before, strict=False):
        np.testing.assert_array_equal(mine, known)


def test_messages():
    with pytest.raises(ValueError, match=r"^`model` must be built\. Received: model='unbuilt', which is not"):
        bigbatch.in_micro_batches(keras.Sequential([layers.Dense(1)], name="unbuilt"), LEFT, micro_batch_size=2)
    with pytest.raises(ValueError, match=r"^`micro_batch_size` must be a positive integer where the loss sees"):
        bigbatch.accumulate(pairs(), micro_batch_size="auto", whole_batch_loss=True)
    with pytest.raises(ValueError, match=r"Received: micro_batch_size=None, whole_batch_loss=True"):
        bigbatch.accumulate(pairs(), whole_batch_loss=True)
