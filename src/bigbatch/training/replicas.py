"""Several replicas: what runs where, and what is summed.

Every replica runs its own micro-batches, as if it were alone, and holds their weighted sums. These are added up over
all replicas, once per update, and every replica goes on with the same ones:

    sums = all_reduce(local sums)
    optimizer.apply(sums / weight)

So clipping, the finite check of a loss-scale optimizer and pooled batch-norm statistics see the whole batch, and a
replica weighs what it has: more, less or nothing. Runs on Python 3.7 with TensorFlow 1.14 and later.
"""

from __future__ import annotations

import functools
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Callable, Iterable, Iterator, TypeVar

import tensorflow as tf

from bigbatch.core.errors import AccumulationError, describe
from bigbatch.training import batches

if TYPE_CHECKING:
    import keras

Method = TypeVar("Method", bound=Callable[..., Any])


def number() -> int:
    """How many replicas train together. Context: any."""
    return tf.distribute.get_strategy().num_replicas_in_sync


@contextmanager
def scope_of(model: keras.Model) -> Iterator[None]:
    """The strategy that the model was made in, if it has several replicas, wherever `fit` is called."""
    strategy = model.distribute_strategy
    with strategy.scope() if strategy.num_replicas_in_sync > 1 else nullcontext():
        yield


def require_together(model: keras.Model) -> None:
    """Refuses a strategy whose workers update at their own pace: there is no batch of all of them to be equal to."""
    if isinstance(model.distribute_strategy, tf.distribute.ParameterServerStrategy):
        raise AccumulationError(
            describe(
                "An accumulated model must train on replicas that update together.",
                f"{type(model.distribute_strategy).__name__}, whose workers do not wait for each other",
                "Use `MirroredStrategy` or `MultiWorkerMirroredStrategy`.",
            )
        )


def require_scope(strategy: Any, variables: Iterable[Any]) -> None:
    """Refuses variables that replicas do not have copies of."""
    strangers = [
        each.name for each in map(_of_tensorflow, variables) if not strategy.extended.variable_created_in_scope(each)
    ]
    if strangers:
        refuse_outside(f"{', '.join(strangers[:3])}, made outside of {type(strategy).__name__}")


def refuse_outside(received: str) -> None:
    raise AccumulationError(
        describe(
            "What trains on several replicas must be made and built in the scope of their strategy.",
            received,
            "Make and build model and optimizers, and compile, inside of `with strategy.scope():`.",
        )
    )


def each(function: Callable[..., Any], *arguments: Any) -> Any:
    """Calls `function` on every replica. Context: cross-replica, or none where there is one replica."""
    if number() == 1:
        return function(*arguments)
    return tf.distribute.get_strategy().run(function, args=arguments)


def of_first(values: Any) -> Any:
    """What the first replica of this worker has. Context: cross-replica."""
    strategy = tf.distribute.get_strategy()
    return tf.nest.map_structure(lambda value: strategy.experimental_local_results(value)[0], values)


def copies(variables: Iterable[Any]) -> list[Any]:
    """What each of the replicas of this worker holds of variables of Keras or TensorFlow."""
    local = tf.distribute.get_strategy().experimental_local_results
    return [copy for variable in variables for copy in local(_of_tensorflow(variable))]


def _of_tensorflow(variable: Any) -> Any:
    """A variable of Keras 3 holds that of TensorFlow."""
    return getattr(variable, "_value", variable)


def num_samples(batch: Any) -> Any:
    """The samples of all replicas. Context: cross-replica, or none where there is one replica."""
    sizes = each(batches.num_samples, batch)
    return sizes if number() == 1 else tf.distribute.get_strategy().reduce(tf.distribute.ReduceOp.SUM, sizes, axis=None)


@contextmanager
def alone() -> Iterator[None]:
    """Lets whoever asks for the number of replicas hear 1.

    Losses of Keras, `tf.nn.compute_average_loss` and careful hands divide by it, so that gradients add up; a plain mean
    does not. A loss that hears of one replica is the mean of its micro-batch, whoever wrote it, and weighing does the
    rest. Context: replica, where nothing is reduced or created. Replicas take turns, so none of the others hears it.
    """
    extended = tf.distribute.get_strategy().extended
    original = type(extended)
    if number() == 1:
        yield
        return
    # A property, which no attribute of the instance hides.
    extended.__class__ = type(original.__name__, (original,), {"_num_replicas_in_sync": 1, "hears_one": True})
    try:
        yield
    finally:
        extended.__class__ = original


