"""A forward pass in micro-batches whose outputs can be differentiated as those of the whole batch.

    outputs = concat([model(part) for part in split(x)])      # pass one: activations are forgotten
    loss = any_function_of(outputs)                           # sees every sample
    for part, gradient in split(x), split(d loss / d outputs):
        gradients += vjp(model, part, gradient)               # pass two: one micro-batch of activations at a time

Random layers draw the same numbers in both passes. What layers assign they assign in the first, and batch-norm
statistics move once, by the moments of all micro-batches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from bigbatch.core.weighted import Moments, WeightedSum
from bigbatch.training import batch_norm, batches, gradients, keras_private
from bigbatch.training.gathering import Mine
from bigbatch.training.micro_batches import MicroBatch, MicroBatches
from bigbatch.training.overriding import overridden
from bigbatch.training.sums import float64, moments_as_sums, moments_of_sums
from bigbatch.training.tensorflow_private import not_recording


class _Seen(NamedTuple):
    """What a micro-batch brings in pass one: tensors only, so that it can leave a `tf.function`."""

    outputs: list[Any]
    logits: list[Any]  # of each output, or `None`
    masks: list[Any]  # of each output, or `None`
    loss: Any  # that its layers add, a mean over its samples
    moments: list[Moments]


class TwoPasses:
    """One call of a model, in two passes. Context: replica; eager or traced.

    Args:
        model: whose layers.
        function: what is called in micro-batches: the model's own `call`.
        micro_batch_size: samples at a time.
        pool: whether batch-norm statistics move once.
        mine: on several replicas, which of the samples are this one's; it runs no others.
    """

    def __init__(
        self,
        model: keras.Model,
        function: Callable[..., Any],
        micro_batch_size: int,
        *,
        pool: bool = True,
        mine: Mine | None = None,
    ) -> None:
        self._model = model
        self._function = function
        self._size = micro_batch_size
        self._pool = pool
        self._mine = mine
        self.loss: Any = None  # that layers add
        self._variables = list(model.trainable_variables)
        self._generators = keras_private.seed_generators_of(model)
        self._num_draws = [0] * len(self._generators)
        self._structure: Any = None
        self._norms: list[batch_norm.Call] = []
        self._present = [False] * len(self._variables)  # whether there is a gradient, in any micro-batch
        self._summed: list[bool] = []
        self._adds_loss = False
        self._first: Any = self._run_first
        self._second: Any = self._run_second
        if not model.run_eagerly and not tf.executing_eagerly():
            self._first = tf.function(self._first, autograph=False, jit_compile=model.jit_compile)
            self._second = tf.function(self._second, autograph=False, jit_compile=model.jit_compile)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The outputs; `loss` is then what layers add to it, or `None`."""
        self._arguments = args, kwargs
        batch = [leaf for leaf in tf.nest.flatten((args, kwargs)) if _has_samples(leaf)]
        with not_recording():
            batch = batch if self._mine is None else self._mine.taken(batch)
            seeds = [tf.identity(generator.state.value) for generator in self._generators]
            seen = self._pass_one(batch)
        values = [*seen.outputs, *_present(seen.logits), seen.loss]
        *values, loss = self._differentiable(batch, seeds, values)
        outputs, logits = values[: len(seen.outputs)], iter(values[len(seen.outputs) :])
        for output, like, mask in zip(outputs, seen.logits, seen.masks):
            if like is not None:
                keras_private.set_logits(output, next(logits))
            if mask is not None:
                keras_private.set_keras_mask(output, mask)
        self.loss = tf.cast(loss, keras.config.floatx()) if self._adds_loss else None
        return tf.nest.pack_sequence_as(self._structure, outputs)

    def _differentiable(self, batch: Any, seeds: Any, values: list[Any]) -> list[Any]:
        """The same tensors, whose gradient is pass two."""
        number = len(self._variables)

        @tf.custom_gradient
        def same(*given: Any) -> Any:
            def gradient(*upstream: Any) -> list[Any]:
                return [*self._pass_two(batch, seeds, list(upstream)), *[None] * len(values)]

            return [tf.identity(value) for value in given[number:]], gradient

        return list(same(*[tf.convert_to_tensor(each) for each in self._variables], *values))

    def _pass_one(self, batch: Any) -> _Seen:
        parts = MicroBatches(batch, self._size, None)
        head = parts.head()
        first = self._first(head.data)
        joined = [_started(tensor, parts.number) for tensor in _rows(first)]
        state = tf.constant(1), joined, WeightedSum.of(first.loss, float64(head.weight)), first.moments

        def turn(part: MicroBatch, state: Any) -> Any:
            index, joined, loss, moments = state
            seen = self._first(part.data)
            joined = [array.write(index, tensor) for array, tensor in zip(joined, _rows(seen))]
            moments = [a.merge(b) for a, b in zip(moments, seen.moments)]
            return index + 1, joined, loss.merge(WeightedSum.of(seen.loss, float64(part.weight))), moments

        _, joined, loss, moments = parts.loop(turn, state)
        for call, merged in zip(self._norms, self._of_all(moments)):
            batch_norm.move(call, merged)
        tensors = [array.concat() for array in joined]
        if self._mine is not None:
            tensors = self._mine.gathered(tensors)
            loss = WeightedSum(*self._mine.added_up(list(loss)))
        remaining = iter(tensors)
        outputs, logits, masks = ([None if like is None else next(remaining) for like in likes] for likes in first[:3])
        return _Seen(outputs, logits, masks, loss.mean(), [])

    def _of_all(self, moments: list[Moments]) -> list[Moments]:
        """Those of all replicas."""
        if self._mine is None:
            return moments
        parts = [part for each in moments for part in moments_as_sums(each)]
        sums = iter(self._mine.added_up(parts))
        return [moments_of_sums(next(sums), next(sums), next(sums)) for _ in moments]

    def _pass_two(self, batch: Any, seeds: Any, upstream: list[Any]) -> list[Any]:
        *of_outputs, of_loss = upstream
        num_samples = batches.num_samples(batch) if self._mine is None else self._mine.total
        of_outputs = of_outputs if self._mine is None else self._mine.taken(of_outputs)
        parts = MicroBatches((batch, of_outputs), self._size, num_samples)

        def run(part: MicroBatch, index: Any) -> list[Any]:
            batch, of_outputs = part.data
            return self._second(batch, of_outputs, of_loss * part.share, seeds, index)

        first = run(parts.head(), tf.constant(0))
        having = [variable for variable, is_summed in zip(self._variables, self._summed) if is_summed]
        sums = [gradients.start(each, 1.0, variable) for each, variable in zip(first, having)]

        def turn(part: MicroBatch, state: Any) -> Any:
            index, sums = state
            more = run(part, index)
            return index + 1, [gradients.add(total, each, 1.0) for total, each in zip(sums, more)]

        _, sums = parts.loop(turn, (tf.constant(1), sums))
        present = self._present
        if self._mine is not None:
            sums = self._mine.added_up(sums)
            present = self._mine.any(present) if tf.executing_eagerly() else present
        means = {id(variable): tf.cast(total, variable.dtype) for total, variable in zip(sums, having)}
        return [means[id(each)] if is_present else None for each, is_present in zip(self._variables, present)]

    def _run_first(self, batch: Any) -> _Seen:
        """One micro-batch forward. Notes, once per trace, how often it draws."""
        with ExitStack() as stack:
            self._num_draws = [0] * len(self._generators)
            for place, generator in enumerate(self._generators):
                stack.enter_context(overridden(generator, next=self._counting(place, generator)))
            observations = stack.enter_context(batch_norm.observed(self._model)) if self._pool else []
            outputs = self._call(batch)
        self._structure = tf.nest.map_structure(lambda _: 0, outputs)
        self._norms = [observation.call for observation in observations]
        flat = tf.nest.flatten(outputs)
        masks = [keras_private.get_keras_mask(output) for output in flat]
        losses = keras_private.take_losses_of_samples(self._model)  # which would outlive its trace
        self._adds_loss = bool(losses)
        logits = [keras_private.logits_of(output) for output in flat]
        return _Seen(flat, logits, masks, _total(losses), [observation.moments for observation in observations])

    def _run_second(self, batch: Any, of_outputs: Any, of_loss: Any, seeds: Any, index: Any) -> list[Any]:
        """One micro-batch forward again, and backward. Nothing that it assigns lasts."""
        drawn = [
            (generator.state, seed + tf.cast([0, index * num_draws], seed.dtype))
            for generator, seed, num_draws in zip(self._generators, seeds, self._num_draws)
        ]
        with keras.StatelessScope(state_mapping=drawn, collect_losses=True) as scope, tf.GradientTape() as tape:
            outputs = tf.nest.flatten(self._call(batch))
            logits = [keras_private.logits_of(output) for output in outputs]
            targets = [*outputs, *_present(logits), _total(scope.losses)]
        upstream = [*of_outputs, of_loss]
        found = tape.gradient(targets, [each.value for each in self._variables], output_gradients=upstream)
        self._present = [old or new is not None for old, new in zip(self._present, found)]
        self._summed = gradients.are_summed(found)
        return gradients.summed(found, self._variables)

    def _call(self, batch: Any) -> Any:
        samples = iter(batch)
        leaves = [next(samples) if _has_samples(leaf) else leaf for leaf in tf.nest.flatten(self._arguments)]
        args, kwargs = tf.nest.pack_sequence_as(self._arguments, leaves)
        return self._function(*args, **kwargs)

    def _counting(self, place: int, generator: Any) -> Callable[..., Any]:
        original = generator.next

        def next_seed(ordered: bool = True) -> Any:
            self._num_draws[place] += 1
            return original(ordered)

        return next_seed


def _started(tensor: Any, number: Any) -> tf.TensorArray:
    """An array for the tensors of all micro-batches, with the first."""
    shape = [None, *tensor.shape[1:]]
    array = tf.TensorArray(tensor.dtype, number, infer_shape=False, element_shape=shape, clear_after_read=False)
    return array.write(0, tensor)


def _total(losses: Sequence[Any]) -> Any:
    return sum(map(float64, losses), tf.zeros([], tf.float64))


def _rows(seen: _Seen) -> list[Any]:
    """The tensors that have a row for every sample."""
    return [*seen.outputs, *_present(seen.logits), *_present(seen.masks)]


def _has_samples(leaf: Any) -> bool:
    return tf.is_tensor(leaf) and leaf.shape.rank != 0


def _present(values: list[Any]) -> list[Any]:
    return [value for value in values if value is not None]
