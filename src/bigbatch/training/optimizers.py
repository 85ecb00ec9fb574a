"""What a `train_step` hands to its optimizers, caught instead of applied."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import keras
import tensorflow as tf

from bigbatch.core.errors import AccumulationError, describe
from bigbatch.training import gradients, keras_private, replicas
from bigbatch.training.in_order import applying_in_order
from bigbatch.training.overriding import overridden


@dataclass(frozen=True)
class Application:
    """One call of `optimizer.apply`, with the gradients of one micro-batch."""

    optimizer: keras.optimizers.Optimizer
    variables: list[Any]
    gradients: list[Any]

    def of_loss_over(self, factor: Any) -> Application:
        """The same of the loss before it was multiplied by a factor."""
        pairs = zip(self.gradients, self.variables)
        return replace(self, gradients=[gradients.over(factor, gradient, variable) for gradient, variable in pairs])


@contextmanager
def caught(model: keras.Model, share: Any = None) -> Iterator[list[Application]]:
    """Catches, in order, every `apply` of every optimizer that is an attribute of the model.

    An optimizer that scales the loss of a micro-batch scales it down to its share of the update, if that is known: in
    float16, the gradients of a mean over few samples would be infinite where those of a mean over many are not. What is
    caught is the gradient of the mean all the same.
    """
    applications: list[Application] = []

    def methods(optimizer: keras.optimizers.Optimizer) -> dict[str, Any]:
        original, factor = optimizer.scale_loss, None

        def scale_loss(loss: Any) -> Any:
            nonlocal factor
            scaled = original(loss)
            if scaled is loss or share is None:
                return scaled
            factor = share
            return scaled * tf.cast(share, scaled.dtype)

        def apply(grads: Any, trainable_variables: Any = None) -> None:
            made = application(optimizer, grads, trainable_variables)
            if not optimizer.built:
                optimizer.build(made.variables)
            applications.append(made if factor is None else made.of_loss_over(factor))

        return {"scale_loss": scale_loss, "apply": apply}

    with ExitStack() as stack:
        for optimizer in optimizers_of(model):
            stack.enter_context(overridden(optimizer, **methods(optimizer)))
        yield applications


def application(optimizer: keras.optimizers.Optimizer, found: Any, variables: Any) -> Application:
    """What `optimizer.apply(found, variables)` stands for."""
    if variables is None:
        variables = keras_private.optimizer_variables(optimizer)
    return Application(optimizer, list(variables), list(found))


@contextmanager
def seen(model: keras.Model, see: Callable[[Application], Application]) -> Iterator[None]:
    """Has every optimizer of the model apply what `see` makes of what it is handed."""

    def seeing(optimizer: keras.optimizers.Optimizer) -> Any:
        original = optimizer.apply

        def apply(grads: Any, trainable_variables: Any = None) -> Any:
            given = see(application(optimizer, grads, trainable_variables))
            return original(given.gradients, given.variables)

        return apply

    with ExitStack() as stack:
        for optimizer in optimizers_of(model):
            stack.enter_context(overridden(optimizer, apply=seeing(optimizer)))
        yield


def loss_scale(optimizer: keras.optimizers.Optimizer) -> Any:
    """The factor that an optimizer has put on the loss, and so on the gradients that it is handed."""
    return tf.cast(optimizer.scale_loss(tf.constant(1.0)), tf.float64)


def optimizers_of(model: keras.Model) -> list[keras.optimizers.Optimizer]:
    """The optimizers that the model holds, also in lists and dictionaries, each once."""
    found = {id(optimizer): optimizer for optimizer in _find(list(vars(model).values()))}
    for optimizer in found.values():
        _refuse_own_accumulation(optimizer)
    return list(found.values())


def require_scope(model: keras.Model) -> None:
    """Refuses optimizers that do not belong to the strategy of the model."""
    strategy = model.distribute_strategy
    for optimizer in optimizers_of(model):
        if keras_private.strategy_of(optimizer) is not strategy:
            replicas.refuse_outside(f"the optimizer {optimizer.name}, made outside of {type(strategy).__name__}")
        replicas.require_scope(strategy, optimizer.variables)


def build(model: keras.Model) -> None:
    """Builds the optimizer for what Keras' own `train_step` hands it: what is built in a trace has it traced twice."""
    optimizer = model.optimizer
    if (
        optimizer is None
        or optimizer.built
        or model.run_eagerly
        or type(model).train_step is not keras.Model.train_step
    ):
        return
    # Not one of the user's, nor one that holds others: nobody knows what those do when they are built.
    is_plain = type(optimizer).__module__.startswith("keras.") and not hasattr(optimizer, "inner_optimizer")
    if is_plain and all(layer.built for layer in keras_private.flatten_layers(model)):
        # What an optimizer assigns while a trace builds it is lost (`ScheduleFreeAdamW`), and we equal plain Keras.
        with overridden(optimizer, assign=lambda *args, **kwargs: None):
            optimizer.build(model.trainable_variables)


