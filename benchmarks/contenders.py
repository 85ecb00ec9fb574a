"""Everybody who can make the update of `number` micro-batches, on the same weights and samples.

A contender is a function of a workload, a number and an optimizer; it returns a model and a function that makes one
update. Those of `RIVAL` run in an environment of their own, with TensorFlow 2.15, beside the `limit` of that version.
In the scope of a strategy, those of `ON_DEVICES` share the micro-batches among the replicas.
"""

import functools

import tensorflow as tf
from tensorflow import keras
from workloads import initialised


def limit(workload, number, optimizer):
    """The bare loop: forward and backward per micro-batch, one application of the optimizer, and nothing else.

    Dense gradients are added up in the variables of a loop. Rows of an embedding are added to a buffer in place.
    """
    model, size, number = workload.make(), workload.SIZE, number // _replicas()
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

    def step(x, y):
        def part(start):
            return [tf.slice(each, [start] + [0] * (each.shape.rank - 1), [size, *each.shape[1:]]) for each in (x, y)]

        def body(index, sums):
            return index + 1, [a + b for a, b in zip(sums, gradients(*part(index * size)))]

        first = gradients(*part(0))
        # Whoever waits for a call of a `tf.function` does not wait for what it returns: the loop would run beside it.
        with tf.control_dependencies([tf.identity(each) for each in first]):
            index = tf.constant(1) + 0
        sums = tf.while_loop(lambda index, _: index < number, body, (index, first), parallel_iterations=1)[1]
        with tf.control_dependencies(sums):
            totals = [tf.identity(table) for table in tables.values()] + sums
        count = tf.distribute.get_replica_context().all_reduce("SUM", workload.count(x, y))
        optimizer.apply_gradients(zip([total / count for total in totals], [*embeddings, *others]))
        for table in tables.values():
            table.assign(tf.zeros(table.shape))

    strategy = tf.distribute.get_strategy()
    update = tf.function(lambda iterator: strategy.run(step, args=iterator.get_next()), autograph=False)
    return initialised(model), functools.partial(update, _iterator(_whole(workload, number * _replicas())))


def plain_keras(workload, number, optimizer):
    """The whole batch: what all others want to equal."""
    return _fitting(workload, workload.make(), optimizer, _whole(workload, number))


def bigbatch_fit(workload, number, optimizer):
    import bigbatch

    model = bigbatch.accumulate(workload.make(), micro_batch_size=workload.SIZE)
    return _fitting(workload, model, optimizer, _whole(workload, number))


def bigbatch_windows(workload, number, optimizer):
    import bigbatch

    batches = number // _replicas()
    model = bigbatch.accumulate(workload.make(), batches_per_update=batches)
    return _fitting(workload, model, optimizer, _parts(workload, number), batches=batches)


def bigbatch_loop(workload, number, optimizer):
    """`GradientAccumulator`, called from Python for every micro-batch."""
    model, iterator, add, apply = _accumulating(workload, number, optimizer)
    add, apply = tf.function(add), tf.function(apply)

    def update():
        for _ in range(number):
            add(iterator)
        apply()

    return model, update


def bigbatch_graph(workload, number, optimizer):
    """`GradientAccumulator`, with the whole update in one `tf.function`."""
    model, iterator, add, apply = _accumulating(workload, number, optimizer)

    @tf.function
    def update(iterator):
        for _ in tf.range(number):
            add(iterator)
        apply()

    return model, functools.partial(update, iterator)


def _accumulating(workload, number, optimizer):
    import bigbatch

    model = initialised(workload.make())
    accumulator = bigbatch.GradientAccumulator(model.trainable_variables)
    optimizer.build(model.trainable_variables)
    loss_fn = workload.loss()

    def add(iterator):
        x, y = next(iterator)
        with tf.GradientTape() as tape:
            value = loss_fn(y, model(x, training=True))
        accumulator.add(tape.gradient(value, model.trainable_variables), weight=workload.count(x, y))

    return model, iter(_parts(workload, number)), add, lambda: accumulator.apply(optimizer)


def keras_steps(workload, number, optimizer):
    """`gradient_accumulation_steps`."""
    return _step_by_step(workload, number, workload.make(), with_steps(optimizer, number))


