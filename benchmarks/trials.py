"""What `compare.py` measures of one contender or of several, each in a process of its own.

TensorFlow is imported by `places`, whose strategy must come before anything else of it.
"""

import math
import time

import numpy as np
from apart import is_first
from measuring import in_turns, moved, operations, peak


def timed(workload, number, names, rounds, place):
    """CPU and wall seconds of every contender, in three rounds or more."""
    from places import WORKERS

    settings = {"rounds": rounds, "warm_up": 1, "at_least": 3, "most_seconds": 40}
    if place == WORKERS:  # who must agree when to stop, and have a clock each
        settings |= {"rounds": min(rounds, 10), "most_seconds": math.inf}
    return _in_turns(workload, number, names, place, settings)


def timed_for(workload, number, names, seconds):
    """The same on one device, in as many rounds as there is time for."""
    return _in_turns(workload, number, names, "one device", {"rounds": 10_000, "most_seconds": seconds})


def alone(workload, number, name, place, path):
    """First update, operations and peak of one contender, and in a file what an update by SGD does to its weights."""
    from places import WORKERS, travelled

    strategy, workload, makers = _prepared(workload, place, [name])
    from tensorflow import keras

    with strategy.scope():
        began = time.process_time()
        model, update = makers[name](workload, number, _adam())
        update()
        found = {"first": time.process_time() - began, "operations": len(operations()), "peak": peak(update)}
        if place == WORKERS:
            found |= travelled(update) | {"gradients": sum(each.nbytes for each in _values(model))}
        model, update = makers[name](workload, number, keras.optimizers.SGD(0.1))
        before = _values(model)
        update()
    if is_first():
        np.savez(path, *moved(_values(model), before))
    return found


def peak_of(workload, number, name):
    """Bytes of an update of so many micro-batches that one is enough."""
    _, workload, makers = _prepared(workload, "one device", [name])
    return peak(makers[name](workload, number, _adam())[1], number=1)


def floor(workload):
    """Bytes that nobody can do without: weights, slots, one copy of the gradients, activations of one micro-batch."""
    import limits
    from workloads import load

    return peak(limits.floor(load(workload), _adam()))


def imported():
    """Seconds that `import bigbatch` takes beside TensorFlow and Keras, alone and with the first use of a name."""
    import keras  # noqa: F401
    import tensorflow  # noqa: F401

    began = time.perf_counter()
    import bigbatch

    alone = time.perf_counter() - began
    bigbatch.accumulate  # noqa: B018
    return alone, time.perf_counter() - began


def _in_turns(workload, number, names, place, settings):
    strategy, workload, makers = _prepared(workload, place, names)
    with strategy.scope():
        return in_turns({name: make(workload, number, _adam())[1] for name, make in makers.items()}, **settings)


def _prepared(workload, place, names):
    """The strategy, the module of the workload, and what makes the contenders."""
    from places import strategy_of

    strategy = strategy_of(place)
    import contenders
    from workloads import load

    return strategy, load(workload), {name: getattr(contenders, name) for name in names}


def _adam():
    from tensorflow import keras

    return keras.optimizers.Adam(1e-3)


def _values(model):
    return [variable.numpy() for variable in model.trainable_variables]
