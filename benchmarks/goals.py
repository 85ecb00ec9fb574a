"""What was wanted, and what was found: a table with a row for each goal, made of what `compare.py` has found.

A figure is a function of a result and the name of a contender. It returns numbers by the place where they were found.
"""

import statistics

from measuring import median_cpu, ratio

NAMES = ("bigbatch_fit", "bigbatch_windows", "bigbatch_graph", "twin")


def over(other):
    """CPU time over that of somebody else, by workload and number of micro-batches."""

    def figure(result, name):
        cells = {place: groups[0] for place, groups in result["times"].items()}
        both = {place: times for place, times in cells.items() if name in times and other in times}
        return {
            place.replace("/", ", K="): ratio(times[name]["cpu"], times[other]["cpu"]).median
            for place, times in both.items()
        }

    return figure


def over_for_one_more(other):
    """The same of one more micro-batch of the recommender."""

    def figure(result, name):
        few, many = (result["times"][f"recommender/{number}"][0] for number in (4, 256))
        mine, theirs = (median_cpu(many, each) - median_cpu(few, each) for each in (name, other))
        return {"recommender": mine / theirs}

    return figure


def growth(result, name):
    """CPU time per sample at 256 micro-batches over that at 4."""
    return {
        workload: median_cpu(result["times"][f"{workload}/256"][0], name)
        / median_cpu(result["times"][f"{workload}/4"][0], name)
        / 64
        for workload in result["alone"]
    }


def peak(result, name):
    """Bytes over the floor."""
    return {workload: alone[name]["peak"] / alone["floor"] for workload, alone in result["alone"].items()}


def first(result, name):
    """CPU time of the first update over plain Keras'."""
    alone = result["alone"].items()
    return {workload: each[name]["first"] / each["plain_keras"]["first"] for workload, each in alone}


GOALS = {
    "time over the limit: 1.02": over("limit"),
    "time over Keras' accumulation: 1.00": over("keras_steps"),
    "the same, for one more micro-batch of the recommender: 0.05": over_for_one_more("keras_steps"),
    "time per sample, 256 micro-batches over 4: 1.05": growth,
    "peak memory over the floor: 1.10": peak,
    "first update over plain Keras': 1.30": first,
}


def rows(result):
    """The goal, and for each contender the median over all places, and the worst with its place."""
    return [[goal, *(_cell(figure(result, name)) for name in NAMES)] for goal, figure in GOALS.items()]


def _cell(found):
    worst = max(found, key=found.get)
    if len(found) == 1:
        return f"{found[worst]:.2f}"
    return f"{statistics.median(found.values()):.2f}, at worst {found[worst]:.2f} ({worst})"
