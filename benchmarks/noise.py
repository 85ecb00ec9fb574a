"""The noise scale: bias and coverage where the truth is known, and what measuring it costs.

    python benchmarks/noise.py

Linear regression with normal features: the estimates of updates of 64 samples in unequal micro-batches, in runs of 50
updates. Then the time of an update with `NoiseScale` over that without, in turns, and the peak memory.
"""

import functools
import os
import statistics

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
from apart import call
from measuring import in_turns, peak, ratio

VARIANCES, OFFSET, ERROR = np.array([1.0, 0.5, 2.0, 0.1]), np.array([0.5, -1.0, 0.3, 2.0]), 1.5
UPDATES, RUN, ROUNDS = 20_000, 50, 15


def truth():
    """tr(Cov(g)) and |E(g)|^2 of g = 2 x (x * offset - e), for normal x and e."""
    mean = 2 * VARIANCES * OFFSET
    squares = 4 * (VARIANCES @ OFFSET**2 + ERROR**2) * VARIANCES.sum() + 2 * mean @ mean
    return squares - mean @ mean, mean @ mean


def observed():
    """Noise and signal of every update of a model that does not move."""
    import keras
    import tensorflow as tf

    import bigbatch

    keras.config.set_floatx("float64")
    rng = np.random.default_rng(0)
    x = rng.normal(size=(UPDATES * 64, 4)) * VARIANCES**0.5
    y = rng.normal(size=(UPDATES * 64, 1)) * ERROR
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, use_bias=False)])
    model.compile(keras.optimizers.SGD(0.0), "mse")
    model.set_weights([OFFSET[:, None]])
    bigbatch.accumulate(model, micro_batch_size=10)
    rows = []
    vars(model)["_accumulation"].observe_noise(lambda noise, signal, _: rows.append((noise, signal)))
    train, iterator = model.make_train_function(), iter(tf.data.Dataset.from_tensor_slices((x, y)).batch(64))
    for _ in range(UPDATES):
        train(iterator)
    keras.config.set_floatx("float32")
    return np.array(rows)


def bias_and_coverage():
    from bigbatch.core.noise import Smoothed

    rows, (noise, signal) = observed(), truth()
    for name, column, true in (("noise", rows[:, 0], noise), ("signal", rows[:, 1], signal)):
        error = column.std() / len(column) ** 0.5 / true
        print(
            f"{name:7} mean over {UPDATES} updates: {column.mean() / true - 1:+.4f} of the truth "
            f"(standard error {error:.4f})"
        )
    runs = [Smoothed(decay=1.0) for _ in range(UPDATES // RUN)]
    for place, row in enumerate(rows):
        runs[place // RUN].add(*row)
    middle = statistics.median(run.value for run in runs)
    print(f"noise scale {noise / signal:.2f}; median of {len(runs)} runs {middle:.2f}")
    for confidence in (0.5, 0.8, 0.95):
        ends = [run.interval(confidence) for run in runs]
        held = np.mean([low <= noise / signal <= high for low, high in ends])
        print(f"an interval of {confidence:.0%} holds the truth in {held:.1%} of {len(runs)} runs")


def made(workload, watched):
    """A function that makes an update."""
    import tensorflow as tf
    from workloads import MICRO_BATCH_SIZE, compiled
    from workloads import made as workload_made

    import bigbatch

    model, x, y = workload_made(workload)
    bigbatch.accumulate(compiled(model), micro_batch_size=MICRO_BATCH_SIZE)
    if watched:
        vars(model)["_accumulation"].observe_noise(lambda *row: None)
    return functools.partial(model.make_train_function(), iter(tf.data.Dataset.from_tensors((x, y)).repeat()))


def peak_of(workload, watched):
    """Runs in a process of its own."""
    return peak(made(workload, watched))


def cost(workload):
    times = in_turns({watched: made(workload, watched) for watched in (False, True)}, ROUNDS)
    off, on = (call("noise.peak_of", workload, watched) for watched in (False, True))
    print(f"{workload:12} time {ratio(times[True]['cpu'], times[False]['cpu'])}, peak {on / off:.3f} of that without")


if __name__ == "__main__":
    bias_and_coverage()
    for each in ("cnn", "transformer", "mlp"):
        cost(each)
