"""Pictures of results. matplotlib is imported when one is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bigbatch.diagnostics.equivalence import Equivalence
    from bigbatch.diagnostics.estimate import Estimate
    from bigbatch.diagnostics.planned import Plan

_MIB = 2**20


def plot_plan(plan: Plan, ax: Any = None) -> Any:
    """Peaks with their line and the memory there is; beside them, on an axis of its own, the time."""
    ax = ax or _axes()
    rows = [row for row in plan.table if row.peak is not None and row.seconds_per_update is not None]
    sizes = [row.micro_batch_size for row in rows]
    ax.plot(sizes, [(row.peak or 0) / _MIB for row in rows], "o", label="measured")
    line = [(plan.fixed + plan.per_sample * size) / _MIB for size in sizes]
    ax.plot(sizes, line, "-", color="C0", alpha=0.5, label="fixed + per sample")
    ax.axhline(plan.memory / _MIB, color="C3", linestyle="--", label="memory")
    ax.axvline(plan.micro_batch_size, color="C2", linestyle=":", label="recommended")
    ax.set(xlabel="micro-batch size (samples)", ylabel="peak memory (MiB)", xscale="log", ylim=(0, None))
    times = ax.twinx()
    times.plot(sizes, [row.seconds_per_update for row in rows], "s-", color="C1", label="time")
    times.set(ylabel=f"time per update of {plan.batch_size} samples (s)", ylim=(0, None))
    ax.legend(loc="upper left")
    return ax


def plot_equivalence(report: Equivalence, ax: Any = None) -> Any:
    """The error of every row and what rounding makes of it, on a log scale, by kind."""
    ax = ax or _axes()
    rows = sorted(report.table, key=lambda row: row.kind)
    # A log scale has no place for nothing.
    smallest = min((value for row in rows for value in (row.error, row.rounding) if value > 0), default=1e-16)
    places = range(len(rows))
    ax.plot(places, [max(row.rounding, smallest) for row in rows], "_", color="C7", label="rounding")
    for exact, color, label in ((True, "C2", "within rounding"), (False, "C3", "beyond rounding")):
        chosen = [(place, max(row.error, smallest)) for place, row in zip(places, rows) if row.exact is exact]
        ax.plot([place for place, _ in chosen], [error for _, error in chosen], "o", color=color, label=label)
    kinds = [row.kind for row in rows]
    ax.set_xticks([kinds.index(kind) for kind in dict.fromkeys(kinds)], list(dict.fromkeys(kinds)), ha="left")
    ax.set(yscale="log", xlabel="what an update comes to", ylabel="largest difference (relative)")
    ax.legend()
    return ax


def plot_estimate(estimate: Estimate, ax: Any = None) -> Any:
    """What a given progress takes, in updates and in samples, relative to the least of each, by the size of updates."""
    ax = ax or _axes()
    value = min(max(estimate.value, 0.01), 1e9)  # a log scale has no place for nothing, nor for infinity
    ends = sorted((value, estimate.samples_per_update))
    sizes = [ends[0] / 16 * (256 * ends[1] / ends[0]) ** (step / 64) for step in range(65)]
    needed = [1 + value / size for size in sizes]
    ax.plot(sizes, needed, label="updates")
    ax.plot(sizes, [each * size / value for each, size in zip(needed, sizes)], label="samples")
    low, high = estimate.interval
    ax.axvspan(max(low, sizes[0]), min(high, sizes[-1]), color="C2", alpha=0.2, label="noise scale")
    ax.axvline(estimate.samples_per_update, color="C7", linestyle="--", label="updates as they are")
    ax.set(xscale="log", yscale="log", xlabel="samples of an update", ylabel="needed, relative to the least")
    ax.legend()
    return ax


def _axes() -> Any:
    try:
        from matplotlib import pyplot
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "A plot needs matplotlib. Received: no module 'matplotlib'. "
            'Install it with `pip install "bigbatch[plot]"`.',
            name="matplotlib",
        ) from error
    return pyplot.subplots()[1]
