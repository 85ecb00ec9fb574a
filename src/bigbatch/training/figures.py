"""What callbacks show of an update, left in variables by the update itself; without them, nothing is computed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from bigbatch.training import batches, gradients, losses, optimizers, replicas
from bigbatch.training.micro_batch import python_function
from bigbatch.training.sums import float64


class Figure(NamedTuple):
    """The four numbers of one update, or their sums over several."""

    samples: float
    weight: float
    micro_batches: float
    gradient_norm: float


class Figures:
    """The figures of the last update, and their sums since `reset`. Every replica has them, and all are alike."""

    def __init__(self, model: keras.Model) -> None:
        with replicas.scope_of(model):
            self._last, self._sums, self._updates = (_variable(zeros) for zeros in ([0.0] * 4, [0.0] * 4, 0.0))
            self._noise_and_signal = _variable([0.0] * 2)

    def record(self, samples: Any, weight: Any, micro_batches: Any, squares: list[Any]) -> None:
        """Notes one update. Context: replica; eager or traced."""
        figures = tf.stack([*map(float64, (samples, weight, micro_batches)), tf.sqrt(tf.add_n(squares))])
        self._last.assign(figures, read_value=False)
        self._sums.assign_add(figures, read_value=False)
        self._updates.assign_add(1.0, read_value=False)

    def record_noise(self, noise: Any, signal: Any) -> None:
        """Notes what `core.noise` smooths. Context: as above."""
        self._noise_and_signal.assign(tf.stack([noise, signal]), read_value=False)

    def reset(self) -> None:
        """Context: eager."""
        for copy in replicas.copies([self._sums, self._updates]):
            copy.assign(tf.zeros_like(copy))

    def read(self) -> tuple[int, Figure, Figure]:
        """The number of updates since `reset`, the last one's figures, and the sums of all. Context: eager."""
        last, sums, updates = (replicas.copies([each])[0].numpy() for each in (self._last, self._sums, self._updates))
        return int(updates), Figure(*last.tolist()), Figure(*sums.tolist())

    def read_noise(self) -> tuple[float, float]:
        """The noise and the signal of the last update. Context: eager."""
        noise, signal = replicas.copies([self._noise_and_signal])[0].numpy().tolist()
        return noise, signal


class Watch(NamedTuple):
    """What is watched of updates: their figures, and the noise in their gradients, too."""

    figures: Figures | None = None
    has_noise: bool = False


NOBODY = Watch()


def _variable(value: Any) -> Any:
    # Written by every replica for itself, without waiting for the others.
    synchronization, aggregation = tf.VariableSynchronization.ON_READ, tf.VariableAggregation.ONLY_FIRST_REPLICA
    return tf.Variable(
        value, trainable=False, dtype=tf.float64, synchronization=synchronization, aggregation=aggregation
    )


def squared_norm(optimizer: keras.optimizers.Optimizer, variables: list[Any], handed: list[Any]) -> Any:
    """That of the gradients that an optimizer is handed, without the factor that it has put on the loss."""
    parts = [
        float64(2 * tf.nn.l2_loss(gradients.start(gradient, 1.0, variable)))
        for variable, gradient in zip(variables, handed)
        if gradient is not None and not getattr(variable, "overwrite_with_gradient", False)
    ]
    return tf.add_n([tf.zeros([], tf.float64), *parts]) / tf.square(optimizers.loss_scale(optimizer))


def on_whole_batch(model: keras.Model, figures: Figures) -> Callable[[Any], Any]:
    """Keras' own update of a whole batch, watched. Context: the only replica."""

    def watched(batch: Any) -> tuple[Any, Any, list[Any]]:
        terms, squares = losses.Terms(share=None, is_whole=True), []

        def see(given: optimizers.Application) -> optimizers.Application:
            squares.append(squared_norm(given.optimizer, given.variables, given.gradients))
            return given

        with optimizers.seen(model, see), losses.weighed(model, terms):
            logs = python_function(model.train_step)(batch)
        return logs, terms.weight() if terms.counts else None, squares

    run = watched if model.run_eagerly else tf.function(watched, autograph=False, jit_compile=model.jit_compile)

    def update(batch: Any) -> Any:
        batch = batches.without_optionals(batch)
        logs, weight, squares = run(batch)
        samples = batches.num_samples(batch)
        figures.record(samples, samples if weight is None else weight, 1, squares)
        return logs

    return update
