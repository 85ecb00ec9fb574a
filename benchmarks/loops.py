"""What `GradientAccumulator` costs a custom loop.

    python benchmarks/loops.py [--rounds 15]

Against the same loop with hand-written `assign_add`; and, for one micro-batch of rows of a 500,000 x 64 embedding,
against `scatter_add` and Keras' `gradient_accumulation_steps`.
"""

import argparse
import os
import statistics
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import tensorflow as tf
from embedding import LENGTH, ROWS, SIZE, WIDTH
from workloads import BATCH_SIZE, MICRO_BATCH_SIZE, WORKLOADS

import bigbatch

loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def gradients_of(model, x, y):
    with tf.GradientTape() as tape:
        loss = loss_fn(y, model(x, training=True))
    return tape.gradient(loss, model.trainable_variables)


def by_hand(model, optimizer, parts, wrap):
    sums = [tf.Variable(tf.zeros(variable.shape)) for variable in model.trainable_variables]

    @wrap
    def add(x, y):
        for total, gradient in zip(sums, gradients_of(model, x, y)):
            total.assign_add(gradient)

    def update():
        for x, y in parts:
            add(x, y)
        optimizer.apply_gradients(zip([total / len(parts) for total in sums], model.trainable_variables))
        for total in sums:
            total.assign(tf.zeros_like(total))

    return update


def accumulated(model, optimizer, parts, wrap):
    accumulator = bigbatch.GradientAccumulator(model.trainable_variables)

    @wrap
    def add(x, y):
        accumulator.add(gradients_of(model, x, y), weight=len(x))

    def update():
        for x, y in parts:
            add(x, y)
        accumulator.apply(optimizer)

    return update


def loops(rounds):
    for name, make in WORKLOADS.items():
        for kind, wrap in (("eager", lambda function: function), ("tf.function", tf.function)):
            updates = []
            for loop in (by_hand, accumulated):
                model, x, y = make()
                parts = [part for part, _ in bigbatch.split((tf.constant(x), tf.constant(y)), MICRO_BATCH_SIZE)]
                updates.append(loop(model, keras.optimizers.Adam(), parts, wrap))
            ratios = [seconds[1] / seconds[0] for seconds in alternate(updates, rounds, time.process_time)]
            print(f"{name:12} {kind:12} {describe(ratios)} of the loop by hand")


def rows(rounds, repeats=20):
    indices = tf.random.stateless_uniform((SIZE * LENGTH,), (0, 1), 0, ROWS, tf.int32)
    gradient = tf.IndexedSlices(tf.ones((SIZE * LENGTH, WIDTH)), indices, (ROWS, WIDTH))
    table = tf.Variable(tf.zeros((ROWS, WIDTH)))
    accumulator = bigbatch.GradientAccumulator([table])
    optimizer = keras.optimizers.SGD(0.1, gradient_accumulation_steps=10**9)
    optimizer.build([table])
    total = tf.Variable(tf.zeros((ROWS, WIDTH)))

    def scatter():
        total.scatter_add(gradient)

    def add():
        accumulator.add([gradient], weight=SIZE)

    def built_in():
        optimizer.apply([gradient], [table])

    for kind, wrap in (("eager", lambda function: function), ("tf.function", tf.function)):
        calls = [repeated(wrap(call), times) for call, times in ((scatter, repeats), (add, repeats), (built_in, 1))]
        times = alternate(calls, rounds, time.perf_counter)
        print(f"embedding    {kind:12} {describe([add / scatter for scatter, add, _ in times])} of scatter_add")
        cheaper = [repeats * built_in / add for _, add, built_in in times]
        print(f"embedding    {kind:12} {describe(cheaper)} times cheaper than Keras' built-in")


def repeated(call, times):
    return lambda: [call() for _ in range(times)]


def alternate(calls, rounds, clock):
    """The seconds of every call, once per round, after two rounds that do not count."""

    def seconds(call):
        start = clock()
        call()
        return clock() - start

    return [[seconds(call) for call in calls] for _ in range(rounds + 2)][2:]


def describe(ratios):
    ordered = sorted(ratios)
    low, high = ordered[len(ordered) // 4], ordered[-1 - len(ordered) // 4]
    return f"{statistics.median(ordered):6.2f} ({low:.2f}-{high:.2f})"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    print(
        f"batch {BATCH_SIZE} in micro-batches of {MICRO_BATCH_SIZE}; medians and quartiles of {rounds} alternating runs"
    )
    loops(rounds)
    rows(rounds)


if __name__ == "__main__":
    main()
