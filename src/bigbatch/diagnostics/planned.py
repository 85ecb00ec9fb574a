"""The result of `plan`."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from bigbatch.core.bytes import readable


@dataclass(frozen=True)
class Row:
    """One size that was run; `None` stands for what ran out of memory, or was not predicted before it ran."""

    micro_batch_size: int
    peak: int | None
    predicted: int | None
    seconds_per_update: float | None
    fits: bool

    def cells(self) -> tuple[str, str, str, str]:
        """All but the last, for people."""
        return (
            str(self.micro_batch_size),
            "-" if self.peak is None else readable(self.peak),
            "" if self.predicted is None else readable(self.predicted),
            "-" if self.seconds_per_update is None else f"{self.seconds_per_update:.3g}",
        )


@dataclass(frozen=True)
class Plan:
    """What a model takes, in bytes: `fixed + per_sample * micro_batch_size`, and the size to train with.

    `weights`, `optimizer_slots` and `gradients` (their one sum) are parts of `fixed`; the rest is the inputs of the
    batch and what operations need besides. `print` shows it all.
    """

    micro_batch_size: int
    batch_size: int
    memory: int
    measured_by: str
    fixed: int
    per_sample: int
    weights: int
    optimizer_slots: int
    gradients: int
    table: tuple[Row, ...]

    def __str__(self) -> str:
        lines = [
            f"{'micro-batch':>11}  {'peak':>10}  {'predicted':>10}  {'s/update':>9}  fits in {readable(self.memory)}",
            *(self._line(row) for row in self.table),
            *self.parts(),
            f"recommended for batches of {self.batch_size}: micro_batch_size={self.micro_batch_size}",
        ]
        return "\n".join(lines)

    def parts(self) -> list[str]:
        """What the memory goes to, and who says so."""
        parts = {"weights": self.weights, "optimizer slots": self.optimizer_slots, "gradients": self.gradients}
        names = ", ".join(f"{name} {readable(size)}" for name, size in parts.items())
        return [
            f"fixed {readable(self.fixed)} ({names}) and {readable(self.per_sample)} per sample,",
            f"by {self.measured_by}",
        ]

    def _line(self, row: Row) -> str:
        size, peak, predicted, seconds = row.cells()
        mark = "  <-" if row.micro_batch_size == self.micro_batch_size else ""
        fits = "yes" if row.fits else "no"
        return f"{size:>11}  {peak:>10}  {predicted:>10}  {seconds:>9}  {fits}{mark}"

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    def plot(self, ax: Any = None) -> Any:
        """Peak memory and time per update against the micro-batch size; returns the axes. Needs matplotlib."""
        from bigbatch.diagnostics.plots import plot_plan

        return plot_plan(self, ax)
