"""A closer look at what bigbatch adds to the limit: few contenders, many rounds.

    python benchmarks/overhead.py cnn 64 [--seconds 150]

`compare.py` has everybody take turns, so that its rounds are few where updates are long. The twin, which is the limit
once more, tells how much a ratio means.
"""

import argparse

from apart import call
from measuring import ratio

NAMES = ("limit", "twin", "bigbatch_fit", "bigbatch_windows", "bigbatch_graph")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workload")
    parser.add_argument("number", type=int, help="of micro-batches")
    parser.add_argument("--seconds", type=float, default=150)
    arguments = parser.parse_args()
    workload, number = arguments.workload, arguments.number
    times = call("trials.timed_for", workload, number, NAMES, arguments.seconds)
    for name in NAMES:
        cpu, wall = (ratio(times[name][clock], times["limit"][clock]) for clock in ("cpu", "wall"))
        print(f"{workload} {number:4} {name:16} CPU {cpu}, wall {wall}, {len(times[name]['cpu'])} rounds")


if __name__ == "__main__":
    main()