@contextmanager
def together() -> Iterator[None]:
    """Inside of `alone`, lets replicas hear of each other again, to add something up."""
    extended = tf.distribute.get_strategy().extended
    alone_class = type(extended)
    if number() > 1 or not getattr(alone_class, "hears_one", False):
        yield
        return
    extended.__class__ = alone_class.__base__
    try:
        yield
    finally:
        extended.__class__ = alone_class


def all_reduce(parts: list[Any]) -> list[Any]:
    """The sums over all replicas, on each of them: one collective for all dense parts of a dtype.

    Context: replica, outside of any loop or condition.
    """
    if number() == 1:
        return parts
    kinds = [(isinstance(part, tf.IndexedSlices), part.dtype) for part in parts]
    sums: list[Any] = [None] * len(parts)
    for kind in dict.fromkeys(kinds):
        places = [place for place, each_kind in enumerate(kinds) if each_kind == kind]
        for place, value in zip(places, _all_reduce_packed([parts[place] for place in places])):
            sums[place] = value
    return sums


def _all_reduce_packed(parts: list[Any]) -> list[Any]:
    """The strategy packs what it is given at a time; that must be of one dtype."""
    # Only what is on the same devices travels together, and what leaves a loop is on none yet.
    placed = [part if isinstance(part, tf.IndexedSlices) else tf.identity(part) for part in parts]
    sums = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, placed)
    return [with_each_row_once(part) if isinstance(part, tf.IndexedSlices) else part for part in sums]


def largest(vectors: list[Any]) -> list[Any]:
    """The maxima over all replicas, on each of them; integers. Context: as above."""
    if number() == 1:
        return vectors
    place = tf.distribute.get_replica_context().replica_id_in_sync_group
    mine = tf.one_hot(place, number(), dtype=tf.float64)[:, tf.newaxis]  # strategies add up, and nothing else
    tables = all_reduce([mine * tf.cast(vector, tf.float64) for vector in vectors])
    return [tf.cast(tf.reduce_max(table, axis=0), tf.int32) for table in tables]


def refuse_float8(variable: Any) -> None:
    """On several replicas, refuses a variable that is overwritten with its gradient, which has no sum."""
    if number() > 1:
        raise AccumulationError(
            describe(
                "A variable that is overwritten with its gradient (float8) must train on one replica.",
                f"{variable.path} on {number()} replicas",
                "Train on one device, or without float8.",
            )
        )


def dealt(model: keras.Model, batch: Any) -> Any:
    """An iterator over one batch that the strategy deals to its replicas, as it deals those of a dataset."""
    present = tuple(part for part in batch if part is not None)
    return iter(model.distribute_strategy.experimental_distribute_dataset(tf.data.Dataset.from_tensors(present)))


def in_a_replica(method: Method) -> Method:
    """Refuses to run a method of an object with a `_strategy` outside of its replicas."""

    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        strategy = self._strategy
        _require_made_in_scope(strategy)
        if strategy.num_replicas_in_sync > 1 and not _is_inside(strategy):
            name, remedy = method.__name__, "Call it in the function that you hand to `strategy.run`."
            raise AccumulationError(describe(f"`{name}` must be called in a replica.", "a call from outside", remedy))
        return method(self, *args, **kwargs)

    return call  # type: ignore[return-value]


def on_every_replica(method: Method) -> Method:
    """Lets a method of an object with a `_strategy` be called in any context: from outside, it runs on each replica."""

    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        strategy = self._strategy
        _require_made_in_scope(strategy)
        if strategy.num_replicas_in_sync == 1 or _is_inside(strategy):
            return method(self, *args, **kwargs)
        run = strategy.run if hasattr(strategy, "run") else strategy.experimental_run_v2
        return run(functools.partial(method, self), args=args, kwargs=kwargs)

    return call  # type: ignore[return-value]


def seen_from_outside(strategy: Any) -> Any:
    """A context in which a variable is the sum over all replicas, unless this is one of them."""
    return nullcontext() if strategy.num_replicas_in_sync == 1 or _is_inside(strategy) else strategy.scope()


def _is_inside(strategy: Any) -> bool:
    context = tf.distribute.get_replica_context()
    return context is not None and context.strategy is strategy


def _require_made_in_scope(strategy: Any) -> None:
    if number() > 1 and strategy.num_replicas_in_sync == 1:
        raise AccumulationError(
            describe(
                "An accumulator must be made in the scope of the strategy that it serves.",
                f"one that was made outside, in a strategy of {number()} replicas",
                "Make it inside of `with strategy.scope():`, before `strategy.run`.",
            )
        )


def with_each_row_once(rows: Any) -> Any:
    indices, positions = tf.unique(rows.indices)
    values = tf.math.unsorted_segment_sum(rows.values, positions, tf.size(indices))
    return tf.IndexedSlices(values, indices, rows.dense_shape)
