"""A first look at how a model trains, before anything counts.

One micro-batch runs without a trace in the model: layers, optimizers, losses and metrics that are still lazy get built
(a loop could not build them), and a `train_step` that writes to trainable variables past its optimizers is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from bigbatch.core.errors import AccumulationError, describe
from bigbatch.training import keras_private
from bigbatch.training.snapshot import run_through

# How the types of operations begin that change a variable; `ResourceGather`, say, only reads one.
_WRITES = ("Assign", "ResourceApply", "ResourceSparseApply", "ResourceScatter", "ResourceStridedSliceAssign")


def survey(model: keras.Model, run: Callable[[], Any]) -> None:
    """Calls `run` once. Context: replica; eager or traced."""
    changed = _survey_eagerly(model, run) if tf.executing_eagerly() else _survey_traced(model, run)
    if changed:
        raise AccumulationError(
            describe(
                "Trainable variables must change only through optimizers that are attributes of the model.",
                f"{', '.join(changed)}, which the training of {type(model).__name__} also assigns",
                "Keep all optimizers as attributes; a layer that assigns weights (SpectralNormalization) cannot be "
                "accumulated.",
            )
        )


def _survey_traced(model: keras.Model, run: Callable[[], Any]) -> list[str]:
    """Traces into a graph that never runs, and returns the trainable variables that it writes to."""
    with keras_private.FuncGraph("survey").as_default() as graph:
        run()
    handles = {id(variable.value.handle): variable.path for variable in model.trainable_variables}
    captured = {id(inner): handles[id(outer)] for outer, inner in graph.captures if id(outer) in handles}
    writes = [op for op in graph.get_operations() if op.type.startswith(_WRITES)]
    return sorted({captured[id(op.inputs[0])] for op in writes if id(op.inputs[0]) in captured})


def _survey_eagerly(model: keras.Model, run: Callable[[], Any]) -> list[str]:
    """Runs for real, returns the trainable variables that changed, and puts everything back."""
    before = [(variable, tf.identity(variable)) for variable in run_through(model)]
    run()
    known = {id(variable) for variable, _ in before}
    changed = [
        variable.path
        for variable, value in before
        if variable.trainable and not bool(tf.reduce_all(tf.equal(variable, value)))
    ]
    for metric in model.metrics:
        if any(id(variable) not in known for variable in metric.variables):
            metric.reset_state()
    for variable, value in before:
        variable.assign(value)
    return changed
