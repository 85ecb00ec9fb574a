"""One update: a loop over micro-batches, then one application of the optimizer.

    for micro_batch in split(batch, micro_batch_size):
        sums = sums + weight(micro_batch) * gradients(micro_batch)
    optimizer.apply(sums / sum_of_weights)

Two levels run inside one traced function: the *update*, and in its loop the *micro-batch*, a nested `tf.function` that
is traced once and compiled by XLA if the model is. XLA around the loop would cost many times the compiled micro-batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from bigbatch.training import batch_norm, batches, finishing, keras_private, optimizers, replicas, stream
from bigbatch.training.figures import NOBODY, Watch
from bigbatch.training.micro_batch import Contribution, Outline, require_same_gradients, run
from bigbatch.training.micro_batches import MicroBatch, MicroBatches
from bigbatch.training.sums import Sums, added_up, merge, start, tensors, total
from bigbatch.training.survey import is_built, survey


class Update:
    """Stands in for `train_step`, on all replicas. Eager or traced.

    Args:
        model: whose `train_step`.
        micro_batch_size: samples in memory at a time; `None`: a whole batch.
        pool: whether batch-norm statistics move once.
        applying: a variable that is to be true from the moment when a failure would leave half an update behind.
        watch: what is to be found out on the way.
    """

    def __init__(
        self,
        model: keras.Model,
        micro_batch_size: int | None,
        pool: bool,
        applying: tf.Variable | None = None,
        watch: Watch = NOBODY,
    ) -> None:
        self._model = model
        self._size = micro_batch_size
        self._pool = pool
        self._applying = applying
        self._watch = watch
        # Both by whether the samples of the update are known to its micro-batches. Traces are cached, and so are these.
        self._outlines: dict[bool, Outline] = {}
        self._needs_totals: dict[bool, bool] = {}
        self._kinds: Any = None  # shapes and dtypes of the sums
        self._num_counts = 0
        self._run: Any = self._run_micro_batch
        self._counts: Any = self._count_micro_batch
        if not model.run_eagerly:
            self._run = tf.function(self._run, autograph=False, jit_compile=model.jit_compile)
            self._counts = tf.function(self._counts, autograph=False)

    def on_batch(self, batch: Any) -> Any:
        """One update on one batch; returns its logs. Context: the only replica."""
        batch = batches.without_optionals(batch)
        num_samples = batches.num_samples(batch)
        micro_batches = self._split(batch, num_samples)
        totals = self._count(micro_batches) if self._must_count(micro_batches.head()) else ()
        sums = self._add_batch(micro_batches, totals)
        with optimizers.applying(self._model):
            logged = self._finish(sums, True, num_samples)
        return finishing.logs(self._outlines[True], logged)

    def on_window(self, iterator: Any, limit: stream.Limit, rate: Any) -> tuple[Any, Any]:
        """One update on the next batches of an iterator; returns its logs and the number of batches.

        Context: cross-replica, or the only replica.
        """
        batch = batches.without_optionals(iterator.get_next())
        if self._must_hold(batch):
            held = stream.hold(iterator, batch, limit)
            sums, number = self.sum_held(held), held.num_batches
        else:
            sums, number = self._sum_streamed(iterator, batch, limit)
        return self.finish(sums, rate), number

    def sum_held(self, held: stream.Held) -> Any:
        """The sums of a window that is in memory. Context: as above."""
        counts = self._count_held(held) if self._must_hold(held.read(0)) else None

        def add(batch: Any, sums: Any, counts: Any) -> Sums:
            num_samples, *totals = counts or [None]
            return self._add_batch(self._split(batch, num_samples), tuple(totals), sums)

        return held.fold(lambda *state: replicas.each(add, *state, counts))

    def finish(self, sums: Any, rate: Any) -> Any:
        """Applies what the micro-batches came to; returns the logs. Context: as above."""
        hold = self._needs_totals[False]
        with optimizers.learning_rate_times(self._model, rate), optimizers.applying(self._model):
            logged = replicas.each(lambda sums: self._finish(sums, hold), sums)
        return finishing.logs(self._outlines[hold], replicas.of_first(logged))

    def look_at(self, batch: Any) -> None:
        """Builds what is lazy, refuses what cannot be accumulated, and changes nothing. Context: the only replica."""
        self._must_count(MicroBatches(batch, self._size, batches.num_samples(batch)).head())

    def _must_hold(self, batch: Any) -> bool:
        replicas.each(lambda batch: self._must_count(self._split(batch).head()), batch)
        return self._needs_totals[False]

    def _sum_streamed(self, iterator: Any, first: Any, limit: stream.Limit) -> tuple[Any, Any]:
        def add(batch: Any, sums: Any) -> Any:
            return replicas.each(lambda batch, sums: self._add_batch(self._split(batch), (), sums), batch, sums)

        return stream.fold(iterator, first, limit, add)

    def _count_held(self, held: stream.Held) -> Any:
        """The samples and denominators of a window, on every replica."""

        def count(batch: Any, counts: Any) -> list[Any]:
            more = [batches.num_samples(batch), *self._count(self._split(batch))]
            return more if counts is None else [a + b for a, b in zip(counts, more)]

        return replicas.each(total, held.fold(lambda *state: replicas.each(count, *state)))

    def _split(self, batch: Any, num_samples: Any = None) -> MicroBatches:
        return MicroBatches(batch, self._size or self._static_size(batch), num_samples)

    def _static_size(self, batch: Any) -> int | None:
        """The samples of every batch of a trace, if it knows them: each weighs 1 then, and no gradient is scaled."""
        # Replicas may have batches of different sizes, and noise is counted in samples where batches are not split.
        if tf.executing_eagerly() or replicas.number() > 1 or self._watch.has_noise:
            return None
        return batches.static_num_samples(batch) or None

    def _add_batch(self, micro_batches: MicroBatches, totals: tuple[Any, ...], sums: Sums | None = None) -> Sums:
        """One more batch; the first one in halves if noise is watched, for it may be the only one, and it takes two.

        Halves of a batch must not be normalised apart.
        """
        in_halves = self._watch.has_noise and sums is None and not batch_norm.layers_in_training(self._model)
        for part in micro_batches.halves() if in_halves else [micro_batches]:
            sums = self._add(part, totals, sums)
        assert sums is not None
        return sums

    def _add(self, micro_batches: MicroBatches, totals: tuple[Any, ...], sums: Sums | None) -> Sums:
        """Every micro-batch once. Nothing of one is alive while the next one runs but the sums."""

        def add_all() -> Sums:
            head = micro_batches.head()
            contribution = self._run(head.data, head.share, totals)
            outline = self._outlines[head.share is not None]
            seen = micro_batches.seen() if self._watch.figures else []
            if sums is None:
                started = start(contribution, head.weight, outline, seen, self._watch.has_noise)
            else:
                started = merge(sums.having_seen(seen), contribution, head.weight, outline)
            return micro_batches.loop(
                lambda part, sums: merge(sums, self._run(part.data, part.share, totals), part.weight, outline), started
            )

        return _unless_empty(micro_batches, add_all, lambda: self._nothing(micro_batches) if sums is None else sums)

    def _count(self, micro_batches: MicroBatches) -> tuple[Any, ...]:
        """The denominators of a whole batch. When traced, all but the masks' own operations is pruned."""

        def count_all() -> tuple[Any, ...]:
            head = micro_batches.head()
            return micro_batches.loop(
                lambda part, totals: tuple(a + b for a, b in zip(totals, self._counts(part.data, part.share))),
                self._counts(head.data, head.share),
            )

        return _unless_empty(micro_batches, count_all, lambda: (tf.zeros([], tf.float64),) * self._num_counts)

    def _must_count(self, head: MicroBatch) -> bool:
        """Whether the update's denominators must be known before its first micro-batch. Surveys the model once."""
        known = head.share is not None
        if known not in self._needs_totals:
            survey(self._model, lambda: self._look(head, known))
            self._needs_totals[known] = self._outlines[known].needs_totals
        return self._needs_totals[known]

    def _look(self, head: MicroBatch, known: bool) -> list[Any]:
        """Runs one micro-batch; returns the graphs that it is traced in, if they are to be used again."""
        arguments = head.data, head.share, ()
        traces = []
        if hasattr(self._run, "get_concrete_function") and is_built(self._model):
            traces.append(self._run.get_concrete_function(*arguments).graph)
        contribution = (self._run if traces else self._run_micro_batch)(*arguments)
        seen = [tf.zeros([], tf.float64)] * 2 if self._watch.figures else []
        sums = start(contribution, head.weight, self._outlines[known], seen, self._watch.has_noise)
        self._kinds = tf.nest.map_structure(tf.TensorSpec.from_tensor, sums)
        self._num_counts = len(contribution.counts)
        return traces

    def _nothing(self, empty: MicroBatches) -> Sums:
        # The zeros are made of the number of samples: a constant would keep the rows that are added to it in place.
        zero = empty.num_samples
        return tf.nest.map_structure(lambda kind: tf.fill(kind.shape, tf.cast(zero, kind.dtype)), self._kinds)

    def _run_micro_batch(self, data: Any, share: Any, totals: tuple[Any, ...]) -> Contribution:
        outline, contribution = run(self._model, data, share=share, totals=totals, pool=self._pool)
        known = share is not None
        if known in self._outlines and not tf.executing_eagerly():
            require_same_gradients(self._outlines[known], outline)
        self._outlines[known] = outline
        return contribution

    def _count_micro_batch(self, data: Any, share: Any) -> tuple[Any, ...]:
        with keras_private.without_effects(self._model):
            _, contribution = run(self._model, data, share=share, totals=(), pool=self._pool)
        return tuple(contribution.counts)

    def _finish(self, sums: Sums, known: bool, num_samples: Any = None) -> list[Any]:
        """Applies the means, in the order in which `train_step` applied, and returns the logged tensors."""
        outline = self._outlines[known]
        sums = added_up(sums)
        # Nothing changes before all is known: a failed micro-batch must not leave half an update behind.
        with tf.control_dependencies(tensors(sums)), tf.control_dependencies(self._note_applying()):
            finishing.apply(outline, sums, self._watch, self._size)
            for call, moments in zip(outline.norms, sums.moments):
                batch_norm.move(call, moments)
            finishing.track(self._model, outline, sums, num_samples)
            return finishing.loose_logs(outline, sums)

    def _note_applying(self) -> list[Any]:
        return [] if self._applying is None else [self._applying.assign(True)]


def traced(model: keras.Model, function: Callable[..., Any]) -> Any:
    """The function as the model wants it run: traced, unless it is run eagerly."""
    return function if model.run_eagerly else tf.function(function, reduce_retracing=True, autograph=False)


def _unless_empty(micro_batches: MicroBatches, do: Callable[[], Any], otherwise: Callable[[], Any]) -> Any:
    """The end of the data may leave a replica without a sample, and the mean over none is 0/0."""
    if not micro_batches.may_be_empty:
        return do()
    if isinstance(micro_batches.num_samples, int):
        return do() if micro_batches.num_samples else otherwise()
    return tf.cond(micro_batches.num_samples > 0, do, otherwise)
