"""Everybody who can make the update of `number` micro-batches, on the same weights and samples.

A contender is a function of a workload, a number and an optimizer; it returns a model and a function that makes one
update. Those of `RIVAL` run in an environment of their own, with TensorFlow 2.15, beside the `limit` of that version.
"""

import functools

import tensorflow as tf
from tensorflow import keras
from workloads import initialised


def limit(workload, number, optimizer):
    """The bare loop: forward and backward per micro-batch, one application of the optimizer, and nothing else.

    Dense gradients are added up in the variables of a loop. Rows of an embedding are added to a buffer in place.
    """
    model, size = workload.make(), workload.SIZE
    variables = model.trainable_variables
    optimizer.build(variables)
    embeddings = [layer.trainable_variables[0] for layer in model.layers if isinstance(layer, keras.layers.Embedding)]
    tables = {id(variable): tf.Variable(tf.zeros(variable.shape), trainable=False) for variable in embeddings}
    others = [variable for variable in variables if id(variable) not in tables]

    @tf.function(autograph=False)
    def gradients(x, y):
        with tf.GradientTape() as tape:
            total = workload.loss_sum(x, y, model(x, training=True))
        found = tape.gradient(total, [*embeddings, *others])
        for variable, rows in zip(embeddings, found):
            tables[id(variable)].scatter_add(rows)
        return found[len(embeddings) :]

    @tf.function(autograph=False)
    def update(iterator):
        x, y = iterator.get_next()

        def part(start):
            return [tf.slice(each, [start] + [0] * (each.shape.rank - 1), [size, *each.shape[1:]]) for each in (x, y)]

        def body(index, sums):
            return index + 1, [a + b for a, b in zip(sums, gradients(*part(index * size)))]

        first = gradients(*part(0))
        with tf.control_dependencies(first):
            index = tf.constant(1) + 0
        sums = tf.while_loop(lambda index, _: index < number, body, (index, first), parallel_iterations=1)[1]
        with tf.control_dependencies(sums):
            totals = [tf.identity(table) for table in tables.values()] + sums
        count = workload.count(x, y)
        optimizer.apply_gradients(zip([total / count for total in totals], [*embeddings, *others]))
        for table in tables.values():
            table.assign(tf.zeros(table.shape))

    return initialised(model), functools.partial(update, iter(_whole(workload, number)))


def plain_keras(workload, number, optimizer):
    """The whole batch: what all others want to equal."""
    return _fitting(workload, workload.make(), optimizer, _whole(workload, number))


def bigbatch_fit(workload, number, optimizer):
    import bigbatch

    model = bigbatch.accumulate(workload.make(), micro_batch_size=workload.SIZE)
    return _fitting(workload, model, optimizer, _whole(workload, number))


def bigbatch_windows(workload, number, optimizer):
    import bigbatch

    model = bigbatch.accumulate(workload.make(), batches_per_update=number)
    return _fitting(workload, model, optimizer, _parts(workload, number), batches=number)


def bigbatch_loop(workload, number, optimizer):
    import bigbatch

    model = initialised(workload.make())
    accumulator = bigbatch.GradientAccumulator(model.trainable_variables)
    optimizer.build(model.trainable_variables)
    iterator, loss_fn = iter(_parts(workload, number)), workload.loss()

    @tf.function
    def add(x, y):
        with tf.GradientTape() as tape:
            value = loss_fn(y, model(x, training=True))
        accumulator.add(tape.gradient(value, model.trainable_variables), weight=workload.count(x, y))

    apply = tf.function(lambda: accumulator.apply(optimizer))

    def update():
        for _ in range(number):
            add(*next(iterator))
        apply()

    return model, update


def keras_steps(workload, number, optimizer):
    """`gradient_accumulation_steps`, which has no 1."""
    config = optimizer.get_config() | {"gradient_accumulation_steps": number if number > 1 else None}
    return _fitting(
        workload,
        workload.make(),
        type(optimizer).from_config(config),
        _parts(workload, number),
        batches=number,
        calls=number,
    )


def tutorial(workload, number, optimizer):
    """The loop of most answers and blog posts: variables that gather gradients, divided by the number of batches."""
    model = initialised(workload.make())
    variables, loss_fn = model.trainable_variables, workload.loss()
    optimizer.build(variables)
    gathered = [tf.Variable(tf.zeros(variable.shape), trainable=False) for variable in variables]
    iterator = iter(_parts(workload, number))

    @tf.function
    def add(x, y):
        with tf.GradientTape() as tape:
            value = loss_fn(y, model(x, training=True)) / number
        for total, gradient in zip(gathered, tape.gradient(value, variables)):
            total.assign_add(gradient)

    @tf.function
    def apply():
        optimizer.apply_gradients(zip(gathered, variables))
        for total in gathered:
            total.assign(tf.zeros_like(total))

    def update():
        for _ in range(number):
            add(*next(iterator))
        apply()

    return model, update


def rival_model(workload, number, optimizer):
    """`GradientAccumulateModel` of gradient-accumulator."""
    from gradient_accumulator import GradientAccumulateModel

    model = workload.make()
    model = GradientAccumulateModel(accum_steps=number, inputs=model.inputs, outputs=model.outputs)
    return _fitting(workload, model, optimizer, _parts(workload, number), batches=number, calls=number)


def rival_optimizer(workload, number, optimizer):
    """`GradientAccumulateOptimizer` of gradient-accumulator, which wraps optimizers of before TensorFlow 2.11."""
    from gradient_accumulator import GradientAccumulateOptimizer

    older = getattr(keras.optimizers.legacy, type(optimizer).__name__)(float(optimizer.learning_rate))
    wrapped = GradientAccumulateOptimizer(older, accum_steps=number)
    return _fitting(workload, workload.make(), wrapped, _parts(workload, number), batches=number, calls=number)


OURS = (limit, plain_keras, bigbatch_fit, bigbatch_windows, bigbatch_loop, keras_steps, tutorial)
RIVAL = (limit, rival_model, rival_optimizer)


def _fitting(workload, model, optimizer, data, *, batches=1, calls=1):
    """The first update by `fit`; then what `fit` runs, without its callbacks. An update takes so many batches."""
    model.compile(optimizer, workload.loss())
    initialised(model)
    iterator = iter(data)

    def update():
        if model.train_function is None:
            model.fit(data.take(batches), verbose=0)
            return
        for _ in range(calls):
            model.train_function(iterator)

    return model, update


def _whole(workload, number):
    return tf.data.Dataset.from_tensors(workload.data(number * workload.SIZE)).repeat()


def _parts(workload, number):
    data = tf.data.Dataset.from_tensor_slices(workload.data(number * workload.SIZE))
    return data.batch(workload.SIZE, drop_remainder=True).cache().repeat()
