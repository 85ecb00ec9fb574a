"""How an optimizer of any make is handed the gradients of an update.

Runs on Python 3.7 with TensorFlow 1.14 and later. On several replicas the gradients are those of all of them already,
so an optimizer must not add them up once more; there are four makes:

- Keras 3 has a method that adds up, which is overridden on the instance;
- Keras 2 has an argument for it, under one of two names;
- `tf.compat.v1.train`, and Keras 2 before TensorFlow 2.2, always add up: each replica hands over its share;
- any other object is taken not to add up.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any, Callable

import tensorflow as tf

from bigbatch.training import replicas
from bigbatch.training.in_order import applying_in_order, parts_of_keras_3
from bigbatch.training.tally import DENSE, ROWS

_ARGUMENTS = {"skip_gradients_aggregation": True, "experimental_aggregate_gradients": False}


def kinds_for(optimizer: Any, kinds: list[int]) -> list[int]:
    """As what the optimizer is handed what came. Context: replica.

    Optimizers of Keras 3 make tables of rows, Adam two of the same ones. The sum is one already, with zeros for rows
    that did not come. Several replicas send each other rows, which are fewer.
    """
    parts = parts_of_keras_3(optimizer)
    are_its_own = [type(part).__module__.startswith("keras.") for part in parts]
    takes_tables = replicas.number() == 1 and bool(parts) and all(are_its_own)
    return [DENSE if takes_tables and kind == ROWS else kind for kind in kinds]


def hand_over(optimizer: Any, gradients: list[Any], variables: tuple[Any, ...], condition: Any = None) -> None:
    """Applies the gradients, if the condition holds. Context: replica."""
    several = replicas.number() > 1
    arguments = _arguments(optimizer) if several else {}
    if several and not arguments and hasattr(optimizer, "_distributed_apply"):
        gradients = [None if gradient is None else gradient / replicas.number() for gradient in gradients]

    def update(gradients: list[Any]) -> None:
        optimizer.apply_gradients(list(zip(gradients, variables)), **arguments)

    if several and (condition is not None or parts_of_keras_3(optimizer)):
        merged = functools.partial(_update_all, optimizer=optimizer, update=update)
        tf.distribute.get_replica_context().merge_call(merged, args=(gradients, condition))
    else:
        with applying_in_order(optimizer):
            if condition is None:
                update(gradients)
            else:
                when(condition, lambda: update(gradients))


def _update_all(strategy: Any, gradients: list[Any], condition: Any, *, optimizer: Any, update: Any) -> None:
    """Context: cross-replica.

    Optimizers wait for the other replicas, which TensorFlow allows in no condition but one outside of the replicas; and
    replicas interleave while they wait, so none of them may be the one that overrides and restores.
    """

    def update_all() -> None:
        strategy.extended.call_for_each_replica(update, args=(gradients,))

    with applying_in_order(optimizer, lambda part: {"_all_reduce_sum_gradients": lambda pairs: pairs}):
        if condition is None:
            update_all()
        else:
            when(strategy.experimental_local_results(condition)[0], update_all)


def skips_by_itself(optimizer: Any) -> bool:
    """Whether it is a loss-scale optimizer, which must see what is not finite to lower its scale."""
    scales = hasattr(optimizer, "dynamic_scale") or getattr(optimizer, "dynamic", False)
    return hasattr(optimizer, "inner_optimizer") and scales


def build(optimizer: Any, variables: tuple[Any, ...]) -> None:
    """Nothing may be created inside a conditional, nor behind an assertion."""
    is_built = getattr(optimizer, "built", False) or getattr(optimizer, "_built", False)
    if hasattr(optimizer, "build") and not is_built:
        with tf.init_scope():
            optimizer.build(list(variables))


def when(condition: Any, do: Callable[[], None], otherwise: Callable[[], None] = lambda: None) -> None:
    def branch(act: Callable[[], None]) -> Callable[[], Any]:
        def run() -> Any:
            act()
            return tf.constant(True)

        return run

    tf.cond(condition, branch(do), branch(otherwise))


def _arguments(optimizer: Any) -> dict[str, bool]:
    known = inspect.signature(optimizer.apply_gradients).parameters
    return {name: value for name, value in _ARGUMENTS.items() if name in known}
