"""`GradientAccumulator`: the sum of a custom loop's gradients, and the one update that is made of it.

Decided here: what counts as a window, what is refused and what happens to gradients that are not finite. The sums
themselves are left to `gradient_sum`. Runs on Python 3.7 with TensorFlow 1.14 (eager) and on all later ones, so nothing
here may be newer; Keras is never imported.
"""

from __future__ import annotations

from typing import Any, Iterable

import tensorflow as tf

from bigbatch.core.errors import AccumulationError, describe
from bigbatch.training.gradient_checks import (
    EMPTY,
    NO_GRADIENT,
    OTHER_VARIABLES,
    WEIGHTLESS,
    Signature,
    all_finite,
    check_context,
    check_gradients,
    check_optimizer,
    check_variables,
    check_weight,
    require,
    require_finite,
)
from bigbatch.training.gradient_sum import kind_of, sum_for
from bigbatch.training.handing_over import build, hand_over, kinds_for, skips_by_itself, when
from bigbatch.training.replicas import all_reduce, in_a_replica, on_every_replica, seen_from_outside
from bigbatch.training.tally import DENSE, NOTHING, Counts, Tally
from bigbatch.training.tensorflow_private import as_written, compiled_by_xla

_CHOICES = ("propagate", "skip_update", "skip_micro_batch", "raise")


