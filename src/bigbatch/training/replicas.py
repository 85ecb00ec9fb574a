"""Several replicas: what runs where, and what is summed.

Every replica runs its own micro-batches, as if it were alone, and holds their weighted sums. These are added up over
all replicas, once per update, and every replica goes on with the same ones:

    sums = all_reduce(local sums)
    optimizer.apply(sums / weight)

So clipping, the finite check of a loss-scale optimizer and pooled batch-norm statistics see the whole batch, and a
replica weighs what it has: more, less or nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import keras
import tensorflow as tf

from bigbatch.core.errors import AccumulationError, describe
from bigbatch.training import batches


def number() -> int:
    """How many replicas train together. Context: any."""
    return tf.distribute.get_strategy().num_replicas_in_sync


@contextmanager
def scope_of(model: keras.Model) -> Iterator[None]:
    """The strategy that the model was made in, if it has several replicas, wherever `fit` is called."""
    strategy = model.distribute_strategy
    with strategy.scope() if strategy.num_replicas_in_sync > 1 else nullcontext():
        yield


def require_scope(model: keras.Model) -> None:
    """Refuses variables that replicas do not have copies of."""
    extended = model.distribute_strategy.extended
    strangers = [v.path for v in model.variables if not extended.variable_created_in_scope(v.value)]
    if strangers:
        raise AccumulationError(
            describe(
                "A model that trains on several replicas must be built in the scope of their strategy.",
                f"{', '.join(strangers)}, made outside of {type(model.distribute_strategy).__name__}",
                "Make and build the model, and compile it, inside of `with strategy.scope():`.",
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
    extended.__class__ = type(original.__name__, (original,), {"_num_replicas_in_sync": 1})
    try:
        yield
    finally:
        extended.__class__ = original


def all_reduce(parts: list[Any]) -> list[Any]:
    """The sums over all replicas, on each of them: the strategy packs all parts of a dtype into one collective.

    Context: replica, outside of any loop or condition.
    """
    # Only what is on the same devices travels together, and what leaves a loop is on none yet.
    placed = [tf.identity(part) for part in parts]
    return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, placed)
