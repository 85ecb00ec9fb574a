"""A loss that couples samples, in two passes: time over ordinary accumulation, peak memory, and error.

    python benchmarks/coupled.py

The transformer of the other benchmarks with an InfoNCE loss over its outputs, 256 samples in 16s. Ordinary accumulation
runs one pass and is wrong; the whole batch is right and takes the memory.
"""

import statistics
import time

from apart import run_apart

BATCH_SIZE, MICRO_BATCH_SIZE, ROUNDS = 256, 16, 15
WAYS = {
    "plain Keras": None,
    "accumulation": {"micro_batch_size": MICRO_BATCH_SIZE},
    "two passes": {"micro_batch_size": MICRO_BATCH_SIZE, "whole_batch_loss": True},
}


def made(settings, without_dropout=False):
    """A model and its training function."""
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
    return model, model.train_function, iterator


def peak(settings):
    """Runs in a process of its own: prints bytes."""
    import tensorflow as tf

    _, train, iterator = made(settings)
    train(iterator)
    tf.config.experimental.reset_memory_stats("CPU:0")
    for _ in range(4):
        train(iterator)
    print(tf.config.experimental.get_memory_info("CPU:0")["peak"])


def seconds():
    """Of an update, in turns, so that all see the same machine."""
    runs = {name: made(settings)[1:] for name, settings in WAYS.items()}
    times = {name: [] for name in runs}
    for round_ in range(ROUNDS + 2):
        for name, (train, iterator) in runs.items():
            start = time.process_time()
            train(iterator)
            if round_ >= 2:
                times[name].append(time.process_time() - start)
    return times


def errors():
    """Of the weights after three updates without dropout, relative to how far they moved."""
    import numpy as np

    weights = {}
    for name, settings in WAYS.items():
        model, train, iterator = made(settings, without_dropout=True)
        before = np.concatenate([each.ravel() for each in model.get_weights()])
        for _ in range(3):
            train(iterator)
        weights[name] = np.concatenate([each.ravel() for each in model.get_weights()])
    moved = np.linalg.norm(weights["plain Keras"] - before)
    return {name: np.linalg.norm(each - weights["plain Keras"]) / moved for name, each in weights.items()}


def main():
    peaks = {name: int(run_apart(f"import coupled; coupled.peak({settings!r})")) for name, settings in WAYS.items()}
    times, wrong = seconds(), errors()
    base = times["accumulation"]
    for name in WAYS:
        ratios = sorted(mine / theirs for mine, theirs in zip(times[name], base))
        spread = f"{ratios[len(ratios) // 4]:.2f} to {ratios[-1 - len(ratios) // 4]:.2f}"
        print(
            f"{name:13} {peaks[name] / 2**20:7.1f} MiB   {statistics.median(ratios):.2f} of accumulation's CPU time "
            f"({spread})   error {wrong[name]:.0e}"
        )


if __name__ == "__main__":
    main()
