"""Which denominator a Keras loss divides by, and what follows for its micro-batches.

The loss of a batch is a sum of terms. A term that is a mean over the batch is the mean of the micro-batches' means,
each weighted by its own denominator:

    term(batch) = sum(denominator(micro) * term(micro)) / sum(denominator(micro))

The denominator is the number of samples, unless a mask, sample weights or the reduction say otherwise. Three cases:

- every term is divided by samples: a micro-batch weighs its samples;
- every term is divided by one other count (valid tokens, summed weights): a micro-batch weighs that count;
- the terms differ: a micro-batch weighs its samples, and each term is corrected by a factor, for which the totals of
  the batch must be known before its first micro-batch.

Losses that no compiled loss computes (regularizers, `add_loss`, a custom `train_step`) are taken to be means over
samples.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from bigbatch.core.errors import AccumulationError, describe
from bigbatch.core.weighted import NEXT_TO_NOTHING
from bigbatch.training import keras_private
from bigbatch.training.overriding import overridden


class Denominator(NamedTuple):
    """What a term was divided by: `count + epsilon`; terms of one kind share their count."""

    kind: Any
    count: Any = None
    epsilon: float = 0.0


SAMPLES, SUM = Denominator("samples"), Denominator("sum")


@dataclass
class Terms:
    """The compiled loss terms of one micro-batch, as they are computed.

    Args:
        share: the micro-batch's samples over the update's, or `None` while the update's are unknown.
        totals: the update's denominators in the order of the counted terms, or empty while they are unknown.
        is_whole: whether the micro-batch is all there is of the update.
    """

    share: Any
    totals: Sequence[Any] = ()
    is_whole: bool = False
    counts: list[Any] = field(default_factory=list)
    kinds: list[Any] = field(default_factory=list)
    has_epsilon: bool = False

    def corrected(self, value: Any, denominator: Denominator) -> Any:
        """Notes a term's denominator and returns the term, for micro-batches that weigh their samples."""
        kind, count, epsilon = denominator
        self.kinds.append(kind)
        self.has_epsilon |= epsilon > 0
        if kind == "samples":
            return value
        if kind == "sum":
            return value if self.share is None else value / tf.cast(self.share, value.dtype)
        self.counts.append(tf.cast(count, tf.float64))
        if not self.totals:
            return value
        total = self.totals[len(self.counts) - 1]
        part = tf.math.divide_no_nan(self.counts[-1] + epsilon, total + epsilon)
        return value * tf.cast(part / self.share, value.dtype)

    def need_totals(self, *, means: bool, constants: bool) -> bool:
        """Whether the terms differ in their denominators and the update's are needed to correct them.

        Args:
            means: are there terms beside the compiled loss that are means over samples?
            constants: are there terms that do not depend on the samples (weight regularizers)?
        """
        mixed = means or len(set(self.kinds)) > 1
        if "sum" in self.kinds and self.share is None:
            return mixed or constants
        return bool(self.counts) and (mixed or self.has_epsilon)

    @property
    def adds(self) -> bool:
        """Whether the loss of the update is the plain sum of those of its micro-batches."""
        return self.share is None and set(self.kinds) == {"sum"}

    def weight(self) -> Any:
        """The count that all terms share, or `None` where the micro-batch weighs its samples."""
        if self.adds:
            return 1.0
        if self.totals or not self.counts:
            return None
        return tf.where(self.counts[0] == 0, tf.constant(NEXT_TO_NOTHING, tf.float64), self.counts[0])


@contextmanager
def weighed(model: keras.Model, terms: Terms) -> Iterator[None]:
    """Passes every term of the compiled loss through `terms`, for one run of `train_step`."""
    compiled = keras_private.compile_loss(model)
    if compiled is None:
        yield
        return

    def wrap() -> None:
        compiled._flat_losses = [entry._replace(loss=_Term(entry.loss, terms)) for entry in compiled._flat_losses]

    def build(y_true: Any, y_pred: Any) -> None:
        type(compiled).build(compiled, y_true, y_pred)
        wrap()

    with overridden(compiled, build=build):
        if compiled.built:
            wrap()
        try:
            yield
        finally:
            if compiled.built:
                compiled._flat_losses = [entry._replace(loss=entry.loss.loss) for entry in compiled._flat_losses]


@dataclass
class _Term:
    """A compiled loss that tells `terms` what it divided by."""

    loss: keras.losses.Loss
    terms: Terms

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        if not self.terms.is_whole:
            _warn_if_coupled(self.loss)
        seen: list[Any] = []
        loss_values = self.loss.call

        def call(y_true: Any, y_pred: Any) -> Any:
            seen.append(loss_values(y_true, y_pred))
            return seen[-1]

        with overridden(self.loss, call=call):
            value = self.loss(y_true, y_pred, sample_weight)
        if not seen:  # a loss with a `__call__` of its own: nobody knows, so the documented assumption holds
            return self.terms.corrected(value, SAMPLES)
        values = seen[0]
        denominator = _denominator(self.loss, keras_private.get_keras_mask(y_pred), values, sample_weight)
        if values.shape.rank == 0 and denominator is not SUM:
            # A loss function that returns one number has divided by itself. In Keras a mask then cancels, but for a
            # batch without one valid position, whose loss it makes zero; a micro-batch of that kind must not be lost.
            denominator = SAMPLES
            value = tf.cast(values, value.dtype) if sample_weight is None else value
        if denominator is SAMPLES and self.terms.share is None and None in values.shape[1:]:
            # The batches of a window may differ in length: a mean over positions divides by all of them.
            denominator = Denominator(("elements", id(self)), tf.size(values))
        return self.terms.corrected(value, denominator)


def _warn_if_coupled(loss: keras.losses.Loss) -> None:
    coupled = isinstance(loss, keras.losses.Circle)
    if isinstance(loss, (keras.losses.Dice, keras.losses.Tversky)):
        coupled = loss.axis is None
    if coupled:
        warnings.warn(
            "This loss couples the samples of a batch, so each micro-batch sees only its own part of it. "
            f"Received: {type(loss).__name__}. Use `accumulate(..., whole_batch_loss=True)` "
            "to be exact, or give Dice and Tversky an `axis` without 0.",
            UserWarning,
            stacklevel=2,
        )


def _denominator(loss: keras.losses.Loss, mask: Any, values: Any, sample_weight: Any) -> Denominator:
    """By the rules of `keras.losses.Loss`: reduction, mask of the prediction, mask of the loss values, weights."""
    if loss.reduction in (None, "none"):
        raise AccumulationError(
            describe(
                "A compiled loss must reduce its values to one number.",
                f"{loss.name} with reduction={loss.reduction!r}",
                'Use reduction="sum", which has the same gradient, or "sum_over_batch_size".',
            )
        )
    if loss.reduction == "sum":
        return SUM
    present = [each for each in (mask, keras_private.get_keras_mask(values)) if each is not None]
    by_weights = loss.reduction == "mean_with_sample_weight"
    weights = sample_weight if by_weights else None
    if not present and weights is None:
        return SAMPLES
    kind = (id(weights), *map(id, present))
    mask = functools.reduce(tf.logical_and, present) if present else None
    if weights is None:
        return Denominator(kind, tf.math.count_nonzero(mask), 0.0 if by_weights else keras_private.mask_epsilon())
    merged = keras_private.apply_mask(tf.convert_to_tensor(weights), mask, dtype=loss.dtype, reduction=loss.reduction)
    return Denominator(kind, tf.reduce_sum(merged))