def with_steps(optimizer, number):
    return type(optimizer).from_config(optimizer.get_config() | {"gradient_accumulation_steps": number})


def tutorial(workload, number, optimizer):
    """The loop of most answers and blog posts."""
    model, loss_fn = initialised(workload.make()), workload.loss()
    add, apply = gathering(
        model.trainable_variables, number, optimizer, lambda x, y: loss_fn(y, model(x, training=True))
    )
    iterator = iter(_parts(workload, number))

    def update():
        for _ in range(number):
            add(*next(iterator))
        apply()

    return model, update


def gathering(variables, number, optimizer, loss_of):
    """A function that gathers the gradients of a batch, divided by the number of batches, and one that applies them."""
    optimizer.build(variables)
    gathered = [tf.Variable(tf.zeros(each.shape, each.dtype), trainable=False) for each in variables]

    @tf.function(reduce_retracing=True)
    def add(*batch):
        with tf.GradientTape() as tape:
            value = loss_of(*batch) / number
        for total, gradient in zip(gathered, tape.gradient(value, variables)):
            total.assign_add(gradient)

    @tf.function
    def apply():
        optimizer.apply_gradients(zip(gathered, variables))
        for total in gathered:
            total.assign(tf.zeros_like(total))

    return add, apply


def rival_model(workload, number, optimizer):
    """`GradientAccumulateModel` of gradient-accumulator."""
    return _step_by_step(workload, number, wrapped_model(workload.make(), number), optimizer)


def wrapped_model(model, number):
    from gradient_accumulator import GradientAccumulateModel

    return GradientAccumulateModel(accum_steps=number, inputs=model.inputs, outputs=model.outputs)


def rival_optimizer(workload, number, optimizer):
    """`GradientAccumulateOptimizer` of gradient-accumulator."""
    return _step_by_step(workload, number, workload.make(), wrapped_optimizer(optimizer, number))


def wrapped_optimizer(optimizer, number):
    """It wraps optimizers of before TensorFlow 2.11, which had no averages of weights."""
    from gradient_accumulator import GradientAccumulateOptimizer

    config, older = optimizer.get_config(), getattr(keras.optimizers.legacy, type(optimizer).__name__)
    if config.get("use_ema"):
        raise NotImplementedError("use_ema")
    known = ("learning_rate", "momentum", "nesterov", "beta_1", "beta_2", "epsilon", "amsgrad", "clipnorm")
    kept = {name: config[name] for name in (*known, "global_clipnorm") if config.get(name) is not None}
    return GradientAccumulateOptimizer(older.from_config(kept), accum_steps=number)


OURS = (limit, plain_keras, bigbatch_fit, bigbatch_windows, bigbatch_graph, bigbatch_loop, keras_steps, tutorial)
RIVAL = (limit, rival_model, rival_optimizer)
ON_DEVICES = (limit, plain_keras, bigbatch_fit, bigbatch_windows)  # the others raise there, or do not claim to run


def _step_by_step(workload, number, model, optimizer):
    return _fitting(workload, model, optimizer, _parts(workload, number), batches=number, calls=number)


def _fitting(workload, model, optimizer, data, *, batches=1, calls=1):
    """The first update by `fit`; then what `fit` runs, without its callbacks. An update takes so many batches."""
    model.compile(optimizer, workload.loss())
    initialised(model)
    iterator = _iterator(data)

    def update():
        if model.train_function is None:
            model.fit(data.take(batches), verbose=0)
            return
        for _ in range(calls):
            model.train_function(iterator)

    return model, update


def _replicas():
    return tf.distribute.get_strategy().num_replicas_in_sync


def _iterator(data):
    strategy = tf.distribute.get_strategy()
    return iter(data if strategy.num_replicas_in_sync == 1 else strategy.experimental_distribute_dataset(data))


def _whole(workload, number):
    return tf.data.Dataset.from_tensors(workload.data(number * workload.SIZE)).repeat()


def _parts(workload, number):
    size = workload.SIZE * _replicas()
    parts = [each.reshape(-1, size, *each.shape[1:]) for each in workload.data(number * workload.SIZE)]
    return tf.data.Dataset.from_tensor_slices(tuple(parts)).repeat()
