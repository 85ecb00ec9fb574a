"""What a loss does with the samples of a batch: weigh its micro-batches, or mix them.

If samples are not mixed, the gradient of the loss of the whole batch with respect to the outputs is, in the rows of a
micro-batch, that of the micro-batch's own loss times one number: the weight of the micro-batch in the batch. Where no
one number will do, samples are mixed. A loss that does not see the outputs of the model is asked the same of the
gradients of the weights: is that of the whole a sum of those of the parts, each times a number?
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from bigbatch.diagnostics.both_ways import Arrays, BothWays, FirstReplica
from bigbatch.diagnostics.pieces import Piece, Pieces
from bigbatch.diagnostics.suspects import probe, probe_piece
from bigbatch.training import keras_private
from bigbatch.training.overriding import overridden

TOLERANCE = 1e-3
_MOST_COORDINATES = 20_000


@dataclass(frozen=True)
class Term:
    """How a loss treats one output: the weights that it gives to micro-batches, and what they leave unexplained."""

    name: str
    weights: tuple[float, ...]
    unexplained: float

    @property
    def mixes(self) -> bool:
        return self.unexplained > TOLERANCE

    def weighs_like(self, shares: Sequence[float]) -> bool:
        return bool(np.allclose(self.weights, shares, rtol=TOLERANCE))


@dataclass(frozen=True)
class Examined:
    """One term for every output, or one for all weights; and the layers whose `add_loss` is no mean over samples."""

    terms: list[Term]
    added: list[tuple[str, float]]


def examine(ways: BothWays, pieces: Pieces, layers: Sequence[keras.layers.Layer]) -> Examined:
    """Runs the whole batch and every micro-batch once; layers that mix samples themselves are in pieces."""
    with _watching(ways.model) as whole:
        gradients = probe(ways, ways.batch, pieces.of(layers))
    added, means = _added(ways.model), Counter[str]()
    parts, of_parts = [], []
    for piece in pieces.pieces:
        with _watching(ways.model) as part:
            of_parts.append(probe_piece(ways, pieces, piece))
        parts.append(part)
        means.update({name: value * pieces.share(piece) for name, value in _added(ways.model).items()})
    if not whole.gradients or any(part.names != whole.names for part in parts):
        terms = [_term_of_weights(ways.model, gradients, of_parts)]
    else:
        terms = [_term_of_output(name, whole, parts, pieces.pieces) for name in whole.names]
    off = {name: abs(means[name] - value) / (abs(value) or 1.0) for name, value in added.items()}
    return Examined(terms, [(name, error) for name, error in off.items() if error > TOLERANCE])


def _added(model: keras.Model) -> dict[str, float]:
    found = {}
    for layer in keras_private.flatten_layers(model):
        if losses := keras_private.losses_of_samples(layer):
            found[layer.name] = float(sum(map(float, losses)))
    return found


def _term_of_output(name: str, whole: _Seen, parts: Sequence[_Seen], pieces: Sequence[Piece]) -> Term:
    weights, unexplained = [], [0.0]
    for piece, part in zip(pieces, parts):
        mine, rows = part.gradients[name], len(part.gradients[name]) // piece.size
        of_whole = whole.gradients[name][piece.start * rows : (piece.start + piece.size) * rows]
        weight = float(np.vdot(mine, of_whole) / max(np.vdot(mine, mine), 1e-300))
        weights.append(weight)
        unexplained.append(_norm(of_whole - weight * mine) / (_norm(of_whole) or 1.0))
    return Term(name, tuple(weights), max(unexplained))


def _term_of_weights(model: keras.Model, whole: Arrays, parts: Sequence[Arrays]) -> Term:
    columns = [_coordinates(part) for part in [*parts, _of_regularizers(model, whole)]]
    matrix, target = np.stack(columns, axis=1), _coordinates(whole)
    solution = np.linalg.lstsq(matrix, target, rcond=None)[0]
    unexplained = _norm(target - matrix @ solution) / (_norm(target) or 1.0)
    return Term("the loss", tuple(map(float, solution[: len(parts)])), unexplained)


def _of_regularizers(model: keras.Model, like: Arrays) -> Arrays:
    """Their gradients, which every micro-batch has and the whole batch has once."""
    found = {name: np.zeros_like(array) for name, array in like.items()}
    for variable in model.trainable_variables:
        name = f"0/{variable.path}"
        if getattr(variable, "regularizer", None) and name in found:
            with tf.GradientTape() as tape:
                loss = variable.regularizer(variable)
            found[name] = tf.convert_to_tensor(tape.gradient(loss, variable.value)).numpy().astype("float64")
    return found


def _coordinates(gradients: Arrays) -> np.ndarray:
    """Enough of them to tell; the same of all gradients."""
    most = max(1, _MOST_COORDINATES // max(1, len(gradients)))
    return np.concatenate([array.ravel()[:: -(-array.size // most)] for array in gradients.values() if array.size])


@dataclass
class _Seen:
    """The gradients that came back to the outputs of the model."""

    first: FirstReplica = field(default_factory=FirstReplica)
    names: list[str] = field(default_factory=list)
    gradients: dict[str, np.ndarray] = field(default_factory=dict)

    def watched(self, name: str, output: Any) -> Any:
        if not tf.is_tensor(output) or not output.dtype.is_floating or not output.shape.rank:
            return output
        self.names.append(name)

        @tf.custom_gradient
        def same(tensor: Any) -> Any:
            def gradient(upstream: Any) -> Any:
                self.gradients[name] = np.asarray(upstream).astype("float64")
                return upstream

            return tf.identity(tensor), gradient

        mask, output = keras_private.get_keras_mask(output), same(output)
        if mask is not None:
            keras_private.set_keras_mask(output, mask)
        return output


@contextmanager
def _watching(model: keras.Model) -> Iterator[_Seen]:
    seen, original = _Seen(), model.call

    def call(*args: Any, **kwargs: Any) -> Any:
        outputs = original(*args, **kwargs)
        if not seen.first.speaks():
            return outputs
        names = _names(model, outputs)
        # A second call of the model has outputs of its own.
        fresh = [f"{name} ({len(seen.names)})" if name in seen.names else name for name in names]
        leaves = [seen.watched(name, leaf) for name, leaf in zip(fresh, tf.nest.flatten(outputs))]
        return tf.nest.pack_sequence_as(outputs, leaves)

    with overridden(model, call=call):
        yield seen


def _names(model: keras.Model, outputs: Any) -> list[str]:
    leaves = tf.nest.flatten(outputs)
    names = list(getattr(model, "output_names", None) or (["the output"] if len(leaves) == 1 else []))
    return names if len(names) == len(leaves) else [f"output {number}" for number, _ in enumerate(leaves)]


def _norm(array: np.ndarray) -> float:
    return float(np.linalg.norm(array.ravel()))
