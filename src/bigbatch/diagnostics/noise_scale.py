"""`noise_scale`: how noisy the gradient of a model is, without training it."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import chain
from typing import Any

import keras

from bigbatch.core.errors import describe, require_fraction, require_size
from bigbatch.core.noise import Smoothed
from bigbatch.core.windows import Windows
from bigbatch.diagnostics.estimate import Estimate
from bigbatch.diagnostics.samples import build, require_compiled, require_one_replica, tensors
from bigbatch.training import batches, replicas, snapshot
from bigbatch.training.figures import Figures, Watch
from bigbatch.training.optimizers import optimizers_of
from bigbatch.training.overriding import overridden
from bigbatch.training.update import Update, traced
from bigbatch.training.watching import require_noise

_FACTOR = 256.0  # on a loss in float16: gradients of 1e-9 to 256 can be told


def noise_scale(
    model: keras.Model, dataset: Iterable[Any], *, micro_batch_size: int | None = None, confidence: float = 0.95
) -> Estimate:
    """Measures the gradient noise scale of a model as it is: the batch size beyond which larger ones stop paying.

        print(bigbatch.noise_scale(model, dataset.take(100), micro_batch_size=16))

    Every batch is run forward and backward in micro-batches, and nothing is applied. The model is not changed.

    Args:
        model: a compiled model, accumulated or not.
        dataset: batches as `fit` is given them: a `tf.data.Dataset` or any iterable, finite. All of it is used; a
            hundred batches are usually enough.
        micro_batch_size: samples at a time; `None`: halves of batches.
        confidence: how often the interval is to hold the truth, between 0 and 1.

    Raises:
        ValueError, TypeError: for arguments that are out of range, for data without two micro-batches, and for a model
            with `whole_batch_loss`.
        AccumulationError: for a model of several replicas.
    """
    require_compiled(model)
    require_size("micro_batch_size", micro_batch_size, off="run batches in halves")
    require_fraction("confidence", confidence)
    require_one_replica(
        model,
        "The noise of a model that does not train must be measured on one replica.",
        "Use the callback `NoiseScale` while it trains, or the same model made outside of the strategy.",
    )
    given = iter(dataset)
    first = next(given, None)
    _require_samples(first is not None, "no batch")
    build(model, first)
    accumulation = vars(model).get("_accumulation")
    require_noise(model, micro_batch_size, Windows(), accumulation is not None and accumulation.has_whole_batch_loss)
    figures, smoothed = Figures(model), Smoothed(decay=1.0)
    step = traced(model, Update(model, micro_batch_size, True, watch=Watch(figures, True)).on_batch)
    sizes = []
    with _kept_as_it_is(model):
        for batch in chain([first], given):
            step(tensors(batch))
            sizes.append(int(batches.num_samples(batch)))
            smoothed.add(*figures.read_noise())
    _require_samples(smoothed.num_updates > 0, f"batches of at most {max(sizes)} samples")
    batch_size = statistics.median(sizes)  # a tail is smaller
    return Estimate(
        value=smoothed.value,
        interval=smoothed.interval(confidence),
        confidence=confidence,
        samples_per_update=batch_size if accumulation is None else accumulation.samples_per_update(batch_size),
        num_samples=sum(sizes),
        num_micro_batches=round(figures.read()[2].micro_batches),
    )


@contextmanager
def _kept_as_it_is(model: keras.Model) -> Iterator[None]:
    """Applies nothing, and puts back what forward passes move: metrics, statistics and seeds."""
    kept = snapshot.Snapshot(replicas.copies(snapshot.run_through(model)), [])
    with ExitStack() as stack:
        for optimizer in optimizers_of(model):
            methods: dict[str, Any] = {"apply": lambda *args, **kwargs: None}
            if hasattr(optimizer, "inner_optimizer"):  # whose factor would not fall, for nothing is applied
                methods["scale_loss"] = lambda loss: loss * _FACTOR
            stack.enter_context(overridden(optimizer, **methods))
        try:
            yield
        finally:
            kept.restore(with_large=False)


def _require_samples(holds: bool, received: str) -> None:
    if not holds:
        expected = "`dataset` must have a batch of two micro-batches."
        raise ValueError(describe(expected, received, "Give it batches of two samples or more."))
