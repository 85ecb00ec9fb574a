"""Updates whose loss sees the outputs of the whole batch: the model's own `train_step`, whose forward pass is in two.

    outputs = model(x)                # in micro-batches, differentiable: `two_passes`
    loss = compute_loss(y, outputs)   # every sample with every other
    optimizer.apply(gradients)

On several replicas, each runs its own samples through the model and has the outputs of all: the loss is that of one
device, whoever couples what.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import keras
import tensorflow as tf

from bigbatch.core.errors import AccumulationError, describe
from bigbatch.training import batches, keras_private, optimizers, replicas, stream
from bigbatch.training.figures import Figures, squared_norm
from bigbatch.training.gathering import Mine
from bigbatch.training.micro_batch import python_function
from bigbatch.training.overriding import overridden
from bigbatch.training.two_passes import TwoPasses
from bigbatch.training.update import Update


class WholeBatch:
    """Stands in for `Update`. Eager or traced.

    Args:
        model: whose `train_step`.
        micro_batch_size: samples in memory at a time.
        pool: whether batch-norm statistics move once.
        figures: where to leave those of an update, or `None`.
    """

    def __init__(self, model: keras.Model, micro_batch_size: int, pool: bool, figures: Figures | None = None) -> None:
        self._model = model
        self._size = micro_batch_size
        self._pool = pool
        self._figures = figures
        self._is_built = False
        self._of_replica = threading.local()  # every replica is a thread

    def on_batch(self, batch: Any) -> Any:
        """One update on one batch; returns its logs. Context: the only replica."""
        batch = batches.without_optionals(batch)
        num_samples = batches.num_samples(batch)
        self._build(batch)
        with self._in_two_passes(), self._watched(), optimizers.applying(self._model):
            logs = python_function(self._model.train_step)(batch)
        self._record(num_samples, -(-num_samples // self._size))
        return logs

    def on_window(self, iterator: Any, limit: stream.Limit, rate: Any) -> tuple[Any, Any]:
        """One update on the next batches, joined; returns its logs and their number. Context: cross-replica."""
        batch = batches.without_optionals(iterator.get_next())
        held = stream.hold(iterator, batch, limit)
        with optimizers.learning_rate_times(self._model, rate):
            if replicas.number() == 1:
                return self.on_batch(held.joined()), held.num_batches
            together = _applying_together(self._model)
            with self._in_two_passes(), self._watched(), optimizers.applying(self._model), together:
                logs = replicas.each(self._on_replica, held.joined())
            return replicas.of_first(logs), held.num_batches

    def _on_replica(self, batch: Any) -> Any:
        """Context: replica. They take turns when they add up, so that none may override what the others use."""
        mine = self._of_replica.mine = Mine(batch)
        with replicas.alone():
            logs = python_function(self._model.train_step)(mine.of_all)
        self._record(mine.total, mine.num_micro_batches(self._size))
        return logs

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Takes the norm of what optimizers are handed, if somebody monitors it."""

        def see(given: optimizers.Application) -> optimizers.Application:
            square = squared_norm(given.optimizer, given.variables, given.gradients)
            self._of_replica.squares = [*getattr(self._of_replica, "squares", []), square]
            return given

        with nullcontext() if self._figures is None else optimizers.seen(self._model, see):
            yield

    def _record(self, num_samples: Any, num_micro_batches: Any) -> None:
        if self._figures is not None:
            squares, self._of_replica.squares = self._of_replica.squares, []
            self._figures.record(num_samples, num_samples, num_micro_batches, squares)

    @contextmanager
    def _in_two_passes(self) -> Iterator[None]:
        original, calls = self._model.call, []

        def call(*args: Any, **kwargs: Any) -> Any:
            calls.append(args)
            mine = getattr(self._of_replica, "mine", None)
            passes = TwoPasses(self._model, original, self._size, pool=self._pool, mine=mine)
            outputs = passes(*args, **kwargs)
            keras_private.set_losses(self._model, [] if passes.loss is None else [passes.loss])
            return outputs

        with overridden(self._model, call=call):
            yield
        if not calls:
            raise AccumulationError(
                describe(
                    "`train_step` must call the model for its forward pass to be split.",
                    f"{type(self._model).__name__}.train_step, which calls only parts of it",
                    "Call these parts in `call`, and `self(x, training=True)` in `train_step`.",
                )
            )

    def _build(self, batch: Any) -> None:
        """What is lazy, which a loop could not build."""
        if not self._is_built:
            part = batches.take(batch, 0, tf.minimum(self._size, batches.num_samples(batch)))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of losses that would see only this part
                Update(self._model, None, self._pool).look_at(part)
            self._is_built = True


@contextmanager
def _applying_together(model: keras.Model) -> Iterator[None]:
    """Lets replicas hear of each other while an optimizer applies, which takes them out of `alone`."""

    def applying(optimizer: keras.optimizers.Optimizer) -> Any:
        original = optimizer.apply

        def apply(*args: Any, **kwargs: Any) -> Any:
            with replicas.together():
                return original(*args, **kwargs)

        return apply

    with ExitStack() as stack:
        for optimizer in optimizers.optimizers_of(model):
            stack.enter_context(overridden(optimizer, apply=applying(optimizer)))
        yield
