"""What the demo has found: figures and what follows from them. Neither TensorFlow nor a page is needed to read them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from bigbatch.core.bytes import readable

# Relative, of all weights together. Rounding alone stays a hundred times below.
PROMISED_DISTANCE = 1e-4


@dataclass(frozen=True)
class Update:
    """A run when it has seen `samples` samples; loss and accuracy are those of the batch before its update."""

    samples: int
    loss: float
    accuracy: float
    seconds: float
    peak: int
    num_applied: int


@dataclass(frozen=True)
class Run:
    """One way to train; `error` is what it died of, and then there is no loss in the end."""

    name: str
    samples_in_memory: int
    budget: int | None
    updates: tuple[Update, ...]
    loss: float | None = None
    accuracy: float | None = None
    error: str | None = None

    @property
    def peak(self) -> int | None:
        return self.updates[-1].peak if self.updates else None

    @property
    def seconds_per_update(self) -> float | None:
        """Of a whole batch; the first two are not like the others, for TensorFlow traces."""
        rest = [update.seconds for update in self.updates[2:]]
        return median(rest) if rest else None


@dataclass(frozen=True)
class Peak:
    """The most bytes in use at once with micro-batches of a size."""

    micro_batch_size: int
    peak: int


@dataclass(frozen=True)
class Distance:
    """How far weights lie from plain Keras' after as many samples: |a - b| / |b|, of all weights together."""

    update: int
    samples: int
    bigbatch: float
    built_in: float


@dataclass(frozen=True)
class Results:
    """Everything that the demo shows."""

    batch_size: int
    micro_batch_size: int
    epochs: int
    budget: int
    starved: Run
    plain: Run
    ours: Run
    built_in: Run
    peaks: tuple[Peak, ...]
    distances: tuple[Distance, ...]
    seconds: float
    versions: str

    @property
    def runs(self) -> tuple[Run, ...]:
        return (self.starved, self.plain, self.ours, self.built_in)

    @property
    def small(self) -> str:
        """The budget in words."""
        return f"{self.budget // 2**20} MiB"

    @property
    def num_samples(self) -> int:
        return self.plain.updates[-1].samples // self.epochs

    @property
    def worst(self) -> float:
        """The largest distance of bigbatch after any update."""
        return max((each.bigbatch for each in self.distances), default=float("inf"))

    def distance_of(self, run: Run) -> float | None:
        """How far the weights of a run lie from plain Keras' in the end."""
        if not self.distances:
            return None
        last = self.distances[-1]
        return {self.plain.name: 0.0, self.ours.name: last.bigbatch, self.built_in.name: last.built_in}.get(run.name)

    def broken_promises(self) -> list[str]:
        """What was claimed and did not come true."""
        broken = []
        if self.starved.error is None:
            broken.append(f"Plain Keras fits in {self.small}: the budget shows nothing.")
        if self.ours.error is not None or self.ours.peak is None or self.ours.peak > self.budget:
            broken.append(f"bigbatch needs more than {self.small}: {self.ours.error or self.ours.peak}.")
        if not self.worst <= PROMISED_DISTANCE:
            broken.append(f"The weights lie {self.worst:.1e} from plain Keras', not within {PROMISED_DISTANCE:.0e}.")
        return broken

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "broken_promises": self.broken_promises()}


COLUMNS = (
    "",
    "memory budget",
    "in memory at a time",
    "peak memory",
    "per update",
    "final loss",
    "accuracy",
    "distance",
)


def table(results: Results) -> list[tuple[str, ...]]:
    """A row per run, in words."""
    return [row(run, results.distance_of(run)) for run in results.runs]


def row(run: Run, distance: float | None) -> tuple[str, ...]:
    def shown(value: float | None, form: str) -> str:
        return "-" if value is None else form.format(value)

    return (
        run.name,
        "-" if run.budget is None else readable(run.budget),
        f"{run.samples_in_memory} samples",
        "out of memory" if run.error else "-" if run.peak is None else readable(run.peak),
        shown(run.seconds_per_update, "{:.2f} s"),
        shown(run.loss, "{:.5f}"),
        shown(run.accuracy and 100 * run.accuracy, "{:.1f} %"),
        shown(distance, "{:.1e}") if distance else "0" if distance == 0 else "-",
    )
