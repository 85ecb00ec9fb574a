"""Schedules for `batches_per_update`, and the learning rate that belongs to a larger batch."""

from bigbatch.core.schedules import piecewise, ramp, scale_learning_rate

__all__ = ["piecewise", "ramp", "scale_learning_rate"]
