"""The assignments of an optimizer to one variable and its slots, one after the other.

TensorFlow orders only what touches the same variable. So Adam would compute the changes of both moments of a variable
at once, each as large as the gradient beside it: three tables for an embedding, where two suffice.

Imports on Python 3.7 with TensorFlow 1.14, for `handing_over`.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import Any, Callable, Iterator

import tensorflow as tf

from bigbatch.training.overriding import overridden
from bigbatch.training.tensorflow_private import wait_for


def parts_of_keras_3(optimizer: Any) -> list[Any]:
    """The optimizers of Keras 3 that update variables: this one, or those inside of it; none of any other make."""
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    return [part for part in getattr(inner, "optimizers", [inner]) if hasattr(part, "_all_reduce_sum_gradients")]


@contextmanager
def applying_in_order(optimizer: Any, methods: Callable[[Any], dict[str, Any]] = lambda part: {}) -> Iterator[None]:
    """Has the parts of an optimizer make one assignment after the other; `methods` of each are overridden beside."""
    with ExitStack() as stack:
        for part in parts_of_keras_3(optimizer):
            stack.enter_context(overridden(part, update_step=_in_order(part.update_step), **methods(part)))
        yield


def _in_order(update_step: Callable[..., Any]) -> Callable[..., Any]:
    """An `update_step` that finishes an assignment before it computes the next. Other variables do not wait for it."""

    def ordered(*arguments: Any, **settings: Any) -> Any:
        if tf.executing_eagerly():
            return update_step(*arguments, **settings)
        graph = tf.compat.v1.get_default_graph()
        number = len(graph.get_operations())
        result = update_step(*arguments, **settings)
        last = None
        for operation in graph.get_operations()[number:]:
            if last is not None and operation.inputs:  # a constant has none
                wait_for(operation, last)
            if operation.type.startswith("Assign"):
                last = operation
        return result

    return ordered
