"""What `GradientAccumulator` refuses, and in which words.

Arguments are checked before anything changes: in Python where values are at hand, else by an assertion that runs with
the traced function. Runs on Python 3.7 with TensorFlow 1.14 and later.
"""

from __future__ import annotations

import math
import numbers
from typing import Any, Iterable, NamedTuple

import numpy as np
import tensorflow as tf

from bigbatch.core.errors import AccumulationError, describe
from bigbatch.training import replicas
from bigbatch.training.tensorflow_private import compiled_by_xla


def require(condition: Any, message: str) -> list[Any]:
    """Raises unless the scalar tensor is true; traced, returns the assertion that does so when it runs."""
    if not tf.executing_eagerly():
        return [tf.debugging.Assert(condition, [message])]
    if not condition.numpy():
        raise AccumulationError(message)
    return []


def require_finite(gradients: list[Any], signatures: list[Signature]) -> list[Any]:
    if compiled_by_xla():
        expected = 'nonfinite="raise" needs assertions, which XLA drops.'
        remedy = 'Call `add` outside of the compiled function, or use "skip_micro_batch".'
        raise AccumulationError(describe(expected, "a function with jit_compile=True", remedy))
    finite = all_finite(gradients)
    names = [f"`{signature.name}`" for signature in signatures]
    if tf.executing_eagerly() and not finite.numpy():
        names = [name for name, gradient in zip(names, gradients) if not all_finite([gradient]).numpy()]
    received = f"an infinity or NaN in the gradient of {', '.join(names)}"
    return require(finite, describe('With nonfinite="raise", gradients must be finite.', received, _FINITE_REMEDY))


def name_of(variable: Any) -> str:
    return getattr(variable, "path", None) or variable.name


def all_finite(gradients: Iterable[Any]) -> Any:
    """Whether there is neither an infinity nor a NaN: a scalar tensor."""
    present = [gradient for gradient in gradients if gradient is not None]
    return tf.reduce_all([tf.reduce_all(tf.math.is_finite(_values(gradient))) for gradient in present])


def check_context() -> None:
    with tf.init_scope():
        if not tf.executing_eagerly():
            remedy = "Call `tf.compat.v1.enable_eager_execution()` when the program starts."
            raise AccumulationError(describe("An accumulator needs eager execution.", "a TensorFlow 1 graph", remedy))
    if replicas.number() > 1 and tf.distribute.get_replica_context() is not None:
        remedy = "Make it inside of `with strategy.scope():`, before `strategy.run`."
        raise AccumulationError(describe("An accumulator must be made outside of the replicas.", "a replica", remedy))


def check_variables(variables: Any) -> tuple[Any, ...]:
    given = type(variables).__name__
    if _is_variable(variables) or not hasattr(variables, "__iter__"):
        remedy = "Give a list, for example `model.trainable_variables`."
        raise TypeError(describe("`variables` must be a list of variables.", f"variables of type {given}", remedy))
    variables = tuple(variables)
    if not variables:
        remedy = "Build the model first, for example by calling it on one batch."
        raise ValueError(describe("`variables` must hold at least one variable.", "variables=[]", remedy))
    for index, variable in enumerate(variables):
        if not _is_variable(variable):
            received = f"variables[{index}]={variable!r}"
            remedy = "Give what the gradients are taken of, for example `model.trainable_variables`."
            raise TypeError(describe("`variables` must be a list of variables.", received, remedy))
        if not tf.TensorShape(variable.shape).is_fully_defined():
            received = f"`{name_of(variable)}` of shape {variable.shape}"
            remedy = "Give every dimension when the variable is made."
            raise ValueError(describe("`variables` must have known shapes.", received, remedy))
    return variables


class Signature(NamedTuple):
    """What the gradient of a variable must look like; made once, because looking it up takes time."""

    name: str
    dtype: Any
    shape: Any

    @classmethod
    def of(cls, variable: Any) -> Signature:
        return cls(name_of(variable), tf.as_dtype(variable.dtype), tf.TensorShape(variable.shape))


def check_gradients(gradients: Any, signatures: list[Signature]) -> list[Any]:
    if tf.is_tensor(gradients) or isinstance(gradients, dict) or not hasattr(gradients, "__iter__"):
        received = f"gradients of type {type(gradients).__name__}"
        remedy = "Give the list that `tape.gradient(loss, variables)` returns."
        raise TypeError(describe("`gradients` must be a list, one per variable.", received, remedy))
    gradients = list(gradients)
    if len(gradients) != len(signatures):
        without = [f"`{signature.name}`" for signature in signatures[len(gradients) :]]
        missing = f"; {', '.join(without)} {'has' if len(without) == 1 else 'have'} none" if without else ""
        received = f"{len(gradients)} gradients for {len(signatures)} variables{missing}"
        remedy = "Take the gradients of the variables that the accumulator was made of; use None for no gradient."
        raise ValueError(describe("`gradients` must hold one gradient per variable.", received, remedy))
    for gradient, signature in zip(gradients, signatures):
        if gradient is not None:
            _check_gradient(gradient, signature)
    return gradients


