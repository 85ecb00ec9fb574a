"""bigbatch against everybody: time, memory, first update, graph and error of each in one table.

    python benchmarks/compare.py [--quick] [--rival PYTHON] [--output benchmarks/results/compare.json]

- Times are ratios to the limit, CPU and wall clock, of runs that alternate in one process: median and quartiles.
- Peak memory is that of TensorFlow's BFC allocator, over the floor: what the limit takes for one micro-batch.
- The first update counts building, tracing and compiling; the graph counts its operations, those of all functions.
- The error is that of the weights after one update by SGD, relative to its size, against plain Keras' whole batch.

`--rival` is a Python that has gradient-accumulator and TensorFlow 2.15. `report.py` makes tables and pictures of it.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent
NUMBERS, ALONE = (1, 4, 16, 64, 256), 16
SLOW = {"mlp": 64, "mobilenet": 64}  # whose 256 micro-batches would take an hour
QUICK = {"workloads": ("cnn",), "numbers": (1, 4), "alone": 4, "rounds": 3}
MOST_SECONDS = 25  # of all rounds of one number, but for the first two


def names_of(contenders, number):
    # The sum of Keras begins with two.
    return [each.__name__ for each in contenders if number > 1 or each.__name__ != "keras_steps"]


def timed(workload_name, number, names, rounds):
    """CPU and wall seconds of every contender, in turns. Runs in a process of its own."""
    import contenders
    from tensorflow import keras
    from workloads import load

    workload = load(workload_name)
    updates = {name: getattr(contenders, name)(workload, number, keras.optimizers.Adam(1e-3))[1] for name in names}
    for update in updates.values():
        update()
    times = {name: {"cpu": [], "wall": []} for name in updates}
    began = time.perf_counter()
    for turn in range(rounds):
        if turn > 1 and time.perf_counter() - began > MOST_SECONDS:
            break
        for name, update in updates.items():
            cpu, wall = time.process_time(), time.perf_counter()
            update()
            times[name]["cpu"].append(time.process_time() - cpu)
            times[name]["wall"].append(time.perf_counter() - wall)
    return times


def alone(workload_name, number, name, path):
    """First update, operations and peak of one contender, and in a file its weights after an update by SGD."""
    import contenders
    import numpy as np
    import tensorflow as tf
    from tensorflow import keras
    from workloads import load

    workload, make = load(workload_name), getattr(contenders, name)
    began = time.perf_counter()
    _, update = make(workload, number, keras.optimizers.Adam(1e-3))
    update()
    first = time.perf_counter() - began
    operations = count_operations()
    peak = None
    if hasattr(tf.config.experimental, "reset_memory_stats"):
        tf.config.experimental.reset_memory_stats("CPU:0")
        for _ in range(3):
            update()
        peak = tf.config.experimental.get_memory_info("CPU:0")["peak"]
    model, update = make(workload, number, keras.optimizers.SGD(0.1))
    before = [variable.numpy() for variable in model.trainable_variables]
    update()
    np.savez(path, *[variable.numpy() - old for variable, old in zip(model.trainable_variables, before)])
    return {"first": first, "operations": operations, "peak": peak}


def count_operations():
    """Of all graphs that this process has traced and still holds."""
    import gc

    import tensorflow as tf

    graphs = [each for each in gc.get_objects() if isinstance(each, tf.Graph)]
    return sum(len(graph.get_operations()) for graph in graphs)


def error(path, reference):
    import numpy as np

    ours, theirs = (list(np.load(each).values()) for each in (path, reference))
    size = sum(float(np.square(value).sum()) for value in theirs) ** 0.5
    return sum(float(np.square(a - b).sum()) for a, b in zip(ours, theirs, strict=True)) ** 0.5 / size


def call(python, function, *arguments, module="compare"):
    """Runs a function of a module in a process of its own; returns what it returns, or why it does not."""
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_CPU_ALLOCATOR_USE_BFC": "1"}
    program = f"import json, {module}; print('RESULT', json.dumps({module}.{function}(*{arguments!r})))"
    done = subprocess.run(
        [python, "-c", program], cwd=HERE, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        return {"raises": (done.stderr.strip().splitlines() or ["killed"])[-1][:300]}
    return json.loads(done.stdout.split("RESULT", 1)[1])


def compare(result, *, workloads, numbers, alone, rounds, rival):
    """Adds what is found of each workload to the result, and yields when one is done."""
    import contenders

    groups = [(sys.executable, contenders.OURS)] + ([(rival, contenders.RIVAL)] if rival else [])
    with tempfile.TemporaryDirectory() as folder:
        for workload in workloads:
            for number in (each for each in numbers if each <= SLOW.get(workload, each)):
                key = f"{workload}/{number}"
                result["times"][key] = []
                for python, group in groups if number == alone else groups[:1]:
                    print(key, "in", python, flush=True)
                    found = call(python, "timed", workload, number, names_of(group, number), rounds)
                    result["times"][key].append(found)
            rows = result["alone"][workload] = {}
            for python, group in groups:
                for name in names_of(group, alone):
                    place = name if python == sys.executable else name.replace("limit", "rival_limit")
                    print(workload, place, flush=True)
                    rows[place] = call(python, "alone", workload, alone, name, f"{folder}/{place}.npz")
            for place, row in rows.items():
                if "raises" not in row:
                    row["error"] = error(f"{folder}/{place}.npz", f"{folder}/plain_keras.npz")
            rows["floor"] = call(sys.executable, "alone", workload, 1, "limit", f"{folder}/floor.npz")
            yield


def rival_of(python):
    """The path of a Python; none, if it is empty."""
    return os.path.abspath(python) if python else None


def facts(rival):
    import keras
    import tensorflow as tf

    import bigbatch

    versions = {"bigbatch": bigbatch.__version__, "keras": keras.__version__, "tensorflow": tf.__version__}
    machine = {"python": platform.python_version(), "machine": platform.machine(), "cores": os.cpu_count()}
    return {**versions, **machine, "rival": bool(rival), "date": time.strftime("%Y-%m-%d"), "load": os.getloadavg()[0]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rival", type=rival_of)
    parser.add_argument("--workloads", nargs="*")
    parser.add_argument("--numbers", nargs="*", type=int)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    from workloads import NAMES

    settings = {"workloads": arguments.workloads or NAMES, "numbers": arguments.numbers or NUMBERS, "alone": ALONE}
    settings = QUICK if arguments.quick else settings | {"rounds": 15}
    result = {"times": {}, "alone": {}}
    if arguments.output and arguments.output.exists() and arguments.workloads:
        result = json.loads(arguments.output.read_text())  # the others stay
    result["facts"] = facts(arguments.rival)
    for _ in compare(result, **settings, rival=arguments.rival):
        if arguments.output:
            arguments.output.parent.mkdir(exist_ok=True)
            arguments.output.write_text(json.dumps(result, indent=1))
    from report import comparison

    print(comparison(result))


if __name__ == "__main__":
    main()
