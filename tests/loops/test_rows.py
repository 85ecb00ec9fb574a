"""`IndexedSlices` stay rows: each row once, its duplicates added up."""

import big_batch
import numpy as np
import pytest
import tensorflow as tf
from test_accumulator import LAZY, cut

import bigbatch


def table(dtype="float64"):
    return tf.Variable(np.arange(12).reshape(6, 2).astype(dtype), name="table")


def rows(indices, *values):
    return tf.IndexedSlices(tf.constant(np.array(values)), tf.constant(indices))


def test_duplicates_are_added_up_and_rows_stay_rows():
    accumulator = bigbatch.GradientAccumulator([table()])
    accumulator.add([rows([1, 1, 4], [1.0, 1.0], [2.0, 2.0], [5.0, 0.0])], weight=3)
    accumulator.add([rows([4], [1.0, 1.0])], weight=1)
    (mean,) = accumulator.gradients()
    assert isinstance(mean, tf.IndexedSlices)
    assert mean.indices.numpy().tolist() == [1, 4]
    np.testing.assert_allclose(mean.values.numpy(), [[9 / 4, 9 / 4], [16 / 4, 1 / 4]])


def test_rows_of_the_last_window_are_forgotten():
    accumulator = bigbatch.GradientAccumulator([table()])
    optimizer = big_batch.OPTIMIZERS["sgd"]()
    accumulator.add([rows([1, 3], [1.0, 1.0], [2.0, 2.0])])
    accumulator.apply(optimizer)
    accumulator.add([rows([3], [5.0, 5.0])])
    (mean,) = accumulator.gradients()
    assert mean.indices.numpy().tolist() == [3]
    assert mean.values.numpy().tolist() == [[5.0, 5.0]]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["rows_first", "dense_first"])
def test_rows_and_dense_gradients_join(order):
    accumulator = bigbatch.GradientAccumulator([table()])
    both = [rows([2, 2], [1.0, 1.0], [1.0, 3.0]), tf.ones((6, 2), tf.float64)]
    for index in order:
        accumulator.add([both[index]])
    (mean,) = accumulator.gradients()
    expected = np.full((6, 2), 0.5)
    expected[2] += [1.0, 2.0]
    np.testing.assert_allclose(mean.numpy(), expected)
    accumulator.reset()
    assert all(not part.numpy().any() for part in accumulator.variables)


@pytest.mark.parametrize("optimizer", sorted(LAZY & set(big_batch.OPTIMIZERS)))
def test_lazy_optimizers_see_the_rows_of_the_batch(optimizer):
    """They move only the rows they are given, so the reference must be given rows, and dense gradients are caught."""

    def reference(as_given):
        variables, mine = big_batch.variables(), big_batch.OPTIMIZERS[optimizer]()
        for batch in batches:
            gradients = as_given(big_batch.gradients(variables, *batch))
            mine.apply_gradients(list(zip(gradients, variables)))
        return big_batch.snapshot(variables)

    # Other rows in every batch.
    batches = [(ids // 3 + 2 * seed, y) for seed, (ids, y) in enumerate(big_batch.data(9, seed) for seed in range(3))]
    ours, mine = big_batch.variables(), big_batch.OPTIMIZERS[optimizer]()
    initial = big_batch.snapshot(ours)
    accumulator = bigbatch.GradientAccumulator(ours)
    for batch in batches:
        for part in cut(batch, [4, 3, 2]):
            accumulator.add(big_batch.gradients(ours, *part), weight=len(part[0].numpy()))
        accumulator.apply(mine)
    big_batch.assert_same(big_batch.snapshot(ours), reference(lambda gradients: gradients), initial)
    with pytest.raises(AssertionError):
        big_batch.assert_same(big_batch.snapshot(ours), reference(big_batch.dense), initial)


if hasattr(tf.keras.optimizers.SGD, "apply"):  # Keras 3

    class Subclass(tf.keras.optimizers.Adam):
        """One of a user, who may treat rows as he likes."""

    KERAS_3 = {
        "adam": (tf.keras.optimizers.Adam, tf.Tensor),
        "sgd": (tf.keras.optimizers.SGD, tf.Tensor),
        "scaled": (lambda rate: tf.keras.optimizers.LossScaleOptimizer(tf.keras.optimizers.Adam(rate)), tf.Tensor),
        "subclass": (Subclass, tf.IndexedSlices),
    }

    @pytest.mark.parametrize("name", KERAS_3)
    @pytest.mark.parametrize("indices", [[1], [1, 2, 4, 5]], ids=["few_rows", "most_rows"])
    def test_a_trace_hands_keras_the_table_that_it_would_make(name, indices, monkeypatch):
        make, kind = KERAS_3[name]
        ours, theirs, optimizer, reference, handed = table("float32"), table("float32"), make(0.25), make(0.25), []
        apply = optimizer.apply_gradients
        monkeypatch.setattr(optimizer, "apply_gradients", lambda pairs: apply(handed.extend(pairs) or pairs))
        accumulator = bigbatch.GradientAccumulator([ours])
        update = tf.function(lambda: accumulator.apply(optimizer))
        for turn in (1.0, 2.0):
            value = np.full([len(indices), 2], turn, "float32")
            accumulator.add([rows(indices, *value)], weight=3)
            accumulator.add([rows(indices[:1], *value[:1])], weight=1)
            update()
            assert all(not part.numpy().any() for part in accumulator.variables)

            gradient = np.zeros([6, 2], "float32")
            gradient[indices] = 0.75 * turn
            gradient[indices[0]] = turn
            before = theirs.numpy()
            reference.apply_gradients([(tf.constant(gradient), theirs)])
            assert np.abs(theirs.numpy() - before).max() > 1e-3
            np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-6)
        assert isinstance(handed[0][0], kind)
