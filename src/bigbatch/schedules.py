"""Schedules for `batches_per_update`, and the learning rate for a larger batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bigbatch.core.schedules import piecewise, ramp, scale_learning_rate

if TYPE_CHECKING:
    from bigbatch.training.adaptive import Adaptive

__all__ = ["noise_scale", "piecewise", "ramp", "scale_learning_rate"]


def noise_scale(minimum: int, maximum: int) -> Adaptive:
    """Begins with `minimum` batches per update and doubles their number, up to `maximum`, when larger updates pay.

        bigbatch.accumulate(model, batches_per_update=bigbatch.schedules.noise_scale(minimum=1, maximum=64))

    They pay while an update has fewer samples than the gradient noise scale, which is measured during training. The
    window doubles when the lower end of the scale's confidence interval (95 %) lies beyond the doubled window, in
    samples; it never shrinks. Every decision is logged with its reason and kept in `decisions`. A schedule belongs to
    one model; what it has learnt is saved with the model's weights, and by a `tf.train.Checkpoint` that holds it.
    """
    from bigbatch.training.adaptive import Adaptive

    return Adaptive(minimum, maximum)
