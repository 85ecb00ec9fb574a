"""`verify`: whether the update in micro-batches equals that of the whole batch, and if not, why."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras

from bigbatch.core.errors import describe, require_size
from bigbatch.diagnostics.both_ways import BothWays
from bigbatch.diagnostics.causes import Findings, Investigation
from bigbatch.diagnostics.comparison import are_finite, compare, is_shaky, precision
from bigbatch.diagnostics.equivalence import Cause, Equivalence
from bigbatch.diagnostics.pieces import Piece, cut
from bigbatch.diagnostics.remedies import UNKNOWN, nonfinite_cause, precision_cause
from bigbatch.diagnostics.samples import build, read, require_compiled, tensors
from bigbatch.training import batches
from bigbatch.training.update import Update

_FLOAT32_ROUNDING = 1e-4


def verify(
    model: keras.Model,
    x: Any,
    y: Any = None,
    *,
    micro_batch_size: int | None = None,
    batches_per_update: int | None = None,
    sample_weight: Any = None,
) -> Equivalence:
    """Runs one update on the whole batch and in micro-batches, and names the cause of any difference.

        report = bigbatch.verify(model, x, y, micro_batch_size=16)
        print(report)
        assert report.exact

    The whole batch is run by plain Keras, with the model's own `train_step`; rows of an embedding are added up before
    they are applied, as in a dense gradient. The effect of rounding is measured, too: the whole batch is run again
    after the last digit of every weight has moved. Causes are found by trying. The model is not changed.

    Args:
        model: a compiled model, accumulated or not. If neither of the sizes below is given, its own settings are used.
        x, y, sample_weight: the samples of one update, as for `fit`: arrays, or in `x` a batched dataset, whose first
            batches are taken.
        micro_batch_size: samples at a time, on each replica; whole batches if only `batches_per_update` is given.
        batches_per_update: how many batches the update joins; arrays are cut into as many.

    Raises:
        ValueError, TypeError: for arguments that are out of range.
        AccumulationError: for a model that cannot be accumulated.
    """
    require_compiled(model)
    require_size("micro_batch_size", micro_batch_size, off="verify a window of whole batches")
    require_size("batches_per_update", batches_per_update, off="verify one batch")
    size, num_batches = _settings(model, micro_batch_size, batches_per_update)
    window = read(x, y, sample_weight, num_batches=num_batches)
    sizes = [batches.num_samples(batch) for batch in window]
    pieces = cut(sizes, size, model.distribute_strategy.num_replicas_in_sync)
    _require_pieces(len(pieces), size, num_batches)
    build(model, window[0])
    accumulation = vars(model).get("_accumulation")
    update = Update(model, size, pool=True) if accumulation is None else accumulation.update(size)
    ways = BothWays(model, [tensors(batch) for batch in window], update)
    name, epsilon = precision(model)
    findings = _findings(ways, pieces, epsilon)
    return Equivalence(
        exact=all(row.exact for row in findings.rows) and not findings.causes,
        num_samples=sum(sizes),
        micro_batches=tuple(piece.size for piece in pieces),
        table=findings.rows,
        causes=_of_low_precision(name, findings) or findings.causes,
        replayed=findings.replayed,
        num_updates=ways.num_updates,
    )


def _findings(ways: BothWays, pieces: Sequence[Piece], epsilon: float) -> Findings:
    reference, ours = ways.whole(), ways.accumulated()
    rows = compare(reference, ours, ways.with_last_digits_moved(None, epsilon), epsilon)
    if not (are_finite(reference) and are_finite(ours)):
        return Findings(rows, (), (nonfinite_cause([row for row in rows if row.kind == "gradient"]),))
    if is_shaky(rows) or not all(row.exact for row in rows):
        return Investigation(ways, pieces, reference, ours, epsilon).findings(rows)
    return Findings(rows, (), ())


def _settings(
    model: keras.Model, micro_batch_size: int | None, batches_per_update: int | None
) -> tuple[int | None, int]:
    accumulation = vars(model).get("_accumulation")
    if accumulation is not None and micro_batch_size is None and batches_per_update is None:
        micro_batch_size, batches_per_update = accumulation.settings()
        if batches_per_update is None:
            raise ValueError(
                describe(
                    "`batches_per_update` must be given for a model that joins batches by their samples.",
                    "batches_per_update=None",
                    "Give the number of batches that make up one update.",
                )
            )
    if micro_batch_size == "auto":
        raise ValueError(
            describe(
                "`micro_batch_size` must be given for a model that finds its own size.",
                'micro_batch_size="auto"',
                "Give the size that training has found, or a smaller one.",
            )
        )
    return micro_batch_size, batches_per_update or 1


def _of_low_precision(name: str, findings: Findings) -> tuple[Cause, ...]:
    """Where nothing else explains what few digits make."""
    coarse = [row for row in findings.rows if row.kind == "gradient" and row.error > _FLOAT32_ROUNDING]
    unexplained = all(cause.kind == UNKNOWN for cause in findings.causes)
    return (precision_cause(name, coarse),) if coarse and unexplained and name in ("float16", "bfloat16") else ()


def _require_pieces(number: int, micro_batch_size: int | None, batches_per_update: int) -> None:
    if number < 2:
        raise ValueError(
            describe(
                "The update must have at least two micro-batches to be compared with the whole batch.",
                f"micro_batch_size={micro_batch_size!r}, batches_per_update={batches_per_update!r}, which make one",
                "Give a `micro_batch_size` below the number of samples, or more batches.",
            )
        )