def require_built(model: keras.Model) -> None:
    """Refuses optimizers that a replica would have to build."""
    for optimizer in optimizers_of(model):
        if not optimizer.built:
            replicas.refuse_outside(f"the optimizer {optimizer.name}, which is not built yet")


def _find(value: Any) -> Iterator[keras.optimizers.Optimizer]:
    if isinstance(value, keras.optimizers.Optimizer):
        yield value
    elif isinstance(value, (list, tuple, dict)):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _find(part)


def _refuse_own_accumulation(optimizer: keras.optimizers.Optimizer) -> None:
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    if inner.gradient_accumulation_steps:
        raise AccumulationError(
            describe(
                "The optimizer of an accumulated model must not accumulate by itself.",
                f"gradient_accumulation_steps={inner.gradient_accumulation_steps}",
                "Make the optimizer without `gradient_accumulation_steps`.",
            )
        )


@contextmanager
def applying(model: keras.Model) -> Iterator[None]:
    """Has every replica apply the gradients that all of them have added up already, one assignment after the other.

    Context: cross-replica. Replicas interleave while they apply, so none of them may be the one that overrides and
    restores.
    """
    with ExitStack() as stack:
        for optimizer in optimizers_of(model):
            stack.enter_context(applying_in_order(optimizer, _local_methods))
        yield


def _local_methods(optimizer: keras.optimizers.Optimizer) -> dict[str, Any]:
    if replicas.number() == 1:
        return {}

    def overwrite_with_average(variables: list[Any]) -> None:
        # Keras calls this in a condition, where it must not wait for the other replicas.
        for variable, average in zip(variables, keras_private.moving_averages(optimizer)):
            if average is not None:
                variable.assign(average)

    return {
        "_all_reduce_sum_gradients": lambda gradients_and_variables: gradients_and_variables,
        "_overwrite_model_variables_with_average_value": overwrite_with_average,
    }


@contextmanager
def learning_rate_times(model: keras.Model, factor: Any) -> Iterator[None]:
    """Multiplies the rate that is applied, and nothing that is stored; `None` leaves it alone."""
    with ExitStack() as stack:
        for optimizer in optimizers_of(model) if factor is not None else ():
            stack.enter_context(_scaled_rate(getattr(optimizer, "inner_optimizer", optimizer), factor))
        yield


def _scaled_rate(optimizer: keras.optimizers.Optimizer, factor: Any) -> AbstractContextManager[None]:
    rate = keras_private.current_learning_rate(optimizer)
    return overridden(optimizer, _get_current_learning_rate=lambda: rate * keras.ops.cast(factor, rate.dtype))


def require_applications(model: keras.Model, applications: list[Application]) -> None:
    if not applications:
        raise AccumulationError(
            describe(
                "`train_step` must apply gradients through an optimizer that is an attribute of the model.",
                f"{type(model).__name__}.train_step, which applied none",
                "Set the optimizer in `compile` or as an attribute, give the model trainable weights, "
                "or train it without bigbatch.",
            )
        )
