"""How the benchmarks measure: seconds in turns, ratios of them, peaks of memory, and errors."""

import gc
import math
import statistics
import time
from typing import NamedTuple

import numpy as np


def in_turns(updates, rounds, *, warm_up=2, at_least=2, most_seconds=math.inf):
    """CPU and wall seconds of every function, round by round, so that all see the same machine.

    Every other round goes backwards, because a function finds the caches as the one before it left them. After
    `most_seconds` it stops, though not before it has made `at_least` so many.
    """
    for _ in range(warm_up):
        for update in updates.values():
            update()
    times = {name: {"cpu": [], "wall": []} for name in updates}
    began = time.perf_counter()
    for turn in range(rounds):
        if turn >= at_least and time.perf_counter() - began > most_seconds:
            break
        for name, update in list(updates.items())[:: -1 if turn % 2 else 1]:
            cpu, wall = time.process_time(), time.perf_counter()
            update()
            times[name]["cpu"].append(time.process_time() - cpu)
            times[name]["wall"].append(time.perf_counter() - wall)
    return times


def median_cpu(times, name):
    """Seconds of CPU time of one of the functions that were measured in turns."""
    return statistics.median(times[name]["cpu"])


class Ratio(NamedTuple):
    """Median and quartiles of the ratios in each round."""

    median: float
    low: float
    high: float

    def __str__(self):
        return f"{self.median:.2f} ({self.low:.2f}-{self.high:.2f})"


def ratio(mine, theirs):
    """How two lists of seconds compare that were measured in turns."""
    ratios = sorted(one / other for one, other in zip(mine, theirs, strict=True))
    quarter = len(ratios) // 4
    return Ratio(statistics.median(ratios), ratios[quarter], ratios[-1 - quarter])


def peak(update, number=5):
    """Bytes that an update takes, without its inputs: all variables, and the usual peak above what is there before it.

    By TensorFlow's BFC allocator, which may give up to twice what it is asked for.
    """
    import tensorflow as tf

    for _ in range(2):  # which give slots their memory
        update()
    gc.collect()
    between, peaks = tf.config.experimental.get_memory_info("CPU:0")["current"], []
    for _ in range(number):
        tf.config.experimental.reset_memory_stats("CPU:0")
        update()
        peaks.append(tf.config.experimental.get_memory_info("CPU:0")["peak"] - between)
    variables = [each for each in gc.get_objects() if isinstance(each, tf.Variable)]
    values = [np.frombuffer(each.read_value(), "uint8") for each in variables]
    # Sums that were reset share the zeros of their shape, a constant, until something is added.
    distinct = {each.ctypes.data: each.nbytes for each in values}
    return sum(distinct.values()) + statistics.median(peaks)


def operations():
    """Those of all graphs that are alive."""
    import tensorflow as tf

    graphs = [each for each in gc.get_objects() if isinstance(each, tf.Graph)]
    return [operation for graph in graphs for operation in graph.get_operations()]


def moved(values, before):
    """What training has done to arrays, in float64."""
    return [np.asarray(new, "float64") - np.asarray(old, "float64") for new, old in zip(values, before, strict=True)]


def error(movement, reference):
    """How far a movement is from that of the reference, over the length of the latter."""
    return _norm(moved(movement, reference)) / _norm(reference)


def _norm(arrays):
    return math.sqrt(sum(float(np.square(each).sum()) for each in arrays))
