"""The words for what was found, and the way out of each."""

from __future__ import annotations

from collections.abc import Sequence

from bigbatch.diagnostics.equivalence import Cause, Row
from bigbatch.diagnostics.loss_terms import Term

Parts = Sequence[tuple[str, float]]
UNKNOWN = "unknown"


def _errors(rows: Sequence[Row]) -> tuple[tuple[str, float], ...]:
    return tuple((row.name, row.error) for row in rows)


def batch_norm_cause(layers: Parts) -> Cause:
    return Cause(
        "batch normalisation",
        "These layers normalise each micro-batch by its own moments; each alone moves the gradient by",
        tuple(layers),
        "Freeze them (`layer.trainable = False`) or use GroupNormalization or LayerNormalization to be exact; with "
        "larger micro-batches they differ less.",
    )


def layer_cause(layers: Parts) -> Cause:
    return Cause(
        "layers that mix samples",
        "The outputs of these layers depend on which samples share a batch; each alone moves the gradient by",
        tuple(layers),
        "Compute what they need of the batch before it is split, or use layers that treat each sample by itself.",
    )


def loss_cause(outputs: Parts) -> Cause:
    return Cause(
        "a loss that couples samples",
        "No weighting of micro-batches gives the loss of the whole batch; the unexplained part of its gradient is",
        tuple(outputs),
        "Such a loss (contrastive, ranking, correlation) needs the outputs of all samples at once: "
        "`bigbatch.accumulate(model, micro_batch_size=..., whole_batch_loss=True)`.",
    )


def reduction_cause(term: Term, shares: Sequence[float]) -> Cause:
    numbered = enumerate(zip(term.weights, shares), 1)
    pairs = [(f"micro-batch {number}, {share:.3g} of the samples", weight) for number, (weight, share) in numbered]
    if all(abs(weight - 1.0) < 1e-3 for weight in term.weights):
        return Cause(
            "a reduction that is a sum",
            f"In {term.name}, samples are added up, but the sum is taken for a mean. The whole batch weighs",
            tuple(pairs),
            'Compile the loss with `reduction="sum"`, or divide it by the number of its samples.',
        )
    return Cause(
        "a reduction that is a mean of means",
        f"In {term.name}, a micro-batch is divided by something other than its samples. The whole batch weighs",
        tuple(pairs),
        "Let Keras reduce: return one value per sample and compile the loss with a mask, `sample_weight` and "
        '`reduction="mean_with_sample_weight"`, or divide by the number of samples. A loss that is not a mean at all '
        "(a root, a maximum) needs `accumulate(..., whole_batch_loss=True)`.",
    )


def added_cause(layers: Parts) -> Cause:
    return Cause(
        "a reduction that is a sum",
        "What these layers add to the loss is not a mean over samples; the mean over micro-batches is off by",
        tuple(layers),
        "Divide what `add_loss` is given by the number of samples.",
    )


def state_cause(variables: Parts) -> Cause:
    return Cause(
        "state that every micro-batch changes",
        "Something assigns these variables at every micro-batch instead of once per update; it makes a difference of",
        tuple(variables),
        "Assign them once per update: in a callback (`on_train_batch_end`), or as moving averages of the optimizer "
        "(`use_ema`).",
    )


def metric_cause(rows: Sequence[Row]) -> Cause:
    return Cause(
        "a metric that is a mean of means",
        "These logs are made of one number per micro-batch, not of sums over samples; they differ by",
        _errors(rows),
        "Use a metric that adds up samples, or a function with one value per sample. Training is not affected.",
    )


def noise_cause(rows: Sequence[Row]) -> Cause:
    return Cause(
        "randomness or non-determinism",
        "The whole batch, run twice from the same state, differs from itself by",
        _errors(rows),
        "Draw with `keras.random` and a `SeedGenerator` of the layer, or call "
        "`tf.config.experimental.enable_op_determinism`, and verify again.",
    )


def unseeded_cause(layers: Parts) -> Cause:
    return Cause(
        "randomness",
        "Numbers are drawn here that nobody can draw again for the whole batch, so no two updates are alike. Off by",
        tuple(layers),
        "Draw in layers, with `keras.random` and a `SeedGenerator` that is an attribute of the layer.",
    )


def precision_cause(name: str, rows: Sequence[Row]) -> Cause:
    return Cause(
        "low precision",
        f"The model computes in {name}, and the last digit of its weights moves the update about as much. Errors are",
        _errors(rows),
        "To see whether anything else is there, verify the same model in float32.",
    )


def nonfinite_cause(rows: Sequence[Row]) -> Cause:
    return Cause(
        "values that are not finite",
        "Gradients are infinite or not a number, so that there is nothing to compare",
        _errors(rows),
        "Look at the data, the learning rate and, in float16, the loss scale.",
    )


def unexplained_cause(rows: Sequence[Row]) -> Cause:
    return Cause(
        UNKNOWN,
        "Neither layers, state, loss nor randomness explain what differs",
        _errors(rows),
        "The model's own `train_step` may transform its gradients (let the optimizer clip) or apply an optimizer to "
        "what another one has changed; see docs/exactness.md. If that is not it, please report it, with `to_json()`.",
    )
