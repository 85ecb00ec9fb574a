"""One micro-batch: the model's own `train_step`, run unchanged, with everything that it would change held back."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from bigbatch.core.errors import AccumulationError, describe
from bigbatch.core.weighted import Moments
from bigbatch.training import batch_norm, gradients, keras_private, losses, metrics, optimizers, replicas


class Contribution(NamedTuple):
    """What a micro-batch brings to the update: tensors only, so that it can leave a `tf.function`."""

    weight: Any  # the count that its loss divided by; None: its samples
    counts: list[Any]  # the denominators of its counted loss terms
    gradients: list[list[Any]]  # per application, per variable that may have one
    having: list[list[Any]]  # eagerly, the same: 1.0 for a variable that has one here, else 0.0
    numbers: list[Any]  # for each tracked `Mean`
    sample_weights: list[Any]  # for each tracked `Mean` that is weighted by a tensor
    moments: list[Moments]  # for each call of a batch-norm layer
    logs: list[Any]  # logged tensors that no metric holds

    def weight_of(self, samples: Any) -> Any:
        """What it weighs in the update, given what its samples would."""
        return samples if self.weight is None else self.weight


@dataclass(frozen=True)
class Outline:
    """What a micro-batch's contribution belongs to: the objects behind the tensors."""

    applications: list[tuple[keras.optimizers.Optimizer, list[Any], list[bool]]]
    tracked: list[tuple[keras.metrics.Mean, Any]]
    norms: list[batch_norm.Call]
    logs: Any
    needs_totals: bool
    adds: bool
    counts: bool  # whether a micro-batch weighs another count than its samples

    def with_gradient(self) -> list[list[Any]]:
        """For each application, the variables that have one."""
        return [
            [variable for variable, has_gradient in zip(variables, present) if has_gradient]
            for _, variables, present in self.applications
        ]


@dataclass(frozen=True)
class FromMetric:
    """A log that is the result of a metric."""

    metric: keras.metrics.Metric
    key: str | None


@dataclass(frozen=True)
class FromTensor:
    """A log that is the `index`-th logged tensor."""

    index: int


class Weighted:
    """Marks a tracked mean that is weighted by a tensor."""


def run(
    model: keras.Model, data: Any, *, share: Any, totals: tuple[Any, ...], pool: bool
) -> tuple[Outline, Contribution]:
    """Runs `model.train_step(data)`. Context: replica; eager or traced."""
    terms = losses.Terms(share, totals)
    with ExitStack() as stack:
        applications = stack.enter_context(optimizers.caught(model, share))
        held, results = stack.enter_context(metrics.tracked(model))
        observations = stack.enter_context(batch_norm.observed(model)) if pool else []
        stack.enter_context(losses.weighed(model, terms))
        stack.enter_context(replicas.alone())
        logs = python_function(model.train_step)(data)
    optimizers.require_applications(model, applications)

    loose: list[Any] = []
    weight = terms.weight()
    outline = Outline(
        applications=[(a.optimizer, a.variables, gradients.are_summed(a.gradients)) for a in applications],
        tracked=[(t.metric, Weighted if tf.is_tensor(t.sample_weight) else t.sample_weight) for t in held],
        norms=[observation.call for observation in observations],
        logs=keras.tree.map_structure(lambda log: _origin(log, results, loose), logs),
        needs_totals=terms.need_totals(
            means=keras_private.has_losses_of_samples(model) or _may_have_own_terms(model),
            constants=any(getattr(variable, "regularizer", None) for variable in model.trainable_variables),
        ),
        adds=terms.adds,
        counts=weight is not None and not terms.adds,
    )
    return outline, Contribution(
        weight=weight,
        counts=terms.counts,
        gradients=[gradients.summed(a.gradients, a.variables) for a in applications],
        having=[_having(a) for a in applications] if tf.executing_eagerly() else [],
        numbers=[t.value for t in held],
        sample_weights=[t.sample_weight for t in held if tf.is_tensor(t.sample_weight)],
        moments=[observation.moments for observation in observations],
        logs=loose,
    )


def _having(application: optimizers.Application) -> list[Any]:
    return [tf.constant(float(gradient is not None), tf.float64) for gradient in application.gradients]


def require_same_gradients(one: Outline, other: Outline) -> None:
    """Refuses traces of one update whose sums would not be of the same variables."""
    for (_, variables, present), (_, others, others_present) in zip(one.applications, other.applications):
        if [id(each) for each in variables] != [id(each) for each in others]:  # some have been frozen since
            continue
        lost = [each.path for each, *has in zip(variables, present, others_present) if has[0] != has[1]]
        if lost:
            raise AccumulationError(
                describe(
                    "Every micro-batch must have gradients for the same variables where it is traced.",
                    f"no gradient for {', '.join(lost[:3])} in some sizes of micro-batches",
                    "Compile the model with `run_eagerly=True`, or let it branch on tensors, not on shapes.",
                )
            )


def python_function(train_step: Any) -> Any:
    """What a `tf.function` was made of: it would run once, be cached, and then not be there to be caught."""
    return getattr(train_step, "python_function", train_step)


def _may_have_own_terms(model: keras.Model) -> bool:
    """Whether the loss may have parts that no compiled loss computes; they are taken for means over samples."""
    of_keras = (keras.Model.train_step, keras.Model.compute_loss)
    return any(getattr(method, "__func__", method) not in of_keras for method in (model.train_step, model.compute_loss))


def _origin(log: Any, results: metrics.Results, loose: list[Any]) -> Any:
    if id(log) in results.origins:
        return FromMetric(*results.origins[id(log)])
    if not tf.is_tensor(log):
        return log
    if log.shape.rank != 0:
        raise AccumulationError(
            describe(
                "`train_step` must log scalars, which can be averaged over micro-batches.",
                f"a log of shape {log.shape}",
                "Reduce it to one number.",
            )
        )
    loose.append(log)
    return FromTensor(len(loose) - 1)
