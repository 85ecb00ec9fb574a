"""The assignments of an optimizer to one variable and its slots, one after the other.

TensorFlow orders only what touches the same variable. So Adam would compute the changes of both moments of a variable
at once, each as large as the gradient beside it: three tables for an embedding, where two suffice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from bigbatch.training.tensorflow_private import wait_for


def in_order(update_step: Callable[..., Any]) -> Callable[..., Any]:
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
