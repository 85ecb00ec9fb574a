"""Why an update in micro-batches differs from that of the whole batch: found by trying, one thing after the other.

1. The whole batch again: what the device or unseeded randomness makes of it.
2. Every layer whole and in pieces: which of them draw, and which mix samples.
3. The whole batch with the same draws, and with the mixing layers in pieces: what they explain, and each of them alone.
4. What is left: state that micro-batches hand to each other, then the loss, then metrics.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

from bigbatch.diagnostics import loss_terms
from bigbatch.diagnostics.both_ways import BothWays, Outcome, state_of
from bigbatch.diagnostics.comparison import change, compare
from bigbatch.diagnostics.equivalence import Cause, Row
from bigbatch.diagnostics.pieces import Piece, Pieces, recording
from bigbatch.diagnostics.remedies import (
    added_cause,
    batch_norm_cause,
    layer_cause,
    loss_cause,
    metric_cause,
    noise_cause,
    reduction_cause,
    state_cause,
    unexplained_cause,
    unseeded_cause,
)
from bigbatch.diagnostics.suspects import find, probe, probe_piece
from bigbatch.training import batches


@dataclass(frozen=True)
class Findings:
    """The rows to show, the layers whose draws were repeated, and why rows differ."""

    rows: tuple[Row, ...]
    replayed: tuple[str, ...]
    causes: tuple[Cause, ...]


class Investigation:
    """Explains a difference.

    Args:
        ways: runs updates.
        pieces: the micro-batches.
        reference, ours: what the two ways came to.
        epsilon: the precision that the model computes in.
    """

    def __init__(
        self, ways: BothWays, pieces: Sequence[Piece], reference: Outcome, ours: Outcome, epsilon: float
    ) -> None:
        self._ways = ways
        self._reference = reference
        self._ours = ours
        self._epsilon = epsilon
        with recording(ways.model) as passed:
            probe(ways, batches.take(ways.batch, pieces[0].start, pieces[0].size), nullcontext())
        self._pieces = Pieces(ways.model, pieces, passed)
        self._draws_outside = passed.draws_outside

    def findings(self, rows: tuple[Row, ...]) -> Findings:
        again = compare(self._reference, self._ways.whole(), self._reference, self._epsilon)
        if not _are_exact(again) and _explains(again, rows):
            return Findings(rows, (), (noise_cause(_beyond(again)),))
        if _are_exact(rows):
            return Findings(rows, (), ())
        suspects = find(self._ways, self._pieces)
        outside = ["train_step"] if self._draws_outside else []
        unseeded = [each.layer.name for each in suspects if each.draws and not each.is_replayable] + outside
        if unseeded:
            error = max(row.error for row in rows if row.kind == "gradient")
            return Findings(rows, (), (unseeded_cause([(name, error) for name in unseeded]),))
        drawing = [each.layer for each in suspects if each.draws and not each.mixes]
        mixing = [each.layer for each in suspects if each.mixes]
        if drawing:
            rows = self._rows(drawing)
        causes: list[Cause] = []
        if not _are_exact(rows):
            causes += self._of_state([each.layer for each in suspects if each.keeps_state])
            causes += self._of_layers(drawing, mixing)
            causes += self._of_the_rest(rows, drawing, mixing) if not causes or mixing else []
            causes = causes or [unexplained_cause(_beyond(rows))]
        return Findings(rows, tuple(layer.name for layer in drawing), tuple(causes))

    def _of_state(self, layers: list[keras.layers.Layer]) -> list[Cause]:
        if not layers:
            return []
        handed_on = dict(self._handed_on())
        names = [each.path for layer in layers for each in state_of(layer)]
        return [state_cause([(name, handed_on.get(name, 1.0)) for name in names])]

    def _rows(self, in_pieces: Iterable[keras.layers.Layer]) -> tuple[Row, ...]:
        """What is left of the difference when these layers see micro-batches both ways."""
        layers = list(in_pieces)
        whole = self._ways.whole(self._pieces.of(layers))
        rounded = self._ways.with_last_digits_moved(self._pieces.of(layers), self._epsilon)
        return compare(whole, self._ours, rounded, self._epsilon)

    def _of_layers(self, drawing: list[keras.layers.Layer], mixing: list[keras.layers.Layer]) -> list[Cause]:
        if not mixing:
            return []
        base = self._gradients(drawing)
        shares = [(layer, change(base, self._gradients([*drawing, layer]))) for layer in mixing]
        shares.sort(key=lambda pair: -pair[1])
        norms = [(layer.name, share) for layer, share in shares if _is_batch_norm(layer)]
        others = [(layer.name, share) for layer, share in shares if not _is_batch_norm(layer)]
        return [*([batch_norm_cause(norms)] if norms else []), *([layer_cause(others)] if others else [])]

    def _of_the_rest(
        self, rows: Sequence[Row], drawing: list[keras.layers.Layer], mixing: list[keras.layers.Layer]
    ) -> list[Cause]:
        # Batch norm of few, nearly equal samples amplifies rounding: what is a hundredth of the error, or not far more
        # than last digits make, says nothing of another cause.
        before = {(row.kind, row.name): row.error for row in rows}
        remaining = self._rows([*drawing, *mixing])
        large = [max(0.01 * before[row.kind, row.name], 10 * row.rounding) if mixing else 0.0 for row in remaining]
        left = [row for row, least in zip(remaining, large) if not row.error <= least]  # NaN is left, too
        known = {variable.path for layer in mixing for variable in layer.variables}
        kinds = {kind: [row for row in _beyond(left) if row.kind == kind] for kind in ("gradient", "statistic", "log")}
        state = [row for row in kinds["statistic"] if row.name not in known]
        causes: list[Cause] = []
        if kinds["gradient"]:
            handed_on = self._handed_on()
            causes += [state_cause(handed_on)] if handed_on else self._of_the_loss([*drawing, *mixing])
            causes = causes or [unexplained_cause(kinds["gradient"])]
        elif state:
            causes.append(state_cause([(row.name, row.error) for row in state]))
        logs = [row for row in kinds["log"] if not (kinds["gradient"] and row.name.endswith("loss"))]
        return [*causes, *([metric_cause(logs)] if logs else [])]

    def _handed_on(self) -> list[tuple[str, float]]:
        """The variables by which micro-batches change the gradients of later ones."""
        *earlier, last = self._pieces.pieces
        alone = self._of_piece(last)
        before = self._statistics()
        for piece in earlier:
            self._of_piece(piece, restore=False)
        moved = [name for name, value in self._statistics().items() if not np.array_equal(value, before[name])]
        in_line = self._of_piece(last)
        moved_by = change(alone, in_line)
        return [(name, moved_by) for name in moved] if moved_by > loss_terms.TOLERANCE else []

    def _of_the_loss(self, in_pieces: Sequence[keras.layers.Layer]) -> list[Cause]:
        examined = loss_terms.examine(self._ways, self._pieces, in_pieces)
        mixing = [term for term in examined.terms if term.mixes]
        if mixing:
            return [loss_cause([(term.name, term.unexplained) for term in mixing])]
        shares = [self._pieces.share(piece) for piece in self._pieces.pieces]
        return [
            *(reduction_cause(term, shares) for term in examined.terms if not term.weighs_like(shares)),
            *([added_cause(examined.added)] if examined.added else []),
        ]

    def _gradients(self, in_pieces: Sequence[keras.layers.Layer]) -> Any:
        return probe(self._ways, self._ways.batch, self._pieces.of(in_pieces))

    def _of_piece(self, piece: Piece, *, restore: bool = True) -> Any:
        return probe_piece(self._ways, self._pieces, piece, restore=restore)

    def _statistics(self) -> dict[str, np.ndarray]:
        return {each.path: each.numpy() for each in state_of(self._ways.model)}


def _are_exact(rows: Iterable[Row]) -> bool:
    return all(row.exact for row in rows)


def _explains(noise: Iterable[Row], rows: Iterable[Row]) -> bool:
    """Whether no gradient is off by far more than from one run to the next."""
    by_chance = {row.name: row.error for row in noise if row.kind == "gradient"}
    return all(row.exact or row.error < 10 * by_chance[row.name] for row in rows if row.kind == "gradient")


def _beyond(rows: Iterable[Row]) -> list[Row]:
    return [row for row in rows if not row.exact]


def _is_batch_norm(layer: keras.layers.Layer) -> bool:
    return isinstance(layer, keras.layers.BatchNormalization)
