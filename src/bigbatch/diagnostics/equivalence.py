"""The result of `verify`."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

# Of the many variables of a large model, only the worst are printed.
_SHOWN = 8


@dataclass(frozen=True)
class Row:
    """One thing that both ways came to, and how far they are apart.

    `error` is the largest difference, relative to the size of the thing; `rounding` is how far the last digit of every
    weight moves it.
    """

    kind: str  # "gradient", "weight", "optimizer", "statistic" or "log"
    name: str
    error: float
    rounding: float
    exact: bool


@dataclass(frozen=True)
class Cause:
    """Why the two ways differ: `parts` are what it is found in, with the share of each."""

    kind: str
    what: str
    parts: tuple[tuple[str, float], ...]
    remedy: str


class Worst(NamedTuple):
    """The gradient that differs most."""

    variable: str
    error: float


@dataclass(frozen=True)
class Equivalence:
    """What one update came to on the whole batch and in micro-batches.

    `exact` says that nothing differs by more than rounding in the precision that the model computes in; `causes` names
    what does, and low precision also where it explains all. `replayed` are the layers that drew the same numbers both
    ways because they were made to. `num_updates` is what finding out took, in updates.
    """

    exact: bool
    num_samples: int
    micro_batches: tuple[int, ...]
    table: tuple[Row, ...]
    causes: tuple[Cause, ...]
    replayed: tuple[str, ...]
    num_updates: int

    @property
    def worst(self) -> Worst:
        rows = [row for row in self.table if row.kind == "gradient"]
        beyond = [row for row in rows if not row.exact]
        row = max(beyond or rows, key=lambda row: row.error)
        return Worst(row.name, row.error)

    def by_kind(self) -> dict[str, list[Row]]:
        """The rows of every kind, the worst first."""
        worst_first = sorted(self.table, key=lambda row: (row.exact, -row.error))
        kinds = dict.fromkeys(row.kind for row in self.table)
        return {kind: [row for row in worst_first if row.kind == kind] for kind in kinds}

    def __str__(self) -> str:
        return "\n".join([*self._verdict(), "", *self._kinds(), *self._worst_rows(), *map(_told, self.causes)])

    def _verdict(self) -> list[str]:
        verdict = "equal, to rounding" if self.exact else "NOT equal"
        sizes = ", ".join(map(str, self.micro_batches[:6])) + (", ..." if len(self.micro_batches) > 6 else "")
        lines = [
            f"{verdict}: one update of {self.num_samples} samples, and the same in micro-batches of {sizes}",
            f"the worst gradient is that of {self.worst.variable}: off by {self.worst.error:.1e} of its size",
        ]
        if self.replayed:
            lines.append(f"with the same draws in {_few(self.replayed)}")
        return lines

    def _kinds(self) -> list[str]:
        lines = [f"{'':12}{'number':>8}{'beyond rounding':>18}{'largest error':>16}{'rounding':>12}"]
        for kind, rows in self.by_kind().items():
            worst, beyond = rows[0], sum(not row.exact for row in rows)
            lines.append(f"{kind:12}{len(rows):8}{beyond:18}{worst.error:16.1e}{worst.rounding:12.1e}")
        return lines

    def _worst_rows(self) -> list[str]:
        beyond = sorted((row for row in self.table if not row.exact), key=lambda row: -row.error)
        lines = [f"  {row.error:.1e}  {row.kind:10} {row.name}" for row in beyond[:_SHOWN]]
        if len(beyond) > _SHOWN:
            lines.append(f"  and {len(beyond) - _SHOWN} more in `.table`")
        return ["", "the worst of them:", *lines] if lines else []

    def to_json(self) -> str:
        return json.dumps(_finite(asdict(self) | {"worst": self.worst._asdict()}), allow_nan=False)

    def plot(self, ax: Any = None) -> Any:
        """The errors of all rows beside what rounding makes; returns the axes. Needs matplotlib."""
        from bigbatch.diagnostics.plots import plot_equivalence

        return plot_equivalence(self, ax)


def _finite(value: Any) -> Any:
    """JSON has no numbers that are not finite."""
    if isinstance(value, dict):
        return {name: _finite(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(part) for part in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _told(cause: Cause) -> str:
    parts = [f"  {share:8.1e}  {name}" for name, share in cause.parts[:_SHOWN]]
    if len(cause.parts) > _SHOWN:
        parts.append(f"  and {len(cause.parts) - _SHOWN} more in `.causes`")
    return "\n".join(["", f"cause: {cause.kind}. {cause.what}", *parts, f"remedy: {cause.remedy}"])


def _few(names: tuple[str, ...]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
