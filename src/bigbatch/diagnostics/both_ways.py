"""One update of a model on the whole batch and in micro-batches, and what each came to.

The whole batch is plain Keras: the model's own `train_step`, once. Everything that an update changes is as before when
it is over.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from bigbatch.training import optimizers, replicas, snapshot, stream
from bigbatch.training.micro_batch import python_function
from bigbatch.training.update import Update, traced
from bigbatch.training.whole_batch import WholeBatch

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Outcome:
    """What an update came to, by kind and name; of weights, how far they moved."""

    gradients: Arrays
    weights: Arrays
    optimizer: Arrays
    statistics: Arrays
    logs: Arrays

    def kinds(self) -> dict[str, Arrays]:
        return {
            "gradient": self.gradients,
            "weight": self.weights,
            "optimizer": self.optimizer,
            "statistic": self.statistics,
            "log": self.logs,
        }


class BothWays:
    """Runs updates of a built model. Context: eager.

    Args:
        model: compiled and built, with its optimizers.
        window: the batches that the update joins.
        update: in micro-batches.
    """

    def __init__(self, model: keras.Model, window: Sequence[Any], update: Update | WholeBatch) -> None:
        self.model = model
        self.window = window
        self.batch = tf.nest.map_structure(_joined, *window)
        self.num_updates = 0
        self._names: list[str] = []
        self._update = update
        self._accumulate = traced(model, self._accumulated_update)
        self._initial = [(each, each.numpy()) for each in model.trainable_variables]
        self._kept = snapshot.Snapshot([], self._variables())

    def whole(self, context: AbstractContextManager[Any] | None = None) -> Outcome:
        """An update of plain Keras, traced within a context."""
        jit_compile = self.model.jit_compile and self.model.distribute_strategy.num_replicas_in_sync == 1
        step = functools.partial(self._whole_update, context or nullcontext())
        if not self.model.run_eagerly:
            step = tf.function(step, autograph=False, jit_compile=jit_compile)
        return self._outcome(lambda: step(self.batch))

    def accumulated(self) -> Outcome:
        """The same update in micro-batches."""
        return self._outcome(lambda: self._accumulate(self._iterator()))

    def with_last_digits_moved(self, context: AbstractContextManager[Any] | None, epsilon: float) -> Outcome:
        """A whole update after every weight has moved by its last digit, up or down."""
        random = np.random.default_rng(0)
        for variable in self.model.trainable_variables:
            value = variable.numpy()
            if np.issubdtype(np.asarray(value).dtype, np.floating) or value.dtype.name == "bfloat16":
                signs = random.choice([-1.0, 1.0], value.shape)
                variable.assign((value.astype("float64") * (1.0 + epsilon * signs)).astype(value.dtype))
        return self.whole(context)

    def _whole_update(self, context: AbstractContextManager[Any], batch: Any) -> tuple[Any, Any]:
        applied = _Applied()
        with context, optimizers.seen(self.model, applied.note):
            if self.model.distribute_strategy.num_replicas_in_sync > 1:
                logs = self._on_every_replica(batch)
            else:
                logs = python_function(self.model.train_step)(batch)
            self._names = applied.names  # which cannot leave a traced function
            return logs, applied.gradients

    def _on_every_replica(self, batch: Any) -> Any:
        """Every replica is given the whole batch, as if it were alone."""

        def update(batch: Any) -> Any:
            with optimizers.caught(self.model) as applications, replicas.alone():
                logs = python_function(self.model.train_step)(batch)
            for each in applications:
                each.optimizer.apply(each.gradients, each.variables)
            return logs

        with optimizers.applying(self.model):
            return replicas.of_first(replicas.each(update, batch))

    def _accumulated_update(self, iterator: Any) -> tuple[Any, Any]:
        applied = _Applied()
        with optimizers.seen(self.model, applied.note):
            is_batch = len(self.window) == 1
            if is_batch and replicas.number() == 1:
                logs = self._update.on_batch(iterator.get_next())
            else:
                limit = stream.ONE_BATCH if is_batch else stream.Limit(tf.constant(len(self.window)) + 0)
                logs, _ = self._update.on_window(iterator, limit, None)
            self._names = applied.names
            return logs, applied.gradients

    def _iterator(self) -> Any:
        # Without what is not there, which a dataset cannot hold.
        present = [tuple(part for part in batch if part is not None) for batch in self.window]
        parts = [tf.data.Dataset.from_tensors(batch) for batch in present]
        dataset = functools.reduce(lambda joined, part: joined.concatenate(part), parts)
        strategy = self.model.distribute_strategy
        return iter(strategy.experimental_distribute_dataset(dataset) if replicas.number() > 1 else dataset)

    def _variables(self) -> list[Any]:
        """All that an update may change, also what the model does not hold: a trace tells."""
        with replicas.scope_of(self.model):
            found = replicas.copies(snapshot.held_by(self.model))
            if not self.model.run_eagerly:
                found += snapshot.touched(self._accumulate, self._iterator())
        return list({id(variable): variable for variable in found}.values())

    def _outcome(self, update: Callable[[], Any]) -> Outcome:
        self.num_updates += 1
        try:
            for metric in self.model.metrics:
                metric.reset_state()
            with replicas.scope_of(self.model):
                logs, gradients = update()
            return self._read(logs, gradients)
        finally:
            self.restore()

    def restore(self) -> None:
        """Puts everything back."""
        self._kept.restore(with_large=True)

    def _read(self, logs: Any, gradients: Any) -> Outcome:
        model = self.model
        slots = [each for optimizer in optimizers.optimizers_of(model) for each in optimizer.variables]
        return Outcome(
            gradients=_named(zip(self._names, gradients)),
            weights=_named((each.path, each.numpy() - before) for each, before in self._initial),
            optimizer=_named((each.path, each.numpy()) for each in slots),
            statistics=_named((each.path, each.numpy()) for each in state_of(model)),
            logs=_named(_flat(logs)),
        )


def state_of(layer: keras.layers.Layer) -> list[Any]:
    """What a layer keeps beside its weights; seeds only count draws."""
    return [each for each in layer.non_trainable_variables if "seed_generator" not in each.path]


class FirstReplica:
    """Replicas are threads that do the same, so that one is enough to listen to."""

    def __init__(self) -> None:
        self._thread: int | None = None

    def speaks(self) -> bool:
        self._thread = self._thread or threading.get_ident()
        return self._thread == threading.get_ident()


class _Applied:
    """What optimizers are handed, as tensors of the function that is being traced."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.gradients: list[Any] = []
        self._first = FirstReplica()

    def note(self, given: optimizers.Application) -> optimizers.Application:
        # Keras would square repeated rows of an embedding one by one; in a dense gradient they are added up.
        dense = [None if gradient is None else tf.convert_to_tensor(gradient) for gradient in given.gradients]
        present = [pair for pair in zip(given.variables, dense) if pair[1] is not None and self._first.speaks()]
        self.names += [variable.path for variable, _ in present]
        self.gradients += [gradient for _, gradient in present]
        return replace(given, gradients=dense)


def _flat(logs: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in logs.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}/")
        else:
            yield prefix + name, value


def _named(pairs: Iterable[tuple[str, Any]]) -> Arrays:
    """By name; of two with the same one, the second gets a number."""
    arrays: Arrays = {}
    for name, array in pairs:
        arrays[f"{name} ({len(arrays)})" if name in arrays else name] = np.asarray(array)
    return arrays


def _joined(*parts: Any) -> Any:
    return None if parts[0] is None else tf.concat(parts, 0)
