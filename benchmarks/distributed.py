"""Two workers on this machine: what travels per update, and what an update takes.

    python benchmarks/distributed.py [--rounds 15]

Every worker has the same work (128 samples in micro-batches of 16). Two workers that train together are compared with
two that train alone at the same time, so that the cores are equally busy; a ratio of 1 would mean that waiting for each
other and adding up the gradients are free. The programs alternate, because the machine is shared.
"""

import argparse
import functools
import json
import os
import statistics
import subprocess
import sys
import time

SAMPLES, MICRO_BATCH_SIZE, TURNS = 128, 16, 3


def worker(rounds):
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    from workloads import compiled, made

    import bigbatch

    num_workers = strategy.num_replicas_in_sync
    results = {"collectives": {}, "seconds": {}}
    for name in ("cnn", "transformer"):
        with strategy.scope():
            model, x, y = made(name)
            model = bigbatch.accumulate(compiled(model), micro_batch_size=MICRO_BATCH_SIZE)
        data = tf.data.Dataset.from_tensors((x[:SAMPLES], y[:SAMPLES])).repeat()
        iterator = iter(strategy.distribute_datasets_from_function(lambda _, data=data: data))
        with strategy.scope():
            model._symbolic_build(data_batch=(x[:2], y[:2]))
        model.make_train_function()
        for _ in range(3):
            model.train_function(iterator)
        update = functools.partial(model.train_function, iterator)
        results["seconds"][name] = [timed(update) for _ in range(rounds)]
        if num_workers > 1:
            results["collectives"][name] = {
                SAMPLES // size: collectives(strategy, model, size, iterator) for size in (128, 32, 8)
            }
    if not strategy.cluster_resolver.task_id:
        print("RESULT " + json.dumps(results))


def timed(update):
    start = time.perf_counter()
    logs = update()
    float(next(iter(logs.values())))
    return time.perf_counter() - start


def collectives(strategy, model, micro_batch_size, iterator):
    """Number and bytes of what travels in one update."""
    import tensorflow as tf

    from bigbatch.training.stream import Limit
    from bigbatch.training.update import Update

    update = Update(model, micro_batch_size, pool=True)
    with strategy.scope():
        traced = tf.function(update.on_window, autograph=False)
        graph = traced.get_concrete_function(iterator, Limit(tf.constant(1), None), None).graph
    values = [op.inputs[0] for op in graph.get_operations() if op.type == "CollectiveReduceV2"]
    sizes = [value.shape.num_elements() * value.dtype.size for value in values]
    return {"gradients": [size for size in sizes if size > 1000], "others": [size for size in sizes if size <= 1000]}


def run(commands):
    """Runs programs at the same time and returns the result of the first."""
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_NUM_INTRAOP_THREADS": "1"}
    processes = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for command in commands]
    outputs = [process.communicate()[0] for process in processes]
    if any(process.returncode for process in processes):
        sys.exit("a worker failed")
    [line] = [line for line in outputs[0].splitlines() if "RESULT " in line]
    return json.loads(line.split("RESULT ")[1])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--worker", action="store_true")
    arguments = parser.parse_args()
    if arguments.worker:
        worker(arguments.rounds)
        return
    program = [__file__, "--worker", "--rounds", str(arguments.rounds)]
    alone = [[sys.executable, *program]] * 2
    together = [[sys.executable, "-m", "bigbatch", "launch", "--workers", "2", *program]]
    runs = [(run(alone), run(together)) for _ in range(TURNS)]
    for name, by_number in runs[0][1]["collectives"].items():
        for number, sent in by_number.items():
            print(
                f"{name:12} {number:>2} micro-batches: {len(sent['gradients'])} collective of gradients, "
                f"{sum(sent['gradients']):,} bytes; {len(sent['others'])} others, {sum(sent['others'])} bytes"
            )
    for name in runs[0][0]["seconds"]:
        one, two = (statistics.median(s for turn in runs for s in turn[index]["seconds"][name]) for index in (0, 1))
        print(f"{name:12} together over alone, per update: {two / one:.2f} ({one * 1000:.0f} and {two * 1000:.0f} ms)")


if __name__ == "__main__":
    main()
