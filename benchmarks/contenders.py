"""Everybody who can make the update of `number` micro-batches, on the same weights and samples.

A contender is a function of a workload, a number and an optimizer; it returns a model and a function that makes one
update. Those of `RIVAL` run in an environment of their own, with TensorFlow 2.15, beside the `limit` of that version.
In the scope of a strategy, those of `TOGETHER` share the micro-batches among the replicas.
"""

import functools

import tensorflow as tf
from limits import limit, limit_of_windows
from tensorflow import keras
from workloads import initialised, iterator_of, num_replicas, parts, whole


def plain_keras(workload, number, optimizer):
    """The whole batch: what all others want to equal."""
    return _fitting(workload, workload.make(), optimizer, whole(workload, number))


def twin(workload, number, optimizer):
    """The limit once more: what it is apart from the limit is the error of the measurement."""
    return limit(workload, number, optimizer)


def bigbatch_fit(workload, number, optimizer):
    import bigbatch

    model = bigbatch.accumulate(workload.make(), micro_batch_size=workload.SIZE)
    return _fitting(workload, model, optimizer, whole(workload, number))


def bigbatch_windows(workload, number, optimizer):
    import bigbatch

    batches = number // num_replicas()
    model = bigbatch.accumulate(workload.make(), batches_per_update=batches)
    return _fitting(workload, model, optimizer, parts(workload, number))


def bigbatch_loop(workload, number, optimizer):
    """`GradientAccumulator`, called from Python for every micro-batch."""
    model, add, apply = _accumulating(workload, optimizer)
    add, apply, iterator = tf.function(add), tf.function(apply), iter(parts(workload, number))

    def update():
        for _ in range(number):
            add(*next(iterator))
        apply()

    return model, update


def bigbatch_graph(workload, number, optimizer):
    """`GradientAccumulator`, with the whole update in one `tf.function`."""
    model, add, apply = _accumulating(workload, optimizer)
    strategy = tf.distribute.get_strategy()

    @tf.function
    def update(iterator):
        for _ in tf.range(number // num_replicas()):
            strategy.run(add, args=next(iterator))
        strategy.run(apply)

    return model, functools.partial(update, iterator_of(parts(workload, number)))


def _accumulating(workload, optimizer):
    import bigbatch

    model = initialised(workload.make())
    accumulator = bigbatch.GradientAccumulator(model.trainable_variables)
    optimizer.build(model.trainable_variables)
    loss_fn = workload.loss()

    def add(x, y):
        with tf.GradientTape() as tape:
            value = loss_fn(y, model(x, training=True)) * num_replicas()  # by which losses of Keras divide
        accumulator.add(tape.gradient(value, model.trainable_variables), weight=workload.count(x, y))

    return model, add, lambda: accumulator.apply(optimizer)


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
    iterator = iter(parts(workload, number))

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


# The first are exact: the errors of the others are distances from their updates.
OURS = (plain_keras, limit, twin, bigbatch_fit, bigbatch_windows, bigbatch_graph, bigbatch_loop, keras_steps, tutorial)
RIVAL = (limit, rival_model, rival_optimizer)
STEADY = (limit, bigbatch_fit, bigbatch_windows)  # whose peak must not grow with the micro-batches
# The others do not claim to share.
TOGETHER = (limit, twin, limit_of_windows, plain_keras, bigbatch_fit, bigbatch_windows, bigbatch_graph)


def _step_by_step(workload, number, model, optimizer):
    return _fitting(workload, model, optimizer, parts(workload, number), calls=number)


def _fitting(workload, model, optimizer, data, *, calls=1):
    """The first update by `fit`; then what `fit` runs, without its callbacks. An update takes so many calls."""
    model.compile(optimizer, workload.loss())
    initialised(model)
    iterator = iterator_of(data)

    def update():
        if model.train_function is None:
            model.fit(data, steps_per_epoch=calls, verbose=0)  # without an end, as the iterator: one trace for both
            return
        for _ in range(calls):
            model.train_function(iterator)

    return model, update
