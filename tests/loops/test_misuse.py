"""Misuse is refused in words that help, and changes nothing."""

import big_batch
import numpy as np
import pytest
import tensorflow as tf
from modes import WHILE_TRACING

import bigbatch


def made(**settings):
    variables = big_batch.variables()
    accumulator = bigbatch.GradientAccumulator(variables, **settings)
    good = big_batch.gradients(variables, *big_batch.data(4))
    accumulator.add(good, weight=4)
    return variables, accumulator, good


def everything(variables, accumulator):
    return big_batch.snapshot(variables) + big_batch.snapshot(accumulator.variables)


def replaced(gradients, index, gradient):
    return [gradient if position == index else old for position, old in enumerate(gradients)]


ADDING = {
    "too_few": (
        lambda good: good[:3],
        1,
        ValueError,
        "Received: 3 gradients for 5 variables; `scale:?0?`, `unused:?0?` h",
    ),
    "one_too_few": (lambda good: good[:4], 1, ValueError, "4 gradients for 5 variables; `unused:?0?` has none"),
    "too_many": (lambda good: [*good, None], 1, ValueError, "Received: 6 gradients for 5 variables. Take"),
    "shape": (
        lambda good: replaced(good, 2, tf.ones(3, tf.float64)),
        1,
        ValueError,
        r"shape of its variable. Received: \(3,\) instead of \(4,\) for `bias",
    ),
    "shape_that_broadcasts": (
        lambda good: replaced(good, 2, tf.ones(1, tf.float64)),
        1,
        ValueError,
        "shape of its var",
    ),
    "shape_of_rows": (
        lambda good: replaced(good, 0, tf.IndexedSlices(tf.ones((2, 4), tf.float64), [0, 1])),
        1,
        ValueError,
        r"Received: \(4,\) instead of \(3,\) for `table",
    ),
    "dtype": (
        lambda good: replaced(good, 2, tf.ones(4, tf.float32)),
        1,
        ValueError,
        "dtype of its variable. Received: float32 for `bias:?0?`. Cast it to float64",
    ),
    "dtype_of_rows": (
        lambda good: replaced(good, 0, tf.IndexedSlices(tf.ones((1, 3)), [0])),
        1,
        ValueError,
        "float32 for",
    ),
    "pairs": (lambda good: [(gradient, None) for gradient in good], 1, TypeError, "without their variables"),
    "one_tensor": (lambda good: good[1], 1, TypeError, "`gradients` must be a list"),
    "dictionary": (lambda good: dict(enumerate(good)), 1, TypeError, "Received: gradients of type dict"),
    "nothing": (lambda good: None, 1, TypeError, "Received: gradients of type NoneType"),
    "negative_weight": (lambda good: good, -1, ValueError, "that is not negative. Received: weight=-1"),
    "nan_weight": (lambda good: good, float("nan"), ValueError, "Received: weight=nan"),
    "infinite_weight": (lambda good: good, float("inf"), ValueError, "Received: weight=inf"),
    "negative_tensor": (lambda good: good, tf.constant(-2.0), ValueError, "Received: weight="),
    "vector_weight": (lambda good: good, np.ones(4), TypeError, "Sum the weights of the samples first"),
    "boolean_weight": (lambda good: good, True, TypeError, "Received: weight=True"),
    "text_weight": (lambda good: good, "4", TypeError, "Received: weight='4'"),
    "no_weight": (lambda good: good, None, TypeError, "Received: weight=None"),
}


@pytest.mark.parametrize("case", ADDING)
def test_add(case):
    bad, weight, error, message = ADDING[case]
    variables, accumulator, good = made()
    before = everything(variables, accumulator)
    with pytest.raises(error, match=message):
        accumulator.add(bad(good), weight=weight)
    for a, b in zip(everything(variables, accumulator), before):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("weight", [-1.0, float("nan"), float("inf")])
def test_a_traced_weight(weight):
    variables, accumulator, good = made()
    before = everything(variables, accumulator)
    add = tf.function(lambda weight: accumulator.add(good, weight=weight))
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"finite number that is not negative"):
        add(tf.constant(weight))
    for a, b in zip(everything(variables, accumulator), before):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("traced", [False, True], ids=["eager", "traced"])
