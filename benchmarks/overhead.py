"""CPU seconds per update over the bare loop, by alternating runs in one process.

python benchmarks/overhead.py [--jit] [--rounds 15]
"""

import argparse
import os
import statistics
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf
from bare_loop import bare_loop
from workloads import BATCH_SIZE, MICRO_BATCH_SIZE, WORKLOADS, compiled

import bigbatch


def contenders(make, jit):
    """Functions that make one update each, on the same batch."""
    model, x, y = make()
    whole = tf.data.Dataset.from_tensors((x, y)).repeat()
    parts = tf.data.Dataset.from_tensor_slices((x, y)).batch(MICRO_BATCH_SIZE).cache().repeat()
    bare = bare_loop(compiled(model), MICRO_BATCH_SIZE, jit)

    def accumulated(data, **settings):
        model = bigbatch.accumulate(compiled(make()[0], jit_compile=jit), **settings)
        model.make_train_function()
        iterator = iter(data)
        return lambda: model.train_function(iterator)

    iterator = iter(whole)
    return {
        "bare loop": lambda: bare(iterator),
        "bigbatch, micro-batches": accumulated(whole, micro_batch_size=MICRO_BATCH_SIZE),
        "bigbatch, windows": accumulated(parts, batches_per_update=BATCH_SIZE // MICRO_BATCH_SIZE),
        "plain Keras, whole batch": accumulated(whole),
    }


def cpu_seconds(update):
    start = time.process_time()
    update()
    return time.process_time() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jit", action="store_true")
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    print(f"batch {BATCH_SIZE} in micro-batches of {MICRO_BATCH_SIZE}; jit_compile={arguments.jit}")
    for name, make in WORKLOADS.items():
        updates = contenders(make, arguments.jit)
        for update in list(updates.values()) * 2:
            update()
        times = {contender: [] for contender in updates}
        for _ in range(arguments.rounds):
            for contender, update in updates.items():
                times[contender].append(cpu_seconds(update))
        for contender, seconds in times.items():
            ratios = sorted(a / b for a, b in zip(seconds, times["bare loop"]))
            middle = statistics.median(ratios)
            low, high = ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4]
            median = statistics.median(seconds)
            print(f"{name:12} {contender:26} {middle:5.2f} of the bare loop ({low:.2f}-{high:.2f}), {median:.3f} CPU s")


if __name__ == "__main__":
    main()
