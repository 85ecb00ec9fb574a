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
from bigbatch.training import keras_private, optimizers
from bigbatch.training.snapshot import run_through

# How the types of operations begin that change a variable; `ResourceGather`, say, only reads one.
_WRITES = ("Assign", "ResourceApply", "ResourceSparseApply", "ResourceScatter", "ResourceStridedSliceAssign")


def is_built(model: keras.Model) -> bool:
    """Whether nothing is lazy that makes variables, so that a trace of the survey can be used for training, too."""
    parts = [*keras_private.flatten_layers(model), *optimizers.optimizers_of(model), *model.metrics]
    # Some metrics hide it.
    are_built = all(getattr(part, "built", True) and getattr(part, "_built", True) for part in parts)
    return are_built and keras_private.needs_no_loss_trackers(model)


def survey(model: keras.Model, run: Callable[[], list[Any]]) -> None:
    """Calls `run` once, which returns the graphs of functions that it has traced. Context: replica; eager or traced."""
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


def _survey_traced(model: keras.Model, run: Callable[[], list[Any]]) -> list[str]:
    """Traces into a graph that never runs, and returns the trainable variables that it writes to."""
    with keras_private.FuncGraph("survey").as_default() as graph:
        graphs = [graph, *run()]
    return sorted({path for each in graphs for path in _written(model, each)})


def _written(model: keras.Model, graph: Any) -> set[str]:
    handles = {id(variable.value.handle): variable.path for variable in model.trainable_variables}
    captured = {id(inner): handles[id(outer)] for outer, inner in graph.captures if id(outer) in handles}
    writes = [op for op in graph.get_operations() if op.type.startswith(_WRITES)]
    return {captured[id(op.inputs[0])] for op in writes if id(op.inputs[0]) in captured}


def _survey_eagerly(model: keras.Model, run: Callable[[], list[Any]]) -> list[str]:
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
