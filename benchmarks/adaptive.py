"""The adaptive schedule against fixed sizes: updates and samples until a loss is reached.

    python benchmarks/adaptive.py FOLDER [picture.png]

FOLDER holds Fashion-MNIST (`images` says where to get it). Batches of 32 are joined, by a fixed number or by
`schedules.noise_scale`, and trained on with SGD until the loss on 1,000 test images, looked at every 4,096 samples,
falls below the target. Every way has the best of four learning rates, by updates and by samples, each the mean of two
seeds.
"""

import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf
from images import read, small_cnn

import bigbatch

BATCH_SIZE, TARGET, MOST, EVERY = 32, 0.55, 300_000, 4_096
FIXED, RATES, SEEDS = (1, 4, 16, 64), (0.05, 0.1, 0.2, 0.4), (0, 1)


def until_target(data, test, *, batches_per_update, rule, rate, seed):
    """Updates and samples, without end if the target is not reached."""
    model = small_cnn(keras.optimizers.SGD(rate), seed)
    bigbatch.accumulate(model, batches_per_update=batches_per_update, learning_rate_rule=rule)
    iterator = iter(tf.data.Dataset.from_tensor_slices(data).shuffle(60_000, seed=seed).repeat().batch(BATCH_SIZE))
    train, loss = model.make_train_function(), tf.function(model.compute_loss)
    updates = samples = looks = 0
    while samples < MOST:
        window = batches_per_update(updates) if callable(batches_per_update) else batches_per_update
        train(iterator)
        updates, samples = updates + 1, samples + window * BATCH_SIZE
        if samples // EVERY > looks:
            looks = samples // EVERY
            if loss(*test, model(test[0])) < TARGET:
                return updates, samples
    return np.inf, np.inf


def adaptive():
    return bigbatch.schedules.noise_scale(minimum=1, maximum=64)


WAYS = {f"fixed: {BATCH_SIZE * number}": (lambda number=number: number, None) for number in FIXED} | {
    "adaptive, same rate": (adaptive, None),
    "adaptive, sqrt rule": (adaptive, "sqrt"),
    "adaptive, linear rule": (adaptive, "linear"),
}


def main(folder, picture=None):
    data, (x, y) = read(folder), read(folder, "t10k")
    test, found = (tf.constant(x[:1000]), tf.constant(y[:1000])), {}
    print(f"until a loss of {TARGET}        updates   at rate   samples   at rate")
    for name, (schedule, rule) in WAYS.items():
        means = {}
        for rate in RATES:
            settings = {"rule": rule, "rate": rate}
            runs = [until_target(data, test, batches_per_update=schedule(), seed=seed, **settings) for seed in SEEDS]
            means[rate] = np.mean(runs, axis=0)
        best = [min(RATES, key=lambda rate: means[rate][place]) for place in (0, 1)]
        found[name] = means
        print(
            f"{name:<24} {means[best[0]][0]:>11.0f} {best[0]:>9} {means[best[1]][1]:>9.0f} {best[1]:>9}",
            flush=True,
        )
    if picture:
        draw(found, picture)


def draw(found, picture):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    ax = pyplot.subplots(figsize=(7, 4))[1]
    for name, means in found.items():
        reached = [pair for pair in means.values() if np.isfinite(pair).all()]
        marker = "o" if name.startswith("fixed") else "s"
        ax.plot([pair[0] for pair in reached], [pair[1] for pair in reached], marker, label=name)
    ax.set(xscale="log", yscale="log", xlabel="updates", ylabel="samples", title=f"until a test loss of {TARGET}")
    ax.legend()
    ax.figure.savefig(picture, dpi=110, bbox_inches="tight")


if __name__ == "__main__":
    main(*sys.argv[1:])
