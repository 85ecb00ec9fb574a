"""`plan`: which micro-batch size a model should train with, and what it takes."""

from __future__ import annotations

import sys
import tempfile
from contextlib import ExitStack, closing
from functools import cache
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from bigbatch.core.bytes import num_bytes, readable
from bigbatch.core.errors import AccumulationError, describe, require_positive
from bigbatch.core.planning import Search, Trial
from bigbatch.diagnostics import meters
from bigbatch.diagnostics.apart import Apart, CannotTravel
from bigbatch.diagnostics.planned import Plan, Row
from bigbatch.diagnostics.samples import build, read, require_compiled, require_one_replica
from bigbatch.diagnostics.trials import Measurement, Trials
from bigbatch.training import batches
from bigbatch.training.gradients import sum_dtype
from bigbatch.training.memory import LESS, device
from bigbatch.training.optimizers import optimizers_of


def plan(
    model: keras.Model,
    x: Any,
    y: Any = None,
    *,
    batch_size: int,
    memory: int | str | None = None,
    sample_weight: Any = None,
) -> Plan:
    """Measures the memory and time of a model's updates, and recommends a micro-batch size.

        plan = bigbatch.plan(model, x, y, batch_size=4096, memory="8GB")
        print(plan)
        bigbatch.accumulate(model, micro_batch_size=plan.micro_batch_size)

    Growing sizes are run, and a line through their peaks (a fixed part, and one per sample) predicts the largest that
    fits, which is then run with no more memory than is given. Of the sizes that fit, the fastest is recommended. The
    model is not changed: trials run on a copy in another process, or, on a GPU and for a model that cannot be loaded in
    another process, on the model itself, which is then restored.

    Args:
        model: a compiled model.
        x, y, sample_weight: as for `fit`: arrays, or in `x` a batched dataset. A part of a batch is enough; its samples
            are repeated.
        batch_size: how many samples an update has.
        memory: how much there is, as "8GB", "512MiB" or a number of bytes; `None`: what the device has free.

    Raises:
        ValueError, TypeError: for arguments that are out of range.
        AccumulationError: if not even one sample fits, and for a model of several replicas.
    """
    require_compiled(model)
    require_one_replica(
        model,
        "A plan must be made for one replica.",
        "Plan the same model made outside of the strategy, for the samples that a replica gets.",
    )
    require_positive("batch_size", batch_size, remedy="Use the number of samples of an update.")
    budget = meters.free_bytes() if memory is None else num_bytes("memory", memory)
    [data] = read(x, y, sample_weight, num_batches=1)
    data = batches.take(data, 0, batch_size)
    build(model, data)
    with ExitStack() as stack:
        return _plan(model, _place(model, data, batch_size, stack), batch_size, budget)


def _plan(model: keras.Model, place: _Here | _Elsewhere, batch_size: int, budget: int) -> Plan:
    found: dict[int, Measurement] = {}

    def peak(size: int) -> float | None:
        _show(f"planning: {size} samples at a time ...")
        measurement = place.measure(size)
        if measurement is not None:
            found[size] = measurement
        return None if measurement is None else measurement.peak

    search = Search(peak, batch_size, budget)
    search.run()
    _show("planning: the largest within the memory ...")
    largest = search.confirmed(lambda size: place.confirms(size, budget))
    _show("")
    if not largest:
        _refuse(search.trials[0].peak, budget)
    rows = tuple(_row(trial, found.get(trial.size), trial.size <= largest) for trial in sorted(search.trials))
    best = min((row for row in rows if row.fits), key=lambda row: row.seconds_per_update or 0.0)
    line = search.line()
    return Plan(
        micro_batch_size=best.micro_batch_size,
        batch_size=batch_size,
        memory=budget,
        measured_by=place.measured_by,
        fixed=round(line.fixed),
        per_sample=round(line.per_sample),
        weights=sum(map(_bytes_of, model.variables)),
        optimizer_slots=sum(_bytes_of(each) for optimizer in optimizers_of(model) for each in optimizer.variables),
        gradients=sum(
            int(np.prod(each.shape)) * sum_dtype(tf.as_dtype(each.dtype)).size for each in model.trainable_variables
        ),
        table=rows,
    )


def _row(trial: Trial, measurement: Measurement | None, fits: bool) -> Row:
    return Row(
        micro_batch_size=trial.size,
        peak=None if measurement is None else measurement.peak,
        predicted=None if trial.predicted is None else round(trial.predicted),
        seconds_per_update=None if measurement is None else measurement.seconds_per_update,
        fits=fits,
    )


class _Here:
    """Trials in this process, on the model itself; what has run here need not be run again."""

    def __init__(self, model: keras.Model, data: Any, batch_size: int, why: str) -> None:
        meter = meters.of_this_process()
        self.measured_by = meter.name + why
        self.measure = Trials(model, data, batch_size, meter).measure

    def confirms(self, size: int, budget: int) -> bool:
        return True


class _Elsewhere:
    """Trials in other processes: one without a limit, whose peaks are not squeezed, and one with just the budget."""

    def __init__(self, model: keras.Model, data: Any, batch_size: int, stack: ExitStack) -> None:
        def start(limit: int | None) -> Apart:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            return stack.enter_context(closing(Apart(model, data, batch_size, folder, limit)))

        self._start = cache(start)
        self.measured_by = Apart.name
        self.measure = self._start(None).measure

    def confirms(self, size: int, budget: int) -> bool:
        return self._start(budget).measure(size) is not None


def _place(model: keras.Model, data: Any, batch_size: int, stack: ExitStack) -> _Here | _Elsewhere:
    """Where trials run: elsewhere if that is possible."""
    if device() != "CPU:0":
        return _Here(model, data, batch_size, why="")
    try:
        return _Elsewhere(model, data, batch_size, stack)
    except CannotTravel as error:
        return _Here(model, data, batch_size, why=f"; in this process, because {error}")


def _bytes_of(variable: Any) -> int:
    return int(np.prod(variable.shape)) * tf.as_dtype(variable.dtype).size


def _show(line: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\033[K{line}", end="", file=sys.stderr, flush=True)


def _refuse(peak: float | None, budget: int) -> None:
    need = f"more than {readable(budget)}" if peak is None else readable(peak)
    raise AccumulationError(
        describe(
            "One sample at a time must fit the memory.",
            f"memory={readable(budget)}, and one sample needs {need}",
            LESS,
        )
    )
