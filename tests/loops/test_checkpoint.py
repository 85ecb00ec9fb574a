"""The state is saved and restored in the middle of a window."""

import big_batch
import numpy as np
import pytest
import tensorflow as tf
from modes import MODES
from test_accumulator import cut

import bigbatch

PARTS = cut(big_batch.data(12), [5, 4, 3])


def add(accumulator, variables, parts):
    for part in parts:
        accumulator.add(big_batch.gradients(variables, *part), weight=len(part[0].numpy()))


@pytest.mark.parametrize("traced", [False, True], ids=["eager", "traced"])
def test_a_restored_window_goes_on(tmp_path, traced):
    whole = big_batch.variables()
    initial = big_batch.snapshot(whole)
    MODES["eager"](whole, bigbatch.GradientAccumulator(whole), big_batch.OPTIMIZERS["adam"]())(PARTS)

    variables = big_batch.variables()
    accumulator = bigbatch.GradientAccumulator(variables)
    add(accumulator, variables, PARTS[:2])
    path = tf.train.Checkpoint(accumulator=accumulator).save(str(tmp_path / "checkpoint"))

    resumed = big_batch.variables()
    restored = bigbatch.GradientAccumulator(resumed)
    checkpoint = tf.train.Checkpoint(accumulator=restored)
    checkpoint.restore(path).assert_consumed()
    assert (restored.num_added, restored.weight) == (2, 9.0)
    add(restored, resumed, PARTS[2:])
    optimizer = big_batch.OPTIMIZERS["adam"]()
    apply = lambda: restored.apply(optimizer)  # noqa: E731
    (tf.function(apply) if traced else apply)()
    big_batch.assert_same(big_batch.snapshot(resumed), big_batch.snapshot(whole), initial)


@pytest.mark.parametrize("traced", [False, True], ids=["eager", "traced"])
def test_a_restored_window_may_be_complete(tmp_path, traced):
    variables = big_batch.variables()
    accumulator = bigbatch.GradientAccumulator(variables)
    add(accumulator, variables, PARTS)
    expected = big_batch.dense(accumulator.gradients())
    path = tf.train.Checkpoint(accumulator=accumulator).save(str(tmp_path / "checkpoint"))
    restored = bigbatch.GradientAccumulator(big_batch.variables())
    tf.train.Checkpoint(accumulator=restored).restore(path)
    caught = []

    class Catch:
        def apply_gradients(self, pairs):
            caught.extend(gradient for gradient, _ in pairs)

    if traced:
        mean = tf.function(lambda: big_batch.dense(restored.gradients())[1])()
        np.testing.assert_array_equal(mean.numpy(), expected[1].numpy())
    restored.apply(Catch())
    assert caught[-1] is None
    for mine, reference in zip(big_batch.dense(caught[:-1]), expected):
        np.testing.assert_array_equal(mine.numpy(), reference.numpy())


def test_a_checkpoint_of_the_accumulator_holds_nothing_of_the_model(tmp_path):
    variables = big_batch.variables()
    accumulator = bigbatch.GradientAccumulator(variables)
    path = tf.train.Checkpoint(accumulator=accumulator).save(str(tmp_path / "checkpoint"))
    names = [name for name, _ in tf.train.list_variables(path) if name.startswith("accumulator/")]
    assert len(names) == len(accumulator.variables) == 2 * len(variables) + 1
