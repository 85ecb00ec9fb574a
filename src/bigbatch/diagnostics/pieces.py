"""Layers that are called once per micro-batch while everything else sees the whole batch.

What such a layer makes of the batch is what it makes of it in accumulation. So a whole batch with *all* layers that
mix samples in pieces trains as accumulation does, and with *one* of them it shows what that one is responsible for.
Random layers draw what they would draw in the micro-batches: a seed is a number that counts draws.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from bigbatch.core.split import head_size
from bigbatch.diagnostics.both_ways import FirstReplica
from bigbatch.training import batches, keras_private
from bigbatch.training.overriding import overridden


class Piece(NamedTuple):
    """A micro-batch: where it is in the whole batch, and how many its replica has run before it."""

    start: int
    size: int
    turn: int


def cut(batch_sizes: Iterable[int], micro_batch_size: int | None, num_replicas: int) -> list[Piece]:
    """The micro-batches of a window, in the order of its samples.

    >>> [tuple(piece) for piece in cut([5, 2], 2, 1)]
    [(0, 1, 0), (1, 2, 1), (3, 2, 2), (5, 2, 3)]
    >>> [tuple(piece) for piece in cut([5], None, 2)]
    [(0, 3, 0), (3, 2, 0)]
    """
    pieces, start, turns = [], 0, [0] * num_replicas
    for batch_size in batch_sizes:
        for replica in range(num_replicas):
            rest = batch_size // num_replicas + (replica < batch_size % num_replicas)
            while rest:
                size = rest if micro_batch_size is None else head_size(rest, micro_batch_size)
                pieces.append(Piece(start, size, turns[replica]))
                start, rest, turns[replica] = start + size, rest - size, turns[replica] + 1
    return pieces


@dataclass
class Passed:
    """What a pass of one micro-batch showed: how long the arguments of each call are, and how often seeds are used."""

    first: FirstReplica = field(default_factory=FirstReplica)
    lengths: dict[int, list[list[int | None]]] = field(default_factory=dict)
    num_draws: dict[int, int] = field(default_factory=dict)
    depth: int = 0  # of layers in layers
    draws_outside: bool = False  # of any layer: nobody can call that in pieces

    def of_call(self, layer: keras.layers.Layer, index: int) -> list[int | None] | None:
        """Those of the `index`-th call of a layer, in whichever pass it is."""
        calls = self.lengths.get(id(layer))
        return calls[index % len(calls)] if calls else None


class Pieces:
    """Calls chosen layers in pieces.

    Args:
        model: whose layers.
        pieces: the micro-batches.
        passed: what a pass of the first of them showed.
    """

    def __init__(self, model: keras.Model, pieces: Sequence[Piece], passed: Passed) -> None:
        self.pieces = pieces
        self._num_samples = sum(piece.size for piece in pieces)
        self._passed = passed
        self._generators = keras_private.seed_generators_of(model)
        self._counts: dict[int, int] = {}
        self._turn = 0

    @contextmanager
    def at_turn(self, turn: int) -> Iterator[None]:
        """Draws what the micro-batch of that turn draws."""
        with ExitStack() as stack:
            for generator in self._generators:
                stack.enter_context(overridden(generator, next=self._replaying(generator)))
            self._counts, self._turn = {}, turn
            yield
            self._turn = 0

    @contextmanager
    def of(self, layers: Iterable[keras.layers.Layer]) -> Iterator[None]:
        """Calls these layers in pieces."""
        with self.at_turn(0), ExitStack() as stack:
            for layer in layers:
                stack.enter_context(overridden(layer, call=self._in_pieces(layer)))
            yield

    @property
    def drawn(self) -> dict[int, int]:
        """How often each seed was used in this pass."""
        return dict(self._counts)

    @drawn.setter
    def drawn(self, counts: dict[int, int]) -> None:
        self._counts = dict(counts)

    def call(self, layer: keras.layers.Layer, index: int, function: Any, args: Any, kwargs: Any) -> Any:
        """The outputs of the `index`-th call of a layer, joined from those of its pieces."""
        lengths = self._passed.of_call(layer, index)
        leaves = tf.nest.flatten((args, kwargs))
        if lengths is None or len(lengths) != len(leaves):
            return function(*args, **kwargs)
        of_samples = [length is not None and length != leaf.shape[0] for leaf, length in zip(leaves, lengths)]
        if not any(of_samples):
            return function(*args, **kwargs)
        drawn, outputs, losses = self.drawn, [], []
        earlier = keras_private.take_losses_of_samples(layer)
        for piece in self.pieces:
            self.drawn, self._turn = drawn, piece.turn
            part = [self._part(leaf, piece) if cuts else leaf for leaf, cuts in zip(leaves, of_samples)]
            part_args, part_kwargs = tf.nest.pack_sequence_as((args, kwargs), part)
            outputs.append(function(*part_args, **part_kwargs))
            losses += [loss * self.share(piece) for loss in keras_private.take_losses_of_samples(layer)]
        self._turn = 0
        keras_private.set_losses(layer, earlier + losses)
        return tf.nest.map_structure(_joined, *outputs)

    def share(self, piece: Piece) -> float:
        """Its part of all samples."""
        return piece.size / self._num_samples

    def _part(self, leaf: Any, piece: Piece) -> Any:
        # A layer may be handed several rows of each sample.
        rows = int(leaf.shape[0]) // self._num_samples
        return batches.take(leaf, piece.start * rows, piece.size * rows)

    def _in_pieces(self, layer: keras.layers.Layer) -> Callable[..., Any]:
        original, number = layer.call, count()

        def call(*args: Any, **kwargs: Any) -> Any:
            return self.call(layer, next(number), original, args, kwargs)

        return call

    def _replaying(self, generator: Any) -> Callable[..., Any]:
        def next_seed(ordered: bool = True) -> Any:
            before = self._counts.get(id(generator), 0)
            self._counts[id(generator)] = before + 1
            drawn = self._turn * self._passed.num_draws.get(id(generator), 0) + before
            seed = generator.state.value
            return seed + tf.cast([0, drawn], seed.dtype)

        return next_seed


@contextmanager
def recording(model: keras.Model) -> Iterator[Passed]:
    """Notes what a pass of a micro-batch shows."""
    passed = Passed()
    with ExitStack() as stack:
        for layer in callable_layers(model):
            stack.enter_context(overridden(layer, call=_noting_lengths(layer, passed)))
        for generator in keras_private.seed_generators_of(model):
            stack.enter_context(overridden(generator, next=_noting_draws(generator, passed)))
        yield passed


def callable_layers(model: keras.Model) -> list[keras.layers.Layer]:
    """All layers but the insides of recurrent ones, which are called once per position and share their draws."""
    layers = list(keras_private.flatten_layers(model))
    insides = {
        id(inside)
        for layer in layers
        if isinstance(layer, keras.layers.RNN)
        for inside in keras_private.flatten_layers(layer)
        if inside is not layer
    }
    return [layer for layer in layers if id(layer) not in insides]


def _noting_lengths(layer: keras.layers.Layer, passed: Passed) -> Callable[..., Any]:
    original = layer.call

    def call(*args: Any, **kwargs: Any) -> Any:
        if passed.first.speaks():
            leaves = tf.nest.flatten((args, kwargs))
            passed.lengths.setdefault(id(layer), []).append([_length(leaf) for leaf in leaves])
        passed.depth += 1
        try:
            return original(*args, **kwargs)
        finally:
            passed.depth -= 1

    return call


def _noting_draws(generator: Any, passed: Passed) -> Callable[..., Any]:
    original = generator.next

    def next_seed(ordered: bool = True) -> Any:
        if passed.first.speaks():
            passed.num_draws[id(generator)] = passed.num_draws.get(id(generator), 0) + 1
            passed.draws_outside |= passed.depth == 0
        return original(ordered)

    return next_seed


def _length(leaf: Any) -> int | None:
    return int(leaf.shape[0]) if tf.is_tensor(leaf) and leaf.shape.rank else None


def _joined(*parts: Any) -> Any:
    return tf.concat(parts, 0) if tf.is_tensor(parts[0]) and parts[0].shape.rank else parts[-1]