class GradientAccumulator(tf.Module):
    """Adds up gradients and applies their weighted mean.

    For micro-batches of sizes `n_1, ..., n_k` whose losses are means over their samples,

        accumulator.add(g_1, weight=n_1); ...; accumulator.add(g_k, weight=n_k)
        accumulator.apply(optimizer)

    is the update of the whole batch: `optimizer.apply_gradients` of `(n_1 g_1 + ... + n_k g_k) / (n_1 + ... + n_k)`.

        accumulator = bigbatch.GradientAccumulator(model.trainable_variables)
        for window in bigbatch.windows(dataset, batches_per_update=4):
            for x, y in window:
                with tf.GradientTape() as tape:
                    loss = loss_fn(y, model(x, training=True))
                accumulator.add(tape.gradient(loss, model.trainable_variables), weight=len(x))
            accumulator.apply(optimizer)

    All methods run eagerly, in a `tf.function` (also with `jit_compile=True`) and in its loops. The state is kept in
    variables: `tf.train.Checkpoint(accumulator=accumulator)` saves and restores it in the middle of a window.

    Args:
        variables: what the gradients are taken of, in their order.
        nonfinite: what becomes of infinities and NaNs. `"propagate"` hands them to the optimizer (one that scales the
            loss skips that update and lowers its scale); `"skip_update"` makes no update of such a window;
            `"skip_micro_batch"` leaves out such a micro-batch and its weight; `"raise"` raises.

    Where it stops: a traced `apply` must know which variables have gradients, so it raises for a window that brings
    gradients for other variables than were known when it was traced. XLA drops such checks, and those of weights that
    are tensors, from code that it compiles; `nonfinite="raise"` is refused there.
    """

    def __init__(self, variables: Iterable[Any], *, nonfinite: str = "propagate") -> None:
        super().__init__(name="gradient_accumulator")
        check_context()
        variables = check_variables(variables)
        if nonfinite not in _CHOICES:
            choices = ", ".join(f'"{choice}"' for choice in _CHOICES)
            remedy = 'Use "propagate" to hand what is not finite to the optimizer.'
            raise ValueError(describe(f"`nonfinite` must be one of {choices}.", f"nonfinite={nonfinite!r}", remedy))
        self._nonfinite = nonfinite
        self._strategy = tf.distribute.get_strategy()
        self._plan = _Plan(variables)
        # Also where the first call of a traced function makes it.
        with tf.init_scope():
            self._sums = [sum_for(variable) for variable in variables]
            self._tally = Tally(len(variables))

    @property
    def weight(self) -> Any:
        """The summed weight since the last reset: a number, or a tensor in a trace. A replica sees its own."""
        with seen_from_outside(self._strategy):
            weight = self._tally.read().weight()
        return float(weight) if tf.executing_eagerly() else weight

    @property
    def num_added(self) -> Any:
        """How often `add` was called since the last reset: a number, or a tensor in a trace."""
        with seen_from_outside(self._strategy):
            number = self._tally.read().num_added()
        return int(number) if tf.executing_eagerly() else number

    @as_written
    @in_a_replica
    def add(self, gradients: Iterable[Any], weight: Any = 1) -> None:
        """Adds the gradients of one micro-batch.

        Args:
            gradients: one per variable, `None` where there is none; `IndexedSlices` stay rows.
            weight: what the micro-batch's loss was divided by: the number of its samples or valid tokens, or its summed
                sample weights. The default suits micro-batches of equal size.
        """
        gradients = check_gradients(gradients, self._plan.signatures)
        weight = check_weight(weight)
        checks = [weight] if tf.is_tensor(weight) else []
        if self._nonfinite == "raise":
            checks += require_finite(gradients, self._plan.signatures)
        self._plan.note(gradients)
        with tf.control_dependencies(checks):
            if self._nonfinite == "skip_micro_batch":
                when(all_finite(gradients), lambda: self._add(gradients, weight), self._tally.skip)
            else:
                self._add(gradients, weight)

    @as_written
    @on_every_replica
    def gradients(self) -> list[Any]:
        """The weighted mean of what was added, `None` where no gradient came; a mean of rows has each row once."""
        kinds = self._recorded_kinds(self._counts()) if tf.executing_eagerly() else self._window_kinds()
        return self._means(kinds)[0] if any(kinds) else [None] * len(self._sums)

    @as_written
    @on_every_replica
    def apply(self, optimizer: Any) -> None:
        """Hands the weighted mean to the optimizer, once, and resets.

        Args:
            optimizer: any object with `apply_gradients`: of Keras 3, `tf_keras`, `tf.compat.v1.train` or your own.
        """
        variables = self._plan.variables
        check_optimizer(optimizer, variables)
        kinds = self._window_kinds()
        if not any(kinds):
            self._require_window(self._counts(), kinds)
            raise AccumulationError(NO_GRADIENT)
        build(optimizer, variables)
        gradients, weight, checks = self._means(kinds, kinds_for(optimizer, kinds))
        # What an optimizer does without looking at gradients (counting, weight decay) must wait for the checks, too.
        with tf.control_dependencies(checks):
            hand_over(optimizer, gradients, variables, self._condition(optimizer, gradients, weight))
            self._reset(kinds)

    @as_written
    @on_every_replica
    def reset(self) -> None:
        """Forgets what was added."""
        self._reset(self._recorded_kinds(self._tally.read()) if tf.executing_eagerly() else [DENSE] * len(self._sums))

    def _add(self, gradients: list[Any], weight: Any) -> None:
        def add_up() -> None:
            for gradient_sum, gradient in zip(self._sums, gradients):
                if gradient is not None:
                    gradient_sum.add(gradient, weight)

        # What weighs nothing adds nothing, not even a NaN: the mean over no valid token is 0/0.
        if not isinstance(weight, float):
            when(weight > 0, add_up)
        elif weight > 0:
            add_up()
        self._tally.add(weight, [kind_of(gradient) for gradient in gradients])

    def _counts(self) -> Counts:
        """Those of all replicas."""
        return Counts(all_reduce([self._tally.read().vector])[0])

    def _means(self, kinds: list[int], handed: list[int] | None = None) -> tuple[list[Any], Any, list[Any]]:
        """The means over all replicas, their weight, and what must hold before they are used.

        Args:
            kinds: what came for every variable.
            handed: as what its mean is wanted; `None`: the same.
        """
        read = [gradient_sum.read(kind) for gradient_sum, kind in zip(self._sums, handed or kinds)]
        vector, *present = all_reduce([self._tally.read().vector, *(total for total in read if total is not None)])
        totals = iter(present)
        counts = Counts(vector)
        checks = self._require_window(counts, kinds)
        with tf.control_dependencies(checks):
            weight = tf.identity(counts.weight())
        of_each = [next(totals) if kind else None for kind in kinds]
        means = [gradient_sum.mean(total, weight) for gradient_sum, total in zip(self._sums, of_each)]
        return means, weight, checks

    def _reset(self, kinds: list[int]) -> None:
        for gradient_sum, kind in zip(self._sums, kinds):
            gradient_sum.reset(kind)
        self._tally.reset()

    def _window_kinds(self) -> list[int]:
        """Which variables have gradients: decided now, in plain Python, also while tracing."""
        if tf.executing_eagerly():
            recorded = self._recorded_kinds(self._counts())
            if any(recorded):
                return recorded
        elif self._strategy.num_replicas_in_sync == 1:
            with tf.init_scope():
                recorded = self._recorded_kinds(self._tally.read())
        else:
            # A replica cannot ask the others while it is traced: only what `add` has met here is known.
            recorded = self._plan.kinds
        # Traced, or every micro-batch of the window was skipped.
        kinds = [max(pair) for pair in zip(recorded, self._plan.kinds)]
        return [DENSE if kind else NOTHING for kind in kinds] if compiled_by_xla() else kinds

    def _recorded_kinds(self, counts: Counts) -> list[int]:
        return counts.kinds().numpy().tolist()

    def _require_window(self, counts: Counts, kinds: list[int]) -> list[Any]:
        checks = require(counts.num_added() > 0, EMPTY)
        if self._nonfinite != "skip_micro_batch":
            checks += require(counts.weight() > 0, WEIGHTLESS)
        if not tf.executing_eagerly():
            came = counts.kinds()
            as_traced = tf.logical_and(tf.equal(came > 0, tf.constant(kinds) > 0), came <= kinds)
            nothing_left = tf.equal(counts.weight(), 0)
            checks += require(tf.logical_or(nothing_left, tf.reduce_all(as_traced)), OTHER_VARIABLES)
        return checks

    def _condition(self, optimizer: Any, gradients: list[Any], weight: Any) -> Any:
        """Whether to update, or `None` for always."""
        if self._nonfinite in ("propagate", "raise") or skips_by_itself(optimizer):
            return None
        return all_finite(gradients) if self._nonfinite == "skip_update" else weight > 0


class _Plan:
    """What is known while tracing and never saved: the variables (the model saves them) and the kinds met so far."""

    def __init__(self, variables: tuple[Any, ...]) -> None:
        self.variables = variables
        self.signatures = [Signature.of(variable) for variable in variables]
        self.kinds = [NOTHING] * len(variables)

    def note(self, gradients: list[Any]) -> None:
        self.kinds = [max(kind, kind_of(gradient)) for kind, gradient in zip(self.kinds, gradients)]