def check_weight(weight: Any) -> Any:
    """The weight as a float, or as a checked scalar of type float64 where it is traced."""
    if not _is_number(weight):
        raise TypeError(describe("`weight` must be one number.", f"weight={weight!r}", _SCALAR_REMEDY))
    if tf.is_tensor(weight):
        weight = tf.cast(weight, tf.float64)
    if tf.is_tensor(weight) and not tf.executing_eagerly():
        message = describe(_WEIGHT, "a weight that is negative, infinite or NaN", _WEIGHT_REMEDY)
        with tf.control_dependencies(require(tf.logical_and(weight >= 0, weight < math.inf), message)):
            return tf.identity(weight)
    value = weight.numpy().item() if tf.is_tensor(weight) else weight
    if not 0 <= value < math.inf:
        raise ValueError(describe(_WEIGHT, f"weight={value!r}", _WEIGHT_REMEDY))
    return float(value)


def _is_number(weight: Any) -> bool:
    if tf.is_tensor(weight):
        dtype = tf.as_dtype(weight.dtype)
        return not tf.TensorShape(weight.shape).rank and (dtype.is_floating or dtype.is_integer)
    value = weight.item() if isinstance(weight, np.ndarray) and weight.ndim == 0 else weight
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def check_optimizer(optimizer: Any, variables: tuple[Any, ...]) -> None:
    if not callable(getattr(optimizer, "apply_gradients", None)):
        received = f"optimizer={optimizer!r}"
        remedy = "Use an optimizer of Keras or of `tf.compat.v1.train`, or write the method."
        raise TypeError(describe("`optimizer` must have a method `apply_gradients`.", received, remedy))
    if replicas.number() > 1:
        _check_scope(optimizer)
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    known = _indices(inner)
    unknown = [variable for variable in variables if inner._var_key(variable) not in known] if known else []
    if unknown:
        received = f"an optimizer that does not know `{name_of(unknown[0])}`"
        remedy = "Make a new optimizer for these variables, or call its `build` with all variables first."
        raise ValueError(describe("`optimizer` must be built for the accumulator's variables.", received, remedy))


def _check_scope(optimizer: Any) -> None:
    strategy = tf.distribute.get_strategy()
    if getattr(optimizer, "_distribution_strategy", strategy) is not strategy:
        replicas.refuse_outside(f"an optimizer made outside of {type(strategy).__name__}")
    owned = getattr(optimizer, "variables", [])
    replicas.require_scope(strategy, owned() if callable(owned) else owned)


def _indices(optimizer: Any) -> Any:
    # Private names, of Keras 3 and of Keras 2 since 2.11: the variables that the optimizer was built for. Optimizers
    # without them (tf.compat.v1.train, older Keras) take any variable. tests/loops/test_misuse.py watches them.
    return getattr(optimizer, "_trainable_variables_indices", None) or getattr(optimizer, "_index_dict", None)


def _check_gradient(gradient: Any, signature: Signature) -> None:
    name, dtype, shape = signature
    values = _values(gradient)
    if not (hasattr(values, "shape") and hasattr(values, "dtype")):
        received = f"{type(gradient).__name__} for `{name}`"
        remedy = "Give the gradients alone, without their variables."
        raise TypeError(describe("A gradient must be a tensor, `IndexedSlices` or None.", received, remedy))
    if values.dtype != dtype:
        received = f"{tf.as_dtype(values.dtype).name} for `{name}`"
        remedy = f"Cast it to {dtype.name}; the sum is kept in float32 or wider by itself."
        raise ValueError(describe("A gradient must have the dtype of its variable.", received, remedy))
    given, expected = values.shape, shape
    if isinstance(gradient, tf.IndexedSlices):
        given, expected = given[1:], shape[1:]
    given = tf.TensorShape(given)
    if not given.is_compatible_with(expected):
        received = f"{given} instead of {expected} for `{name}`"
        remedy = "Give the gradients in the order of the accumulator's variables."
        raise ValueError(describe("A gradient must have the shape of its variable.", received, remedy))


def _values(gradient: Any) -> Any:
    return gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient


def _is_variable(value: Any) -> bool:
    return hasattr(value, "assign") and hasattr(value, "shape") and hasattr(value, "dtype")


_WEIGHT = "`weight` must be a finite number that is not negative."
_SCALAR_REMEDY = "Sum the weights of the samples first."
_FINITE_REMEDY = 'Use "skip_micro_batch" or "skip_update" to go on without it.'
_WEIGHT_REMEDY = "Give the number of samples, of valid tokens or the sum of the sample weights."
EMPTY = describe(
    "An update needs at least one micro-batch.",
    "an empty accumulator",
    "Call `add` first, or apply only `if accumulator.num_added`.",
)
WEIGHTLESS = describe(
    "The weights of a window must not sum to zero.",
    "weight=0.0",
    "Leave out windows without a sample or a valid token by calling `reset`.",
)
NO_GRADIENT = describe(
    "An update needs a gradient for at least one variable.",
    "no gradient for any variable so far",
    "Take the gradients of the variables that the loss depends on.",
)
OTHER_VARIABLES = describe(
    "A traced `apply` must meet gradients for the same variables as when it was traced.",
    "a window with a gradient for another set of variables",
    "Call `apply` outside of the `tf.function`, or use one accumulator per set of variables.",
)
