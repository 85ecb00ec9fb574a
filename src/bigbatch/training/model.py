"""`accumulate` and `release`: the arguments, and what is put on a model."""

from __future__ import annotations

from typing import Any, TypeVar

import keras

from bigbatch.core.errors import AccumulationError, describe, require_size
from bigbatch.core.windows import BatchesPerUpdate, Windows
from bigbatch.training import batch_norm as batch_norms
from bigbatch.training import replicas
from bigbatch.training.accumulation import Accumulation, MicroBatchSize, renew_train_function
from bigbatch.training.adaptive import Adaptive
from bigbatch.training.overriding import override, restore
from bigbatch.training.watching import require_noise

Model = TypeVar("Model", bound=keras.Model)

_OVERRIDES = (
    "make_train_function",
    "make_test_function",
    "_assert_compile_called",
    "_maybe_symbolic_build",
    "save_weights",
    "load_weights",
    "fit",
    "_accumulation",
)


def accumulate(
    model: Model,
    *,
    micro_batch_size: MicroBatchSize = None,
    batches_per_update: BatchesPerUpdate = 1,
    samples_per_update: int | None = None,
    learning_rate_rule: str | None = None,
    batch_norm: str | None = None,
    whole_batch_loss: bool = False,
) -> Model:
    """Trains in micro-batches; the update equals that of the whole batch or window, to rounding.

    `model.fit` then does the same as this loop, and everything that counts (iterations, schedules, EMA, callbacks,
    logs) counts updates:

        for window in windows(dataset, batches_per_update):
            total = 0
            for batch in window:
                for micro_batch in split(batch, micro_batch_size):
                    total += weight(micro_batch) * gradient(micro_batch)
            optimizer.apply(total / weight(window))

    Example:

        model.compile(optimizer="adamw", loss="mse")
        bigbatch.accumulate(model, micro_batch_size=16)
        model.fit(x, y, batch_size=256)

    The weight is what the loss divides by: samples, valid tokens under a mask, or summed sample weights. Call this
    function before or after `compile`, and again to change the values, also from a callback. It overrides methods on
    this one instance; saved models, clones and copies are plain Keras.

    Args:
        model: a Keras model; it is changed in place.
        micro_batch_size: samples in memory at a time, on each replica; `"auto"` begins with whole batches and halves
            what does not fit; `None` does not split batches.
        batches_per_update: how many batches an update joins, or a callable that returns it for the number of updates
            made. The end of an epoch closes the window. `steps_per_epoch` counts updates.
        samples_per_update: an update joins batches until it has at least this many samples.
        learning_rate_rule: `"linear"` or `"sqrt"`: the applied learning rate follows `batches_per_update`, relative to
            its value at update 0; a constant number of batches changes nothing.
        batch_norm: `"pooled"` (also for `None`) moves the statistics of BatchNormalization once per update, by the
            moments of all its samples; `"per_micro_batch"` leaves them to Keras. Passing either silences the warning
            that each micro-batch is normalised by its own moments.
        whole_batch_loss: the loss sees the outputs of all samples of the update at once, so that it may couple them
            (contrastive, ranking, correlation), at the cost of a second forward pass of each micro-batch. Needs a
            number as `micro_batch_size`.

    Returns:
        The model.

    Raises:
        ValueError, TypeError: for arguments that are out of range; nothing has changed then.
        AccumulationError: in `fit`, for a model whose update cannot be computed from micro-batches; here, for a model
            of a `ParameterServerStrategy`, and for joining batches in a model with its own `fit`.

    The promise stops at layers that couple the samples of a batch (batch normalisation), and at losses that do, unless
    `whole_batch_loss` is set.
    """
    _require_model(model)
    replicas.require_together(model)
    if micro_batch_size != "auto":
        kinds = 'a positive integer, "auto" or None'
        require_size("micro_batch_size", micro_batch_size, off="train on whole batches", kinds=kinds)
    windows = Windows(batches_per_update, samples_per_update, learning_rate_rule)
    _require_batch_norm(batch_norm)
    if whole_batch_loss:
        _require_number(micro_batch_size)
    if isinstance(batches_per_update, Adaptive):
        require_noise(model, micro_batch_size, windows, whole_batch_loss)
    is_off = micro_batch_size is None and windows.are_batches
    if not is_off and batch_norm is None:
        batch_norms.warn_of(model)
    if not windows.are_batches:
        _require_fit_of_keras(model)

    accumulation = vars(model).get("_accumulation")
    if accumulation is None:
        accumulation = Accumulation(model)
        override(model, _accumulation=accumulation, **accumulation.overrides())
        model.test_function = None
    accumulation.set(micro_batch_size, windows, pool=batch_norm != "per_micro_batch", whole_batch_loss=whole_batch_loss)
    return model


def release(model: Model) -> Model:
    """Makes an accumulated model plain Keras again, and returns it.

    Raises:
        ValueError: if the model is not accumulated.
    """
    if "_accumulation" not in vars(model):
        raise ValueError(
            describe(
                "`model` must be accumulated to be released.",
                f"model={getattr(model, 'name', model)!r}, which is plain Keras",
                "Call `bigbatch.accumulate` first; releasing once is enough.",
            )
        )
    restore(model, *(name for name in _OVERRIDES if name in vars(model)))
    renew_train_function(model)
    model.test_function = None
    return model


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


def _require_fit_of_keras(model: keras.Model) -> None:
    if type(model).fit is not keras.Model.fit:
        raise AccumulationError(
            describe(
                "A model that joins batches must have the `fit` of Keras, which counts them.",
                f"{type(model).__name__}.fit",
                "Move what it does into callbacks, or join batches in the dataset.",
            )
        )


def _require_number(micro_batch_size: MicroBatchSize) -> None:
    if not isinstance(micro_batch_size, int):
        raise ValueError(
            describe(
                "`micro_batch_size` must be a positive integer where the loss sees the whole batch.",
                f"micro_batch_size={micro_batch_size!r}, whole_batch_loss=True",
                "Give the number of samples in memory at a time; whole batches do not need `whole_batch_loss`.",
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
