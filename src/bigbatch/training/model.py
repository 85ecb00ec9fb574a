"""`accumulate` and `release`: what is overridden on a model, and how it is undone."""

from __future__ import annotations

from typing import Any, TypeVar

import keras

from bigbatch.core.errors import AccumulationError, describe, require_size
from bigbatch.training import batch_norm as batch_norms
from bigbatch.training import keras_private
from bigbatch.training.overriding import override, restore
from bigbatch.training.update import Update

Model = TypeVar("Model", bound=keras.Model)

_OVERRIDES = ("make_train_function", "_assert_compile_called")


def accumulate(model: Model, *, micro_batch_size: int | None = None, batch_norm: str | None = None) -> Model:
    """Trains every batch in micro-batches; the update equals that of the whole batch, to rounding.

    `model.fit` then does the same as this loop, and everything that counts (iterations, schedules, EMA, callbacks,
    logs) counts updates:

        for batch in dataset:
            total = 0
            for micro_batch in split(batch, micro_batch_size):
                total += weight(micro_batch) * gradient(micro_batch)
            optimizer.apply(total / weight(batch))

    Example:

        model.compile(optimizer="adamw", loss="mse")
        bigbatch.accumulate(model, micro_batch_size=16)
        model.fit(x, y, batch_size=256)

    The weight is what the loss divides by: samples, valid tokens under a mask, or summed sample weights. Call it before
    or after `compile`, and again to change the values. It overrides two methods on this one instance; saved models,
    clones and copies are plain Keras.

    Args:
        model: a Keras model; it is changed in place.
        micro_batch_size: samples in memory at a time; `None` trains on whole batches.
        batch_norm: `"pooled"` (also for `None`) moves the statistics of BatchNormalization once per update, by the
            moments of the whole batch; `"per_micro_batch"` leaves them to Keras. Passing either silences the warning
            that each micro-batch is normalised by its own moments.

    Returns:
        The model.

    Raises:
        ValueError, TypeError: for arguments out of range; nothing has changed then.
        AccumulationError: in `fit`, for a model whose update cannot be had from micro-batches.

    The promise stops at layers and losses that couple the samples of a batch: batch normalisation, contrastive losses.
    """
    _require_model(model)
    require_size("micro_batch_size", micro_batch_size, off="train on whole batches")
    _require_batch_norm(batch_norm)
    if micro_batch_size is not None and batch_norm is None:
        batch_norms.warn_of(model)
    pool = batch_norm != "per_micro_batch"

    def make_train_function(force: bool = False) -> Any:
        if micro_batch_size is None:
            return type(model).make_train_function(model, force)
        if model.train_function is None or force:
            _require_one_replica(model)
            model.train_function = keras_private.make_function(model, Update(model, micro_batch_size, pool))
        return model.train_function

    def assert_compile_called(method_name: str | None = None) -> None:
        if not model.compiled:
            raise ValueError(
                describe(
                    "The model must be compiled before it trains.", "compiled=False", "Call `model.compile` first."
                )
            )
        type(model)._assert_compile_called(model, method_name)

    override(model, make_train_function=make_train_function, _assert_compile_called=assert_compile_called)
    _renew_train_function(model)
    return model


def release(model: Model) -> Model:
    """Makes an accumulated model plain Keras again, and returns it.

    Raises:
        ValueError: if the model is not accumulated.
    """
    if not all(name in vars(model) for name in _OVERRIDES):
        raise ValueError(
            describe(
                "`model` must be accumulated to be released.",
                f"model={getattr(model, 'name', model)!r}, which is plain Keras",
                "Call `bigbatch.accumulate` first; releasing once is enough.",
            )
        )
    restore(model, *_OVERRIDES)
    _renew_train_function(model)
    return model


def _renew_train_function(model: keras.Model) -> None:
    # Keras makes it once per `fit`: a callback that changes the settings must leave one behind.
    if model.train_function is not None:
        model.make_train_function(force=True)


def _require_model(model: Any) -> None:
    if not isinstance(model, keras.Model):
        raise TypeError(
            describe("`model` must be a Keras 3 `keras.Model`.", f"model={model!r}", "Pass the model that you `fit`.")
        )
    if keras.config.backend() != "tensorflow":
        raise ValueError(
            describe(
                'Keras must run on the "tensorflow" backend, the only one that bigbatch supports.',
                f"backend={keras.config.backend()!r}",
                "Set KERAS_BACKEND=tensorflow before Keras is imported.",
            )
        )


def _require_one_replica(model: keras.Model) -> None:
    num_replicas = model.distribute_strategy.num_replicas_in_sync
    if num_replicas > 1:
        raise AccumulationError(
            describe(
                "An accumulated model must train on one replica.",
                f"{type(model.distribute_strategy).__name__} with {num_replicas} replicas",
                "Several replicas are not supported yet; release the model or build it outside of the strategy.",
            )
        )


def _require_batch_norm(batch_norm: Any) -> None:
    if batch_norm not in (None, "pooled", "per_micro_batch"):
        raise ValueError(
            describe(
                '`batch_norm` must be "pooled" or "per_micro_batch".',
                f"batch_norm={batch_norm!r}",
                'Leave it out for "pooled".',
            )
        )
