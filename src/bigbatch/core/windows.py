"""How many batches the next update joins: decided in plain Python, between two updates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, Union

from bigbatch.core.errors import describe, require_positive, require_size
from bigbatch.core.schedules import rate_factor, require_rule

BatchesPerUpdate = Union[int, Callable[[int], int]]


@dataclass(frozen=True)
class Windows:
    """What the user said about windows.

    Args:
        batches_per_update: a number, or a callable from the number of updates made to a number.
        samples_per_update: a window closes when it has so many samples; then `batches_per_update` is 1.
        learning_rate_rule: how the applied learning rate follows the window, relative to that of update 0.
    """

    batches_per_update: BatchesPerUpdate = 1
    samples_per_update: int | None = None
    learning_rate_rule: str | None = None

    def __post_init__(self) -> None:
        if not callable(self.batches_per_update):
            kinds = "a positive integer or a callable from updates to one"
            remedy = "Use 1 to make an update of every batch."
            require_positive("batches_per_update", self.batches_per_update, kinds=kinds, remedy=remedy)
        require_size("samples_per_update", self.samples_per_update, off="count batches instead")
        require_rule(self.learning_rate_rule)
        if self.samples_per_update is not None and self.batches_per_update != 1:
            raise ValueError(
                describe(
                    "A window must be counted in batches or in samples.",
                    f"batches_per_update={self.batches_per_update!r}, samples_per_update={self.samples_per_update!r}",
                    "Give one of the two.",
                )
            )

    @property
    def are_batches(self) -> bool:
        """Whether every window is one batch."""
        return self.batches_per_update == 1 and self.samples_per_update is None

    @property
    def are_scheduled(self) -> bool:
        """Whether windows depend on the number of updates made."""
        return callable(self.batches_per_update)

    def num_batches(self, update: int) -> int:
        """The number of batches of an update, checked."""
        if not callable(self.batches_per_update):
            return self.batches_per_update
        number = self.batches_per_update(update)
        if type(number) is not int or number < 1:
            raise ValueError(
                describe(
                    "`batches_per_update` must return a positive integer for every update.",
                    f"batches_per_update({update})={number!r}",
                    "Nothing has changed since the last update; repair the schedule and go on.",
                )
            )
        return number

    def limit(self, update: int) -> tuple[int, int | None]:
        """After how many batches the window of an update closes; or, unless `None`, with how many samples."""
        return self.num_batches(update), self.samples_per_update

    def rate(self, update: int) -> float | None:
        """By what the applied learning rate is multiplied, or `None`."""
        if self.learning_rate_rule is None:
            return None
        # A schedule that adapts has no update 0 to look back to.
        first = getattr(self.batches_per_update, "minimum", None) or self.num_batches(0)
        return rate_factor(self.learning_rate_rule, self.num_batches(update) / first)

    def num_updates(self, update: int, num_batches: int, batch_size: int | None) -> int | None:
        """How many updates an epoch of so many batches makes, from a given one on; `None` where nobody knows."""
        if self.samples_per_update is not None:
            if batch_size is None:
                return None
            return -(-num_batches // -(-self.samples_per_update // batch_size))
        if not callable(self.batches_per_update):
            return -(-num_batches // self.batches_per_update)
        made = 0
        while num_batches > 0:
            num_batches -= self.num_batches(update + made)
            made += 1
        return made
