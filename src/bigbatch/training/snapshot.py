"""What a failed attempt may have touched, and how it is put back."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import keras
import tensorflow as tf

from bigbatch.training import optimizers


class Snapshot:
    """The values of variables, each of one replica. Context: eager.

    Args:
        small: kept by reference; a variable with a second owner is copied when it is written to. That also keeps XLA
            from taking over its memory, which is freed twice when XLA then runs out of it (TensorFlow 2.21).
        large: copied to the host: the device is what may run out of memory.
    """

    def __init__(self, small: Iterable[tf.Variable], large: Iterable[tf.Variable]) -> None:
        self._small = [(variable, variable.read_value()) for variable in small]
        self._large = [(variable, variable.numpy()) for variable in large]

    def restore(self, *, with_large: bool) -> None:
        """Puts values back; large ones, which take memory on their way, only if they may have changed."""
        for variable, value in [*self._small, *(self._large if with_large else [])]:
            variable.assign(value)


def unshare(variables: Iterable[tf.Variable]) -> None:
    """Gives each variable memory of its own.

    Slots that a trace has built are one tensor of zeros until they are assigned: a first update would fit where the
    second does not. Context: eager.
    """
    for variable in variables:
        variable.assign(tf.raw_ops.DeepCopy(x=variable.read_value()))


def touched(function: Any, *arguments: Any) -> list[tf.Variable]:
    """The variables that a traced function reads or writes, whoever made them."""
    return list(function.get_concrete_function(*arguments).graph.variables)


def held_by(model: keras.Model) -> list[Any]:
    """The variables that a model, its metrics and its optimizers hold: what can be told without a trace."""
    return list({id(variable): variable for variable in [*run_through(model), *applied_to(model)]}.values())


def run_through(model: keras.Model) -> list[Any]:
    """The variables that a micro-batch may read or write."""
    return [*model.variables, *(variable for metric in model.metrics for variable in metric.variables)]


def applied_to(model: keras.Model) -> list[Any]:
    """The variables that change when an update is applied, and not before."""
    of_optimizers = [variable for optimizer in optimizers.optimizers_of(model) for variable in optimizer.variables]
    return [*model.trainable_variables, *of_optimizers]
