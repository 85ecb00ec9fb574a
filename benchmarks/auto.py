"""`micro_batch_size="auto"` and `plan` under real limits of memory.

    python benchmarks/auto.py [--workloads cnn transformer mlp] [--output benchmarks/results/auto.json]

For three models and two limits: the size that was found, the attempts that failed on the way, what an update takes once
the size is settled over one with that size given, and what `plan` predicts of the largest size that fits, over what it
measures. Then, where memory is no matter, what an update of the CNN and the transformer takes by "auto" and in the size
that `plan` recommends over plain Keras' whole batch.

Behind every ratio is that of a twin: the same as what it is compared with, made and measured once more. A ratio tells
no more than how far it is from its twin's.
"""

import logging
import os
import re
import time

from apart import call
from measuring import in_turns, ratio
from results import facts, parser_of, save

# In MiB, and more than a size needs that fits by a hair: a given size has no second attempt.
LIMITS = {"cnn": (170, 400), "transformer": (60, 200), "mlp": (600, 720)}
BATCH_SIZES = {"cnn": 1024, "transformer": 1024, "mlp": 4096}  # for which the smaller limits do not suffice
WITH_ROOM = ("cnn", "transformer")  # small micro-batches of the MLP read all of its weights again
ROUNDS = 100
MOST_SECONDS = 100  # of all rounds


def dataset_of(name):
    import tensorflow as tf
    from workloads import again_and_again, load

    return again_and_again(tf.data.Dataset.from_tensors(load(name).data(BATCH_SIZES[name])))


def trainer(model, dataset, size):
    """A function that makes an update and waits for it; `size=None` is plain Keras."""
    import numpy as np
    import tensorflow as tf

    import bigbatch

    if size:
        bigbatch.accumulate(model, micro_batch_size=size)
    iterator = iter(dataset)
    model.make_train_function(force=True)
    function = model.train_function
    return lambda: tf.nest.map_structure(np.asarray, function(iterator))


def measure(name):
    """Runs in a process of its own, under the limit."""
    from workloads import compiled, load

    told = []
    logging.getLogger("bigbatch").addFilter(lambda record: told.append(record.getMessage()))
    model, dataset = compiled(load(name).make()), dataset_of(name)
    auto = trainer(model, dataset, "auto")
    auto()
    size = int(re.search(r"micro_batch_size=(\d+)", told[-1])[1]) if told else BATCH_SIZES[name]
    failed = int(re.search(r"(\d+) failed", told[-1])[1]) if told else 0
    ways = {"given": trainer(model, dataset, size), "auto": auto, "twin": trainer(model, dataset, size)}
    times = in_turns(ways, ROUNDS, most_seconds=MOST_SECONDS)
    ratios = {way: ratio(times[way]["wall"], times["given"]["wall"]) for way in ("auto", "twin")}
    return {"size": size, "failed": failed, **ratios}


def with_room(name):
    """Runs in a process of its own: the size that `plan` recommends, and how it and "auto" compare with plain Keras."""
    from workloads import compiled, load

    size = planned(name, "8GB")["recommended"]
    dataset = dataset_of(name)
    sizes = {"keras": None, "auto": "auto", "planned": size, "twin": None}
    ways = {way: trainer(compiled(load(name).make()), dataset, sizes[way]) for way in sizes}
    times = in_turns(ways, ROUNDS, most_seconds=MOST_SECONDS)
    return {"size": size, **{way: ratio(times[way]["cpu"], times["keras"]["cpu"]) for way in sizes}}


def planned(name, memory):
    from workloads import compiled, made

    import bigbatch

    model, x, y = made(name)
    began = time.perf_counter()
    plan = bigbatch.plan(compiled(model), x, y, batch_size=BATCH_SIZES[name], memory=memory)
    seconds, largest = time.perf_counter() - began, [row for row in plan.table if row.fits][-1]
    accuracy = largest.predicted / largest.peak
    sizes = {"largest": largest.micro_batch_size, "recommended": plan.micro_batch_size}
    return sizes | {"accuracy": accuracy, "seconds": seconds}


def main():
    parser = parser_of(__doc__)
    parser.add_argument("--workloads", nargs="*", default=LIMITS)
    arguments = parser.parse_args()
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    os.environ["TF_ENABLE_ONEDNN_OPTS"] = "0"  # whose convolutions do not survive it if memory runs out
    result = {"facts": facts(), "limited": {}, "with_room": {}}
    for name in arguments.workloads:
        for limit in LIMITS[name]:
            found = call("auto.measure", name, TF_CPU_BFC_MEM_LIMIT_IN_MB=str(limit))
            result["limited"][f"{name}, {limit} MiB"] = found | {"plan": call("auto.planned", name, f"{limit}MiB")}
        if name in WITH_ROOM:
            result["with_room"][name] = call("auto.with_room", name)
        save(result, arguments.output)
        print(name, flush=True)
    from report import auto

    print(auto(result))


if __name__ == "__main__":
    main()
