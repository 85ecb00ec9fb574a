"""A loss that couples samples, in two passes: time over ordinary accumulation, peak memory, and error.

    python benchmarks/coupled.py

The transformer of the other benchmarks with an InfoNCE loss over its outputs, 256 samples in 16s. Ordinary accumulation
runs one pass and is wrong; the whole batch is right and takes the memory.
"""

import functools

from apart import call
from measuring import error, in_turns, moved, peak, ratio

BATCH_SIZE, MICRO_BATCH_SIZE, ROUNDS = 256, 16, 15
WAYS = {
    "plain Keras": None,
    "accumulation": {"micro_batch_size": MICRO_BATCH_SIZE},
    "two passes": {"micro_batch_size": MICRO_BATCH_SIZE, "whole_batch_loss": True},
}


def made(settings, without_dropout=False):
    """A model, and a function that makes an update."""
    import keras
    import tensorflow as tf
    from workloads import made as workload

    import bigbatch

    def info_nce(y_true, y_pred):
        left, right = tf.split(y_pred, 2, axis=-1)
        similarities = tf.matmul(left, right, transpose_b=True)
        return tf.nn.sparse_softmax_cross_entropy_with_logits(tf.range(tf.shape(left)[0]), similarities)

    model, x, y = workload("transformer")
    for layer in model.layers if without_dropout else []:
        if isinstance(layer, keras.layers.Dropout):
            layer.rate = 0.0
    model.compile(keras.optimizers.SGD(0.1), info_nce)
    if settings:
        bigbatch.accumulate(model, **settings)
    iterator = iter(tf.data.Dataset.from_tensors((x[:BATCH_SIZE], y[:BATCH_SIZE])).repeat())
    model.make_train_function()
    return model, functools.partial(model.train_function, iterator)


def peak_of(way):
    """Runs in a process of its own."""
    return peak(made(WAYS[way])[1])


def movement(way):
    """What three updates without dropout do to the weights."""
    model, update = made(WAYS[way], without_dropout=True)
    before = model.get_weights()
    for _ in range(3):
        update()
    return moved(model.get_weights(), before)


def main():
    peaks = {way: call("coupled.peak_of", way) for way in WAYS}
    times = in_turns({way: made(settings)[1] for way, settings in WAYS.items()}, ROUNDS)
    movements = {way: movement(way) for way in WAYS}
    for way in WAYS:
        print(
            f"{way:13} {peaks[way] / 2**20:7.1f} MiB   "
            f"{ratio(times[way]['cpu'], times['accumulation']['cpu'])} of accumulation's CPU time   "
            f"error {error(movements[way], movements['plain Keras']):.0e}"
        )


if __name__ == "__main__":
    main()
