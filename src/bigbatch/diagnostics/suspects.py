"""Which layers do not treat samples one by one: found by calling each of them whole and in pieces."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from bigbatch.diagnostics.both_ways import Arrays, BothWays, FirstReplica, state_of
from bigbatch.diagnostics.comparison import EPSILON
from bigbatch.diagnostics.pieces import Piece, Pieces, callable_layers
from bigbatch.training import batches, optimizers, replicas
from bigbatch.training.micro_batch import python_function
from bigbatch.training.overriding import overridden

# What the output of a layer may differ by when its batch is cut; mixing samples makes far more.
_TOLERANCE = {"float64": 1e-9, "float32": 1e-4, "float16": 2e-2, "bfloat16": 1e-1}
# What its inputs' last digits make of its output, give or take.
_MARGIN = 30.0


class Suspect(NamedTuple):
    """A layer whose output depends on how its batch is cut.

    Because it mixes samples; or by chance, and then it draws the same again if its seeds are set back; or because of
    state that every call changes.
    """

    layer: keras.layers.Layer
    mixes: bool
    draws: bool
    is_replayable: bool
    keeps_state: bool


def probe(ways: BothWays, batch: Any, context: AbstractContextManager[Any], *, restore: bool = True) -> Arrays:
    """The gradients of one run of `train_step`, not traced, so that every layer can be watched. Nothing is applied."""
    found: Arrays = {}
    first = FirstReplica()

    def run(batch: Any) -> None:
        with optimizers.caught(ways.model) as applications, replicas.alone():
            python_function(ways.model.train_step)(batch)
        for number, each in enumerate(applications if first.speaks() else []):
            for variable, gradient in zip(each.variables, each.gradients):
                if gradient is not None:
                    found[f"{number}/{variable.path}"] = tf.convert_to_tensor(gradient).numpy().astype("float64")

    ways.num_updates += 1
    try:
        with context, replicas.scope_of(ways.model):
            replicas.each(run, batch)
    finally:
        if restore:
            ways.restore()
    return found


def probe_piece(ways: BothWays, pieces: Pieces, piece: Piece, *, restore: bool = True) -> Arrays:
    """The gradients of one micro-batch, with its own draws."""
    batch = batches.take(ways.batch, piece.start, piece.size)
    return probe(ways, batch, pieces.at_turn(piece.turn), restore=restore)


def find(ways: BothWays, pieces: Pieces) -> list[Suspect]:
    """Those in which it happens: a layer around another one that explains it is not one."""
    search = _Search(pieces)
    probe(ways, ways.batch, search.watching(ways.model))
    return list(search.found.values())


class _Search:
    def __init__(self, pieces: Pieces) -> None:
        self.found: dict[int, Suspect] = {}
        self._num_findings = 0
        self._pieces = pieces
        self._is_trying = False

    @contextmanager
    def watching(self, model: keras.Model) -> Iterator[None]:
        with self._pieces.at_turn(0), ExitStack() as stack:
            for layer in callable_layers(model):
                stack.enter_context(overridden(layer, call=self._watched(layer)))
            yield

    def _watched(self, layer: keras.layers.Layer) -> Callable[..., Any]:
        original, number = layer.call, count()

        def call(*args: Any, **kwargs: Any) -> Any:
            # Inside of a function that a layer has traced there are no values to compare.
            if self._is_trying or not tf.executing_eagerly():
                return original(*args, **kwargs)
            index, before, drawn = next(number), self._num_findings, self._pieces.drawn
            outputs = original(*args, **kwargs)
            if self._num_findings == before:
                self._try(_Call(layer, index, original, args, kwargs, drawn), outputs)
            return outputs

        return call

    def _try(self, call: _Call, outputs: Any) -> None:
        after = self._pieces.drawn
        self._is_trying = True
        try:
            self._pieces.drawn = call.drawn
            in_pieces = call.in_pieces(self._pieces)
            suspect = self._judged(call, outputs, in_pieces) if _differ(outputs, in_pieces) else None
            if suspect:
                self._num_findings += 1
                self.found.setdefault(id(call.layer), suspect)
        finally:
            self._is_trying, self._pieces.drawn = False, after

    def _judged(self, call: _Call, outputs: Any, in_pieces: Any) -> Suspect | None:
        """`None` for a layer that only rounds, though what is left of large numbers may be nothing but rounding."""
        before = call.state()
        self._pieces.drawn = call.drawn
        is_replayable = not _differ(outputs, call.whole())
        keeps_state = not is_replayable and not all(map(np.array_equal, before, call.state()))
        # Two draws may be equal: one of eight samples is dropped, and the same one again.
        draws = not keeps_state and (not is_replayable or self._pieces.drawn != call.drawn)
        self._pieces.drawn = call.drawn
        first = self._pieces.pieces[0].size
        among_others = call.with_other_rows(first)
        mixes = is_replayable and _differ(_first_rows(outputs, first), _first_rows(among_others, first))
        if not (mixes or draws or keeps_state):
            rounding = _distance(outputs, call.with_last_digits_moved())
            if _distance(outputs, in_pieces) <= _MARGIN * rounding:
                return None
            mixes = True  # it depends on the number of samples
        return Suspect(call.layer, mixes, draws, is_replayable, keeps_state)


@dataclass(frozen=True)
class _Call:
    """One call of a layer, to be made again."""

    layer: keras.layers.Layer
    index: int
    function: Callable[..., Any]
    args: Any
    kwargs: Any
    drawn: dict[int, int]

    def whole(self) -> Any:
        return self.function(*self.args, **self.kwargs)

    def with_other_rows(self, first: int) -> Any:
        """The outputs if all samples but the first ones were others."""
        args, kwargs = tf.nest.map_structure(lambda leaf: _others(leaf, first), (self.args, self.kwargs))
        return self.function(*args, **kwargs)

    def with_last_digits_moved(self) -> Any:
        """The outputs if every number of the inputs had been rounded the other way, by turns."""
        args, kwargs = tf.nest.map_structure(_moved, (self.args, self.kwargs))
        return self.function(*args, **kwargs)

    def state(self) -> list[Any]:
        return [each.numpy() for each in state_of(self.layer)]

    def in_pieces(self, pieces: Pieces) -> Any:
        return pieces.call(self.layer, self.index, self.function, self.args, self.kwargs)


def _others(leaf: Any, first: int) -> Any:
    """The same rows first; behind them, those in another order, and scaled."""
    if not (tf.is_tensor(leaf) and leaf.shape.rank and leaf.dtype.is_floating and leaf.shape[0] > first):
        return leaf
    return tf.concat([leaf[:first], leaf[first:][::-1] * 2 + 1], 0)


def _first_rows(outputs: Any, first: int) -> Any:
    return tf.nest.map_structure(lambda leaf: leaf[:first] if tf.is_tensor(leaf) and leaf.shape.rank else leaf, outputs)


def _moved(leaf: Any) -> Any:
    if not (tf.is_tensor(leaf) and leaf.dtype.name in EPSILON):
        return leaf
    signs = 1 - 2 * (tf.range(tf.size(leaf)) % 2)
    steps = tf.cast(tf.reshape(signs, tf.shape(leaf)), leaf.dtype) * EPSILON[leaf.dtype.name]
    return leaf + leaf * steps


def _differ(outputs: Any, others: Any) -> bool:
    return any(
        a.shape != b.shape
        or np.max(np.abs(a - b), initial=0.0) > tolerance * max(np.max(np.abs(a), initial=0.0), 1e-30)
        for a, b, tolerance in _pairs(outputs, others)
    )


def _distance(outputs: Any, others: Any) -> float:
    return max((float(np.max(np.abs(a - b), initial=0.0)) for a, b, _ in _pairs(outputs, others)), default=0.0)


def _pairs(outputs: Any, others: Any) -> Iterator[tuple[Any, Any, float]]:
    """Those of numbers, in float64, and what they may differ by."""
    for tensor, other in zip(tf.nest.flatten(outputs), tf.nest.flatten(others)):
        if tf.is_tensor(tensor) and tensor.dtype.name in _TOLERANCE:
            a, b = (np.asarray(each).astype("float64") for each in (tensor, other))
            yield a, b, _TOLERANCE[tensor.dtype.name]
