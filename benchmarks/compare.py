"""bigbatch against everybody: time, memory, first update, graph and error of each in one table.

    python benchmarks/compare.py [--quick] [--rival PYTHON] [--output benchmarks/results/compare.json]

- Times are ratios to the limit, CPU and wall clock, of runs that alternate in one process: median and quartiles.
- Peak memory is that of TensorFlow's BFC allocator without the inputs, over the floor: what the limit takes for one
  micro-batch.
- The first update counts building, tracing and compiling, in CPU time; the graph counts all operations.
- The error is that of the weights after one update by SGD, relative to its size, against plain Keras' whole batch.

`--rival` is a Python that has gradient-accumulator and TensorFlow 2.15. `report.py` makes tables and pictures of it.
"""

import gc
import json
import math
import tempfile
import time

import numpy as np
from apart import attempt, call
from measuring import error, in_turns, moved, peak
from results import facts, groups_of, parser_of, save

NUMBERS, ALONE, ROUNDS = (1, 4, 16, 64, 256), 16, 100
SLOW = {"mlp": 64, "mobilenet": 64}  # whose 256 micro-batches would take an hour
ON_TWO_DEVICES = ("cnn", "mlp")
QUICK = {"workloads": ("cnn",), "numbers": (4,), "alone": 4, "rounds": 3}
MOST_SECONDS = 25  # of all rounds of one number, but for the first two


def names_of(contenders, number):
    # The sum of Keras begins with two.
    return [each.__name__ for each in contenders if number > 1 or each.__name__ != "keras_steps"]


def timed(workload_name, number, names, rounds, num_devices=1):
    """CPU and wall seconds of every contender. Runs in a process of its own."""
    import contenders
    import tensorflow as tf
    from tensorflow import keras
    from workloads import load

    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * num_devices)
    devices = [f"CPU:{place}" for place in range(num_devices)]
    strategy = tf.distribute.MirroredStrategy(devices) if num_devices > 1 else tf.distribute.get_strategy()
    workload = load(workload_name)
    with strategy.scope():
        updates = {name: getattr(contenders, name)(workload, number, keras.optimizers.Adam(1e-3))[1] for name in names}
    return in_turns(updates, rounds, warm_up=1, most_seconds=MOST_SECONDS)


def import_of(name):
    """Seconds that `import bigbatch` takes beside TensorFlow and Keras, and the first use of a name."""
    import keras  # noqa: F401
    import tensorflow  # noqa: F401

    began = time.perf_counter()
    import bigbatch

    if name:
        getattr(bigbatch, name)
    return time.perf_counter() - began


def alone(workload_name, number, name, path):
    """First update, operations and peak of one contender, and in a file what an update by SGD does to its weights."""
    import contenders
    import tensorflow as tf
    from tensorflow import keras
    from workloads import load

    workload, make = load(workload_name), getattr(contenders, name)
    began = time.process_time()
    _, update = make(workload, number, keras.optimizers.Adam(1e-3))
    update()
    first = time.process_time() - began
    graphs = [each for each in gc.get_objects() if isinstance(each, tf.Graph)]
    operations = sum(len(graph.get_operations()) for graph in graphs)
    found = {"first": first, "operations": operations, "peak": peak(update)}
    model, update = make(workload, number, keras.optimizers.SGD(0.1))
    before = [variable.numpy() for variable in model.trainable_variables]
    update()
    np.savez(path, *moved([variable.numpy() for variable in model.trainable_variables], before))
    return found


def compare(result, *, workloads, numbers, alone, rounds, rival):
    """Adds what is found of each workload to the result, and yields when one is done."""
    from contenders import ON_DEVICES, OURS, RIVAL

    groups = groups_of(OURS, RIVAL, rival)
    for workload in workloads:
        for number in (each for each in numbers if each <= SLOW.get(workload, math.inf)):
            key = f"{workload}/{number}"
            print(key, flush=True)
            result["times"][key] = [
                attempt("compare.timed", workload, number, names_of(group, number), rounds, python=python)
                for python, group in (groups if number == alone else groups[:1])
            ]
        if workload in ON_TWO_DEVICES and numbers:
            names = names_of(ON_DEVICES, alone)
            result["devices"][f"{workload}/{alone}"] = attempt("compare.timed", workload, alone, names, rounds, 2)
        result["alone"][workload] = of_all(groups, workload, alone)
        yield


def of_all(groups, workload, number):
    """What is found of every contender alone; the floor is the limit's single micro-batch."""
    with tempfile.TemporaryDirectory() as folder:
        rows = {"floor": attempt("compare.alone", workload, 1, "limit", f"{folder}/floor.npz")}
        for python, group in groups:
            for name in names_of(group, number):
                place = "rival_limit" if name in rows else name
                print(workload, place, flush=True)
                rows[place] = attempt("compare.alone", workload, number, name, f"{folder}/{place}.npz", python=python)
        movements = {
            name: list(np.load(f"{folder}/{name}.npz").values()) for name, row in rows.items() if "raises" not in row
        }
    for name, movement in movements.items():
        if name != "floor":
            rows[name]["error"] = error(movement, movements["plain_keras"])
    return rows


def main():
    parser = parser_of(__doc__)
    parser.add_argument("--workloads", nargs="*", help="only these; what the file has of others stays")
    parser.add_argument("--numbers", nargs="*", type=int, default=NUMBERS, help="of micro-batches; none: no times")
    arguments = parser.parse_args()
    from workloads import NAMES

    settings = {"workloads": arguments.workloads or NAMES, "numbers": arguments.numbers}
    settings = QUICK if arguments.quick else settings | {"alone": ALONE, "rounds": ROUNDS}
    result = {"times": {}, "devices": {}, "alone": {}, "import": {}}
    if arguments.output and arguments.output.exists() and arguments.workloads:
        result |= json.loads(arguments.output.read_text())
    result["facts"] = facts(arguments.rival)
    repeats = range(1 if arguments.quick else 5)
    result["import"] = {name: [call("compare.import_of", name) for _ in repeats] for name in ("", "accumulate")}
    for _ in compare(result, **settings, rival=arguments.rival):
        save(result, arguments.output)
    from report import comparison

    print(comparison(result))


if __name__ == "__main__":
    main()
