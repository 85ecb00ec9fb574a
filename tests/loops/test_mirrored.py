"""Several replicas: what each of them adds, however little, makes one update that equals that of the whole batch."""

import functools

import big_batch
import numpy as np
import pytest
import tensorflow as tf

import bigbatch

# Samples per window, micro-batch and replica: equal, unequal, and none at all.
WINDOWS = [[[4, 4], [4, 4]], [[5, 2], [1, 3]], [[3, 0], [2, 0]]]
ROOM = 5


@functools.lru_cache(maxsize=None)
def strategy():
    # Not by collectives: a replica that raises, as some here do, leaves them out of step for the whole process.
    engine = tf.distribute.ReductionToOneDevice()
    return tf.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"], cross_device_ops=engine)


def run(function, *arguments):
    runner = strategy().run if hasattr(strategy(), "run") else strategy().experimental_run_v2
    return runner(function, args=arguments)


def dealt(batch, sizes):
    """Micro-batches as the strategy deals them: `ROOM` rows for each replica, of which the first ones count."""
    ids, y = (leaf.numpy() for leaf in batch)
    dealt_ids, dealt_y = np.zeros((len(sizes), 2, ROOM, 5), "int64"), np.zeros((len(sizes), 2, ROOM, 4))
    start = 0
    for index, of_replicas in enumerate(sizes):
        for replica, size in enumerate(of_replicas):
            dealt_ids[index, replica, :size] = ids[start : start + size]
            dealt_y[index, replica, :size] = y[start : start + size]
            start += size
    flat = [array.reshape((-1, *array.shape[2:])) for array in (dealt_ids, dealt_y, np.array(sizes)[..., None])]
    return strategy().experimental_distribute_dataset(tf.data.Dataset.from_tensor_slices(tuple(flat)).batch(2))


def add_to(accumulator, variables):
    def add(ids, y, size):
        number = tf.cast(size[0, 0], tf.int32)
        gradients = big_batch.gradients(variables, ids[0][:number], y[0][:number])
        accumulator.add(gradients, weight=number)  # no samples: the gradients are NaN and weigh nothing

    return add


def eager(accumulator, variables, optimizer):
    add = add_to(accumulator, variables)

    def window(micro_batches):
        for micro_batch in micro_batches:
            run(add, *micro_batch)
        run(lambda: accumulator.apply(optimizer))

    return window


def outside(accumulator, variables, optimizer):
    """`apply` is called where no replica is."""
    add = tf.function(lambda *micro_batch: run(add_to(accumulator, variables), *micro_batch))

    def window(micro_batches):
        for micro_batch in micro_batches:
            add(*micro_batch)
        accumulator.apply(optimizer)

    return window


def traced(accumulator, variables, optimizer):
    add = tf.function(lambda *micro_batch: run(add_to(accumulator, variables), *micro_batch))
    apply = tf.function(lambda: run(lambda: accumulator.apply(optimizer)))

    def window(micro_batches):
        for micro_batch in micro_batches:
            add(*micro_batch)
        # TensorFlow 1.14 cannot make an optimizer's variables while it traces replicas: the first update is eager.
        if big_batch.VERSION < (2, 0) and not accumulator.applied:
            accumulator.apply(optimizer)
            accumulator.applied = True
        else:
            apply()

    accumulator.applied = False
    return window


MODES = {mode.__name__: mode for mode in (eager, outside, traced)}
# Optimizers that move only the rows they are given, and one that assigns by itself.
OTHERS = {"v1_momentum", "v1_rmsprop", "v1_ftrl", "own"} | ({"momentum"} if big_batch.VERSION < (2, 11) else set())


def train(optimizer, mode, **settings):
    sizes = [int(np.sum(window)) for window in WINDOWS]
    batches = [big_batch.data(size, seed) for seed, size in enumerate(sizes)]
    theirs = big_batch.variables()
    initial = big_batch.snapshot(theirs)
    big_batch.train(theirs, big_batch.OPTIMIZERS[optimizer](), batches)
    with strategy().scope():
        ours, our_optimizer = big_batch.variables(), big_batch.OPTIMIZERS[optimizer]()
        accumulator = bigbatch.GradientAccumulator(ours, **settings)
    window = MODES[mode](accumulator, ours, our_optimizer)
    for batch, of_window in zip(batches, WINDOWS):
        window(dealt(batch, of_window))
    return [tf.identity(variable).numpy() for variable in ours], big_batch.snapshot(theirs), initial, accumulator


CASES = {(optimizer, mode) for optimizer in set(big_batch.OPTIMIZERS) - OTHERS for mode in MODES}
if big_batch.VERSION < (2, 0):  # which cannot trace their slots on replicas
    CASES -= {("v1_adam", "traced"), ("v1_adagrad", "traced")}


