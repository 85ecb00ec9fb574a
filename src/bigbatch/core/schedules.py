"""How many batches an update joins, as a function of the number of updates made; and the learning rate that fits.

A schedule is any callable `update -> batches`. Those here are frozen, comparable, picklable, serializable through
`get_config` and `from_config`, and can be plotted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from bigbatch.core.errors import describe, require_positive


class _Schedule:
    def get_config(self) -> dict[str, Any]:
        return asdict(self)  # type: ignore[call-overload]

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        return cls(**config)

    def plot(self, ax: Any = None) -> Any:
        """Draws the schedule and returns the axes; `ax=None` makes new ones."""
        updates = range(self._horizon() + 1)
        return step_plot(updates, [self(update) for update in updates], ax)  # type: ignore[operator]

    def _horizon(self) -> int:
        raise NotImplementedError


def step_plot(updates: Sequence[int], batches: Sequence[int], ax: Any) -> Any:
    """Draws how many batches updates join, and returns the axes."""
    if ax is None:
        from matplotlib import pyplot

        _, ax = pyplot.subplots()
    ax.step(updates, batches, where="post")
    ax.set_xlabel("updates made")
    ax.set_ylabel("batches per update")
    return ax


@dataclass(frozen=True)
class Ramp(_Schedule):
    """Made by `ramp`."""

    first: int
    last: int
    updates: int

    def __call__(self, update: int) -> int:
        done = min(int(update), self.updates)
        return self.first + (self.last - self.first) * done // self.updates

    def _horizon(self) -> int:
        return self.updates * 5 // 4


@dataclass(frozen=True)
class Piecewise(_Schedule):
    """Made by `piecewise`."""

    starts: tuple[int, ...]
    batches: tuple[int, ...]

    def __post_init__(self) -> None:
        # A configuration read from JSON has lists.
        object.__setattr__(self, "starts", tuple(self.starts))
        object.__setattr__(self, "batches", tuple(self.batches))

    def __call__(self, update: int) -> int:
        return [batches for start, batches in zip(self.starts, self.batches) if start <= update][-1]

    def _horizon(self) -> int:
        return max(self.starts[-1] * 5 // 4, 1)


def ramp(first: int, last: int, *, updates: int) -> Ramp:
    """Grows evenly from `first` to `last` batches over the given number of updates, then stays there.

    >>> schedule = ramp(1, 5, updates=100)
    >>> schedule(0), schedule(50), schedule(100), schedule(10_000)
    (1, 3, 5, 5)
    """
    for name, value in (("first", first), ("last", last), ("updates", updates)):
        require_positive(name, value, remedy="Batches and updates are counted from 1.")
    return Ramp(first, last, updates)


def piecewise(batches: Mapping[int, int]) -> Piecewise:
    """Joins `batches[k]` batches from update `k` on.

    >>> schedule = piecewise({0: 1, 500: 4, 2000: 16})
    >>> schedule(499), schedule(500), schedule(3000)
    (1, 4, 16)
    """
    starts = sorted(batches)
    if not starts or starts[0] != 0 or any(type(start) is not int for start in starts):
        raise ValueError(
            describe(
                "`batches` must map updates to batches, beginning with update 0.",
                f"batches={batches!r}",
                "Add an entry for update 0, for example {0: 1}.",
            )
        )
    for start in starts:
        if type(batches[start]) is not int or batches[start] < 1:
            raise ValueError(
                describe(
                    "`batches` must join at least one batch, as an integer, at every update.",
                    f"batches[{start}]={batches[start]!r}",
                    "Use 1 for no joining.",
                )
            )
    return Piecewise(tuple(starts), tuple(batches[start] for start in starts))


def rate_factor(rule: str | None, ratio: Any) -> Any:
    """By what the learning rate grows when the batch grows by `ratio`.

    >>> rate_factor("linear", 4.0), rate_factor("sqrt", 4.0), rate_factor(None, 4.0)
    (4.0, 2.0, 1.0)
    """
    return {None: 1.0, "linear": ratio, "sqrt": ratio**0.5}[rule]


def require_rule(rule: Any) -> None:
    if rule not in (None, "linear", "sqrt"):
        raise ValueError(
            describe(
                '`learning_rate_rule` must be "linear", "sqrt" or None.',
                f"learning_rate_rule={rule!r}",
                "Use None to leave the learning rate alone.",
            )
        )


def scale_learning_rate(learning_rate: Any, *, batch_size: int, base_batch_size: int, rule: str = "linear") -> Any:
    """The learning rate, or schedule, for `batch_size`, given the one that suits `base_batch_size`.

    `"linear"` (for SGD) multiplies by the ratio of the sizes, `"sqrt"` (for Adam and its kin) by its square root.

    >>> scale_learning_rate(0.1, batch_size=1024, base_batch_size=256)
    0.4
    >>> scale_learning_rate(0.1, batch_size=1024, base_batch_size=256, rule="sqrt")
    0.2

    Args:
        learning_rate: a number, or a learning-rate schedule of Keras. The result is of the same class, so a model that
            is saved with it loads without bigbatch.
        batch_size: how many samples an update has.
        base_batch_size: how many samples an update had that `learning_rate` was chosen for.
        rule: `"linear"` or `"sqrt"`.
    """
    require_positive("batch_size", batch_size, remedy="Give the samples of an update.")
    require_positive("base_batch_size", base_batch_size, remedy="Give the samples that the rate was chosen for.")
    if rule not in ("linear", "sqrt"):
        raise ValueError(describe('`rule` must be "linear" or "sqrt".', f"rule={rule!r}", "Use linear for SGD."))
    factor = rate_factor(rule, batch_size / base_batch_size)
    if isinstance(learning_rate, (int, float)):
        return learning_rate * factor
    config = learning_rate.get_config() if hasattr(learning_rate, "get_config") else {}
    rates = _RATES.get(type(learning_rate).__name__)
    if rates is None or not type(learning_rate).__module__.startswith("keras."):
        raise TypeError(
            describe(
                "`learning_rate` must be a number or a learning-rate schedule of Keras.",
                f"learning_rate={learning_rate!r}",
                f"Multiply what your schedule returns by {factor:g}.",
            )
        )
    scaled = {name: _times(config[name], factor) for name in rates if config.get(name) is not None}
    return type(learning_rate).from_config({**config, **scaled})


# What is a rate, and not a number of updates or a fraction, in the configuration of each schedule of Keras.
_RATES = {
    "CosineDecay": ("initial_learning_rate", "warmup_target"),
    "CosineDecayRestarts": ("initial_learning_rate",),
    "ExponentialDecay": ("initial_learning_rate",),
    "InverseTimeDecay": ("initial_learning_rate",),
    "PiecewiseConstantDecay": ("values",),
    "PolynomialDecay": ("initial_learning_rate", "end_learning_rate"),
}


def _times(rate: Any, factor: float) -> Any:
    return [value * factor for value in rate] if isinstance(rate, (list, tuple)) else rate * factor
