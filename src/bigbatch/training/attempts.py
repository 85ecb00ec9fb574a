"""One attempt at an update with a micro-batch size that may not fit, and how it leaves no trace if it does not."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from bigbatch.core.errors import AccumulationError, describe
from bigbatch.training import optimizers, replicas, stream
from bigbatch.training.figures import Watch
from bigbatch.training.memory import ELSEWHERE, OutOfMemory, running_out
from bigbatch.training.snapshot import Snapshot, applied_to, held_by, touched, unshare
from bigbatch.training.update import Update, traced

Window = tuple[Any, Any, Any, Any]  # iterator, packed batches, number of batches, factor of the learning rate


class _Attempt:
    """What both kinds have in common."""

    def __init__(self, model: keras.Model) -> None:
        self._model = model
        self._applied: list[tf.Variable] = []  # what changes when an update is applied
        self._others: list[tf.Variable] = []

    def _snapshot(self, function: Any, arguments: Any, is_proven: bool, with_applied: bool) -> Snapshot:
        """Before an attempt. What a proven one touches is known already, and need not be looked for again."""
        if not is_proven:
            known = held_by(self._model) if self._model.run_eagerly else touched(function, *arguments)
            applied = {id(copy) for copy in replicas.copies(applied_to(self._model))}
            self._applied = [variable for variable in replicas.copies(known) if id(variable) in applied]
            self._others = [variable for variable in replicas.copies(known) if id(variable) not in applied]
        return Snapshot(self._others, self._applied if with_applied else [])


class Alone(_Attempt):
    """On one replica: one traced function, so that the sums of gradients are never copied.

    A size that has not been proven may fail while the optimizer is applied, and weights and slots are kept, too. That
    would cost every update a copy of them, so a proven size is trusted to fail, if at all, in a micro-batch.
    """

    def __init__(self, model: keras.Model, pool: bool, size: int, is_batch: bool, watch: Watch) -> None:
        super().__init__(model)
        self._applying = tf.Variable(False, trainable=False)
        update = Update(model, size, pool, self._applying, watch)

        def on_held(iterator: Any, packed: Any, number: Any, rate: Any) -> Any:
            held = stream.Held.unpacked(packed, iterator, number)
            return update.on_batch(held.read(0)) if is_batch else update.finish(update.sum_held(held), rate)

        self._update = traced(model, on_held)

    def run(self, window: Window, is_proven: bool) -> tuple[OutOfMemory, Any]:
        """Makes an update, or leaves everything as it was. Returns the failure and the logs. Context: eager."""
        not_built = [] if is_proven else [each for each in optimizers.optimizers_of(self._model) if not each.built]
        snapshot = self._snapshot(self._update, window, is_proven, with_applied=not is_proven)
        self._applying.assign(False)
        logs = None
        with running_out() as failure:
            unshare(replicas.copies(slot for optimizer in not_built for slot in optimizer.variables))
            logs = self._update(*window)
        if failure and is_proven and bool(self._applying):
            _refuse_half(failure)
        if failure:
            snapshot.restore(with_large=bool(self._applying))
        return failure, logs


class Together(_Attempt):
    """On several replicas: no replica may wait for another one in a collective that has failed, for it never ends.

    So the micro-batches are one traced function, without any collective (but that of denominators, where they must be
    known first); then the workers tell each other how it went; then all of them add up and apply, or none.
    """

    def __init__(self, model: keras.Model, pool: bool, size: int, watch: Watch) -> None:
        super().__init__(model)
        update = Update(model, size, pool, watch=watch)

        def add(iterator: Any, packed: Any, number: Any, rate: Any) -> Any:
            return update.sum_held(stream.Held.unpacked(packed, iterator, number))

        self._add = traced(model, add)
        self._finish = traced(model, update.finish)
        self._ask = traced(model, _add_up)

    def run(self, window: Window, is_proven: bool) -> tuple[OutOfMemory, Any]:
        """As above, on all workers or on none."""
        snapshot = self._snapshot(self._add, window, is_proven, with_applied=False)
        sums = None
        with running_out() as failure:
            sums = self._add(*window)
        if self._is_anywhere(bool(failure)):
            snapshot.restore(with_large=False)
            failure.message = failure.message or ELSEWHERE
            return failure, None
        with running_out() as failure:
            return failure, self._finish(sums, window[-1])
        _refuse_half(failure)
        return failure, None

    def _is_anywhere(self, failed: bool) -> bool:
        if not isinstance(self._model.distribute_strategy, tf.distribute.MultiWorkerMirroredStrategy):
            return failed
        return bool(self._ask(tf.constant(failed, tf.float32)) > 0)


def _add_up(flag: Any) -> Any:
    return replicas.of_first(replicas.each(lambda flag: replicas.all_reduce([flag]), flag))[0]


def _refuse_half(failure: OutOfMemory) -> None:
    raise AccumulationError(
        describe(
            "There must be memory for the optimizer to apply an update.",
            f"an update that needs {failure.needed()}, and that some variables may have received already",
            "Restore a checkpoint, and free memory on the device or use an optimizer with fewer slots.",
        )
    )