@pytest.mark.parametrize(("optimizer", "mode"), sorted(CASES))
def test_equals_the_whole_batch_on_one_device(optimizer, mode):
    ours, theirs, initial, accumulator = train(optimizer, mode)
    big_batch.assert_same(ours, theirs, initial)
    assert (accumulator.num_added, accumulator.weight) == (0, 0.0)


@pytest.mark.parametrize("nonfinite", ["skip_update", "skip_micro_batch"])
@pytest.mark.parametrize("mode", MODES)
def test_finite_gradients_are_not_touched(mode, nonfinite):
    ours, theirs, initial, _ = train("adam", mode, nonfinite=nonfinite)
    big_batch.assert_same(ours, theirs, initial)


def made(**settings):
    with strategy().scope():
        variable = tf.Variable([1.0, 2.0])
        optimizer = tf.compat.v1.train.GradientDescentOptimizer(0.5)
        return variable, optimizer, bigbatch.GradientAccumulator([variable], **settings)


def of_replica(first, second):
    values = tf.stack([first, second])
    index = tf.cast(tf.distribute.get_replica_context().replica_id_in_sync_group, tf.int32)
    return tf.gather(values, index)


def test_weights_and_counts_are_those_of_all_replicas():
    _, _, accumulator = made()
    run(lambda: accumulator.add([tf.constant([1.0, 1.0])], weight=of_replica(3.0, 5.0)))
    assert (accumulator.num_added, accumulator.weight) == (2, 8.0)
    accumulator.reset()
    assert (accumulator.num_added, accumulator.weight) == (0, 0.0)


@pytest.mark.parametrize("call", [tf.function, lambda function: function], ids=["traced", "eager"])
def test_an_infinity_on_one_replica_skips_the_update_on_all(call):
    variable, optimizer, accumulator = made(nonfinite="skip_update")
    add = call(lambda first, second: run(lambda: accumulator.add([of_replica(first, second) * tf.ones([2])])))
    apply = call(lambda: run(lambda: accumulator.apply(optimizer)))
    add(tf.constant(1.0), tf.constant(np.inf, tf.float32))
    apply()
    assert tf.identity(variable).numpy().tolist() == [1.0, 2.0]
    add(tf.constant(1.0), tf.constant(3.0))
    apply()
    assert tf.identity(variable).numpy().tolist() == [0.0, 1.0]


def test_an_accumulator_from_outside_of_the_scope_is_refused():
    accumulator = bigbatch.GradientAccumulator([tf.Variable([1.0])])
    with strategy().scope(), pytest.raises(bigbatch.AccumulationError, match="in the scope of the strategy"):
        accumulator.add([tf.constant([1.0])])


def test_an_optimizer_from_outside_of_the_scope_is_refused():
    variable, _, accumulator = made()
    optimizer = tf.keras.optimizers.SGD(0.5, momentum=0.9)
    optimizer.apply_gradients([(tf.constant([1.0]), tf.Variable([1.0]))])  # which makes its variables
    run(lambda: accumulator.add([tf.constant([1.0, 2.0])]))
    with pytest.raises(bigbatch.AccumulationError, match="in the scope of their strategy"):
        accumulator.apply(optimizer)
    assert tf.identity(variable).numpy().tolist() == [1.0, 2.0]


def test_adding_from_outside_of_the_replicas_is_refused():
    _, _, accumulator = made()
    with pytest.raises(bigbatch.AccumulationError, match="`add` must be called in a replica"):
        accumulator.add([tf.constant([1.0, 2.0])])


def test_an_accumulator_of_one_replica_is_refused():
    with strategy().scope(), pytest.raises(bigbatch.AccumulationError, match="outside of the replicas"):
        run(lambda: bigbatch.GradientAccumulator([tf.Variable([1.0])]))


# TensorFlow 1.14 cannot restore a sum over replicas.
if big_batch.VERSION >= (2, 0):

    def test_a_checkpoint_keeps_what_all_replicas_have_added(tmp_path):
        variable, optimizer, accumulator = made()
        run(lambda: accumulator.add([tf.constant([1.0, 2.0])], weight=of_replica(1.0, 3.0)))
        path = tf.train.Checkpoint(accumulator=accumulator).save(str(tmp_path / "state"))
        accumulator.reset()
        tf.train.Checkpoint(accumulator=accumulator).restore(path)
        assert accumulator.weight == 4.0
        run(lambda: accumulator.add([tf.constant([3.0, 6.0])], weight=2))
        accumulator.apply(optimizer)
        np.testing.assert_allclose(tf.identity(variable).numpy(), [0.0, 0.0], atol=1e-6)
