"""bigbatch against everybody: time, memory, first update, graph and error of each in one table.

    python benchmarks/compare.py [--quick] [--rival PYTHON] [--output benchmarks/results/compare.json]

- Times are ratios to the limit, CPU and wall clock, of runs that alternate in one process: median and quartiles.
- Peak memory is that of TensorFlow's BFC allocator without the inputs, over the floor.
- The first update counts building, tracing and compiling, in CPU time; the graph counts all operations.
- The error is that of the weights after one update by SGD, relative to its size, against plain Keras' whole batch;
  the rival's against the limit in its own version of TensorFlow.
- Two devices and two workers share the micro-batches; what workers send is counted.

`--rival` is a Python that has gradient-accumulator and TensorFlow 2.15. `report.py` makes tables and pictures of it.
"""

import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from apart import attempt, call
from measuring import error
from results import facts, groups_of, parser_of_contest, save

SHARED = ("cnn", "mlp")  # by two devices and two workers


@dataclass(frozen=True)
class Contest:
    """What is measured, of one workload after the other.

    Args:
        groups: pairs of a Python and the names of those who run in it.
        together: the names of those who share micro-batches, by place.
        numbers: of micro-batches, for which updates are timed.
        number: of micro-batches, for everything else, and the only one of the rival.
        most: of micro-batches, for which the peaks of `STEADY` are measured once more.
        rounds: of updates in turns, at most.
        alone: the names of those who are looked at alone.
        run: `attempt`, for which an error is a result, or `call`, for which it is the end.
    """

    groups: list
    together: dict
    numbers: tuple = (1, 4, 16, 64, 256)
    number: int = 16
    most: int | None = 256
    rounds: int = 100
    alone: tuple = ()
    run: Callable = attempt

    def add(self, workload, result):
        """Adds what is found of a workload to the result."""
        for number in self.numbers:
            result["times"][f"{workload}/{number}"] = self.times(workload, number)
        with tempfile.TemporaryDirectory() as folder:
            result["alone"][workload] = self.of_each(workload, folder)
            for place, names in self.together.items() if workload in SHARED else ():
                result["shared"][f"{workload}, {place}"] = self.of_place(workload, place, names, folder)

    def times(self, workload, number):
        """Of each group."""
        print(workload, number, flush=True)

        def timed(python, names):
            # The sum of Keras begins with two.
            names = [name for name in names if number > 1 or name != "keras_steps"]
            return self.run("trials.timed", workload, number, names, self.rounds, "one device", python=python)

        return [timed(*group) for group in (self.groups if number == self.number else self.groups[:1])]

    def of_each(self, workload, folder):
        """What is found of every contender alone, and the floor."""
        from contenders import STEADY

        rows = {"floor": self.run("trials.floor", workload)}
        for python, names in self.groups:
            # The rival's limit is that of its own TensorFlow, whose layers differ a little from those of ours.
            labels = {"rival_limit" if name in rows else name: name for name in names if name in self.alone}
            for label, name in labels.items():
                files = [f"{folder}/{each}.npz" for each in (label, next(iter(labels)))]
                rows[label] = self.of_one(workload, name, "one device", files, python=python)
        for name in names_of(STEADY) if self.most else ():
            rows[name]["peak_of_most"] = self.run("trials.peak_of", workload, self.most, name)
        return rows

    def of_place(self, workload, place, names, folder):
        """The same of contenders who share the micro-batches, and their times."""
        from places import NUM_PROCESSES, ONE

        workers, reference, rows = NUM_PROCESSES[place], f"{folder}/plain_keras.npz", {}
        if workers > 1:
            # Of one thread each. Where a ReLU is at its edge, plain Keras differs by 4e-4 with one and with two.
            reference = f"{folder}/one thread.npz"
            self.run("trials.alone", workload, self.number, "plain_keras", ONE, reference, TF_NUM_INTRAOP_THREADS="1")
        for name in names:
            files = [f"{folder}/{place} {name}.npz", reference]
            rows[name] = self.of_one(workload, name, place, files, workers=workers)
        running = [name for name, found in rows.items() if "raises" not in found]
        times = self.run("trials.timed", workload, self.number, running, self.rounds, place, workers=workers)
        return {"alone": rows, "times": times}

    def of_one(self, workload, name, place, files, **settings):
        """What is found of a contender, with the distance of its update from that in the second file."""
        print(workload, place, name, flush=True)
        found = self.run("trials.alone", workload, self.number, name, place, files[0], **settings)
        if "raises" in found:
            return found
        return found | {"error": error(*(list(np.load(file).values()) for file in files))}


def names_of(contenders):
    return [each.__name__ for each in contenders]


def contest(rival, numbers, quick):
    from contenders import OURS, RIVAL, TOGETHER
    from places import DEVICES, WORKERS

    groups = groups_of(names_of(OURS), names_of(RIVAL), rival)
    if quick:
        few, shared = ("plain_keras", "bigbatch_fit"), {WORKERS: ("limit",)}
        return Contest(groups, shared, numbers=(4,), number=4, most=None, rounds=1, alone=few, run=call)
    places = {place: names_of(TOGETHER) for place in (DEVICES, WORKERS)}
    return Contest(groups, places, tuple(numbers), alone=tuple(name for _, names in groups for name in names))


def main():
    parser = parser_of_contest(__doc__)
    parser.add_argument("--workloads", nargs="*", help="only these; what the file has of others stays")
    parser.add_argument("--numbers", nargs="*", type=int, default=Contest.numbers, help="of micro-batches, to be timed")
    arguments = parser.parse_args()
    from workloads import NAMES

    result = {"facts": {}, "times": {}, "shared": {}, "alone": {}}
    if arguments.output and arguments.output.exists() and arguments.workloads:
        result |= json.loads(arguments.output.read_text())
    measured = contest(arguments.rival, arguments.numbers, arguments.quick)
    result |= {"number": measured.number, "most": measured.most}
    result["import"] = [call("trials.imported") for _ in range(1 if arguments.quick else 5)]
    for workload in NAMES[:1] if arguments.quick else arguments.workloads or NAMES:
        result["facts"][workload] = facts()
        measured.add(workload, result)
        save(result, arguments.output)
    from report import comparison

    print(comparison(result))


if __name__ == "__main__":
    main()