@pytest.mark.parametrize("optimizer", ["adam", "v1_adam"])
def test_apply_on_nothing(optimizer, traced):
    variables, accumulator, _ = made()
    mine = big_batch.OPTIMIZERS[optimizer]()
    apply = lambda: accumulator.apply(mine)  # noqa: E731
    apply = tf.function(apply) if traced else apply
    apply()
    before = everything(variables, accumulator)
    errors = (bigbatch.AccumulationError, tf.errors.InvalidArgumentError)
    with pytest.raises(errors, match=r"Received: an empty accumulator. Call `add` first"):
        apply()
    for a, b in zip(everything(variables, accumulator), before):
        np.testing.assert_array_equal(a, b)


def test_apply_before_anything_was_added_is_refused_while_tracing():
    accumulator = bigbatch.GradientAccumulator(big_batch.variables())
    optimizer = big_batch.OPTIMIZERS["sgd"]()
    with pytest.raises(WHILE_TRACING, match=r"needs a gradient for at least one variable"):
        tf.function(lambda: accumulator.apply(optimizer))()


@pytest.mark.parametrize("traced", [False, True], ids=["eager", "traced"])
def test_weights_that_sum_to_zero(traced):
    variables = big_batch.variables()
    accumulator = bigbatch.GradientAccumulator(variables)
    accumulator.add(big_batch.gradients(variables, *big_batch.data(4)), weight=0)
    before = everything(variables, accumulator)
    optimizer = big_batch.OPTIMIZERS["sgd"]()
    apply = lambda: accumulator.apply(optimizer)  # noqa: E731
    errors = (bigbatch.AccumulationError, tf.errors.InvalidArgumentError)
    with pytest.raises(errors, match=r"must not sum to zero. Received: weight=0.0"):
        (tf.function(apply) if traced else apply)()
    for a, b in zip(everything(variables, accumulator), before):
        np.testing.assert_array_equal(a, b)


def test_an_optimizer_that_is_none():
    _, accumulator, _ = made()
    with pytest.raises(TypeError, match=r"must have a method `apply_gradients`. Received: optimizer='adam'"):
        accumulator.apply("adam")


# Optimizers of Keras take other variables up to 2.10, and so do those of tf.compat.v1.train.
BUILT = ["adam", "tf_keras_adam"] if big_batch.VERSION >= (2, 11) else []
BUILT = [name for name in BUILT if name in big_batch.OPTIMIZERS]
if BUILT:

    @pytest.mark.parametrize("optimizer", BUILT)
    def test_an_optimizer_built_for_other_variables(optimizer):
        variables, accumulator, _ = made()
        mine = big_batch.OPTIMIZERS[optimizer]()
        # It knows the first four, and would have moved them before it stumbles over the last one.
        mine.build(variables[:4])
        before = everything(variables, accumulator)
        with pytest.raises(ValueError, match=r"Received: an optimizer that does not know `unused"):
            accumulator.apply(mine)
        for a, b in zip(everything(variables, accumulator), before):
            np.testing.assert_array_equal(a, b)


MAKING = {
    "no_variables": ([], {}, ValueError, r"at least one variable. Received: variables=\[\]. Build the model first"),
    "one_variable": (tf.Variable([1.0]), {}, TypeError, "`variables` must be a list of variables"),
    "a_number": (3, {}, TypeError, "Received: variables of type int"),
    "a_constant": ([tf.constant(1.0)], {}, TypeError, r"Received: variables\[0\]="),
    "nonfinite": ([tf.Variable([1.0])], {"nonfinite": "ignore"}, ValueError, "Received: nonfinite='ignore'"),
}


@pytest.mark.parametrize("case", MAKING)
def test_making(case):
    variables, settings, error, message = MAKING[case]
    with pytest.raises(error, match=message):
        bigbatch.GradientAccumulator(variables, **settings)


def test_graph_mode_is_refused():
    with tf.Graph().as_default():
        variable = tf.compat.v1.get_variable("variable", initializer=[1.0], use_resource=True)
        with pytest.raises(bigbatch.AccumulationError, match=r"enable_eager_execution"):
            bigbatch.GradientAccumulator([variable])
