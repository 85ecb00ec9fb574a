"""The limits: forward and backward per micro-batch, one application of the optimizer, and nothing else.

All are written in raw TensorFlow. One micro-batch runs at a time: a loop that waits for a call of a `tf.function` does
not wait for what it returns, and its first turn would run beside the micro-batch before it, with the memory of two.
"""

import functools

import tensorflow as tf
from tensorflow import keras
from workloads import initialised, iterator_of, num_replicas, parts, whole


def limit(workload, number, optimizer):
    """The bare loop over the micro-batches of one batch.

    Dense gradients are added up in the variables of a loop. Rows of an embedding are added to a buffer in place.
    """
    model, size, number = workload.make(), workload.SIZE, number // num_replicas()
    variables = model.trainable_variables
    optimizer.build(variables)
    embeddings = [layer.trainable_variables[0] for layer in model.layers if isinstance(layer, keras.layers.Embedding)]
    tables = {id(variable): tf.Variable(tf.zeros(variable.shape), trainable=False) for variable in embeddings}
    others = [variable for variable in variables if id(variable) not in tables]

    @tf.function(autograph=False)
    def gradients(x, y):
        found = _gradients(workload, model, x, y, [*embeddings, *others])
        for variable, rows in zip(embeddings, found):
            tables[id(variable)].scatter_add(rows)
        return found[len(embeddings) :]

    def step(x, y):
        def part(start):
            return [tf.slice(each, [start] + [0] * (each.shape.rank - 1), [size, *each.shape[1:]]) for each in (x, y)]

        sums = _loop(number, lambda index, sums: _added(sums, gradients(*part(index * size))), gradients(*part(0)))
        with tf.control_dependencies(sums):
            totals = [tf.identity(table) for table in tables.values()] + sums
        _apply(optimizer, totals, workload.count(x, y), [*embeddings, *others])
        for table in tables.values():
            table.assign(tf.zeros(table.shape))

    strategy = tf.distribute.get_strategy()
    update = tf.function(lambda iterator: strategy.run(step, args=iterator.get_next()), autograph=False)
    return initialised(model), functools.partial(update, iterator_of(whole(workload, number * num_replicas())))


def floor(workload, optimizer):
    """Forward and backward of one micro-batch, beside weights and slots, with all gradients kept as tables."""
    model, (x, y) = workload.make(), map(tf.constant, workload.data(workload.SIZE))
    optimizer.build(model.trainable_variables)

    @tf.function(autograph=False)
    def gradients():
        return [tf.convert_to_tensor(each) for each in _gradients(workload, model, x, y, model.trainable_variables)]

    gradients.optimizer = optimizer  # or its slots would be gone
    return gradients


def limit_of_windows(workload, number, optimizer):
    """The bare loop over batches that are pulled one after the other, on all replicas. Dense gradients only."""
    model, strategy, turns = workload.make(), tf.distribute.get_strategy(), number // num_replicas()
    variables = model.trainable_variables
    optimizer.build(variables)

    @tf.function(autograph=False)
    def gradients(x, y):
        return [*_gradients(workload, model, x, y, variables), workload.count(x, y)]

    def update(iterator):
        def add(_, sums):
            return strategy.run(lambda x, y, sums: _added(sums, gradients(x, y)), args=(*iterator.get_next(), sums))

        sums = _loop(turns, add, strategy.run(gradients, args=iterator.get_next()))
        strategy.run(lambda sums: _apply(optimizer, sums[:-1], sums[-1], variables), args=(sums,))

    update = tf.function(update, autograph=False)
    return initialised(model), functools.partial(update, iterator_of(parts(workload, number)))


def _gradients(workload, model, x, y, variables):
    with tf.GradientTape() as tape:
        total = workload.loss_sum(x, y, model(x, training=True))
    return tape.gradient(total, variables)


def _added(sums, more):
    return [a + b for a, b in zip(sums, more)]


def _loop(number, add, first):
    """Adds turns 1 to `number` to the first, which comes before all of them."""
    with tf.control_dependencies([tf.identity(each) for each in tf.nest.flatten(first, expand_composites=True)]):
        index = tf.constant(1) + 0

    def turn(index, sums):
        return index + 1, add(index, sums)

    return tf.while_loop(lambda index, _: index < number, turn, (index, first), parallel_iterations=1)[1]


def _apply(optimizer, totals, count, variables):
    count = tf.identity(count)  # what leaves a loop is on no device, which a collective must know
    count = tf.distribute.get_replica_context().all_reduce("SUM", count)
    optimizer.apply_gradients(zip([total / count for total in totals], variables))
