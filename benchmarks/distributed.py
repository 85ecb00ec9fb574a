"""Two workers on this machine: what travels per update, and what an update takes over the bare loop.

    python benchmarks/distributed.py [--rounds 20]

They share updates of 256 samples in micro-batches of 16. The contenders take turns on the same two processes, and the
clocks are those of the first. Plain Keras is not among them: its `fit` fails with several workers.
"""

import argparse
import json
import os
import subprocess
import sys

NAMES, NUMBER, LOCAL_SAMPLES = ("cnn", "mlp"), 16, 128
CONTENDERS = ("limit", "limit_of_windows", "bigbatch_fit", "bigbatch_windows")


def worker(rounds):
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    import contenders
    import keras
    from measuring import in_turns
    from workloads import iterator_of, load, whole

    results = {"collectives": {}, "times": {}}
    for name in NAMES:
        workload = load(name)
        with strategy.scope():
            made = {
                each: getattr(contenders, each)(workload, NUMBER, keras.optimizers.Adam(1e-3)) for each in CONTENDERS
            }
            iterator = iterator_of(whole(workload, NUMBER))
        results["times"][name] = in_turns({each: update for each, (_, update) in made.items()}, rounds)
        model, _ = made["bigbatch_fit"]
        results["collectives"][name] = {
            LOCAL_SAMPLES // size: collectives(strategy, model, size, iterator) for size in (128, 32, 8)
        }
    if not strategy.cluster_resolver.task_id:
        print("RESULT " + json.dumps(results))


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


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--worker", action="store_true")
    arguments = parser.parse_args()
    if arguments.worker:
        worker(arguments.rounds)
        return
    from measuring import ratio

    program = [__file__, "--worker", "--rounds", str(arguments.rounds)]
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_NUM_INTRAOP_THREADS": "1"}  # a core for each worker
    launched = [sys.executable, "-m", "bigbatch", "launch", "--workers", "2", *program]
    done = subprocess.run(launched, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    [line] = [line for line in done.stdout.splitlines() if "RESULT " in line]
    found = json.loads(line.split("RESULT ")[1])
    for name, by_number in found["collectives"].items():
        for number, sent in by_number.items():
            print(
                f"{name:12} {number:>2} micro-batches: {len(sent['gradients'])} collective of gradients, "
                f"{sum(sent['gradients']):,} bytes; {len(sent['others'])} others, {sum(sent['others'])} bytes"
            )
    for name, times in found["times"].items():
        for each in CONTENDERS:
            cpu, wall = (ratio(times[each][clock], times["limit"][clock]) for clock in ("cpu", "wall"))
            print(f"{name:12} {each:16} CPU {cpu}, wall {wall}")


if __name__ == "__main__":
    main()
