"""`micro_batch_size="auto"` and `plan` under real limits of memory.

    python benchmarks/auto.py [cnn transformer mlp]

For three models and two limits: the size that was found, the attempts that failed on the way, what an update takes once
the size is settled over one with that size given, and what `plan` predicts of the largest size that fits, over what it
measures. Then, where memory is no matter, what an update of the CNN and the transformer takes by "auto" and in the size
that `plan` recommends over plain Keras' whole batch.
"""

import logging
import os
import re
import sys

from apart import call
from measuring import Ratio, in_turns, ratio

# In MiB, and more than a size needs that fits by a hair: a given size has no second attempt.
LIMITS = {"cnn": (170, 400), "transformer": (60, 200), "mlp": (600, 720)}
BATCH_SIZES = {"cnn": 1024, "transformer": 1024, "mlp": 4096}  # for which the smaller limits do not suffice
WITH_ROOM = ("cnn", "transformer")  # small micro-batches of the MLP read all of its weights again
ROUNDS = 9


def dataset_of(name):
    import tensorflow as tf
    from workloads import load

    return tf.data.Dataset.from_tensors(load(name).data(BATCH_SIZES[name])).repeat()


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
    times = in_turns({"auto": auto, "fixed": trainer(model, dataset, size)}, ROUNDS)
    return {"size": size, "failed": failed, "ratio": ratio(times["auto"]["wall"], times["fixed"]["wall"])}


def with_room(name):
    """Runs in a process of its own: the size that `plan` recommends, and how it and "auto" compare with plain Keras."""
    from workloads import compiled, load

    size = planned(name, "8GB")[1]
    dataset = dataset_of(name)
    ways = {way: trainer(compiled(load(name).make()), dataset, way) for way in (None, "auto", size)}
    times = in_turns(ways, ROUNDS)
    return [size, *(ratio(times[way]["cpu"], times[None]["cpu"]) for way in ("auto", size))]


def planned(name, memory):
    from workloads import compiled, made

    import bigbatch

    model, x, y = made(name)
    plan = bigbatch.plan(compiled(model), x, y, batch_size=BATCH_SIZES[name], memory=memory)
    return [row for row in plan.table if row.fits][-1], plan.micro_batch_size


def main():
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    os.environ["TF_ENABLE_ONEDNN_OPTS"] = "0"  # whose convolutions do not survive it if memory runs out
    for name in sys.argv[1:] or LIMITS:
        for limit in LIMITS[name]:
            found = call("auto.measure", name, TF_CPU_BFC_MEM_LIMIT_IN_MB=str(limit))
            largest, recommended = planned(name, f"{limit}MiB")
            print(
                f"{name:12} {limit:4} MiB: auto {found['size']:4} after {found['failed']} failures, "
                f"{Ratio(*found['ratio'])} of a given size; plan: largest {largest.micro_batch_size:4}, "
                f"predicted {largest.predicted / largest.peak:.3f} of its peak, recommends {recommended}",
                flush=True,
            )
        if name in WITH_ROOM:
            size, *ratios = call("auto.with_room", name)
            auto, recommended = (Ratio(*each) for each in ratios)
            print(f"{name:12} with room: of plain Keras, auto {auto}, plan's choice {size} {recommended}", flush=True)


if __name__ == "__main__":
    main()
