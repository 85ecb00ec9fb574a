"""Pictures of results. matplotlib is imported when one is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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
