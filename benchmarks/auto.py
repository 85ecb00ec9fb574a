"""`micro_batch_size="auto"` and `plan` under real limits of memory.

    python benchmarks/auto.py

For three models and two limits: the size that was found, the attempts that failed on the way, what an update takes once
the size is settled over one with that size given (medians of alternating updates), and what `plan` predicts of the
largest size that fits, over what it measures.
"""

import json
import logging
import os
import re
import statistics
import time

from apart import run_apart

# In MiB.
LIMITS = {"cnn": (150, 400), "transformer": (60, 200), "mlp": (500, 700)}
BATCH_SIZE, ROUNDS = 1024, 8


def measure(name):
    """Runs in the subprocess, under the limit."""
    import numpy as np
    import tensorflow as tf
    from workloads import compiled, made

    import bigbatch

    told = []
    logging.getLogger("bigbatch").addFilter(lambda record: told.append(record.getMessage()))
    model, x, y = made(name)
    rows = np.arange(BATCH_SIZE) % len(x)

    def trainer(size):
        bigbatch.accumulate(compiled(model), micro_batch_size=size)
        model.optimizer.build(model.trainable_variables)
        iterator = iter(tf.data.Dataset.from_tensors((x[rows], y[rows])).repeat())
        function = model.make_train_function(force=True)
        for _ in range(2):
            function(iterator)
        return lambda: tf.nest.map_structure(np.asarray, function(iterator))

    auto = trainer("auto")
    size = int(re.search(r"micro_batch_size=(\d+)", told[-1])[1]) if told else BATCH_SIZE
    failed = int(re.search(r"(\d+) failed", told[-1])[1]) if told else 0
    times = {"auto": [], "fixed": []}
    fixed = trainer(size)
    for _ in range(ROUNDS):
        for label, update in (("auto", auto), ("fixed", fixed)):
            start = time.perf_counter()
            update()
            times[label].append(time.perf_counter() - start)
    ratio = statistics.median(a / b for a, b in zip(times["auto"], times["fixed"]))
    print(json.dumps({"size": size, "failed": failed, "ratio": ratio}))


def planned(name, limit):
    from workloads import compiled, made

    import bigbatch

    model, x, y = made(name)
    plan = bigbatch.plan(compiled(model), x, y, batch_size=BATCH_SIZE, memory=f"{limit}MiB")
    return [row for row in plan.table if row.fits][-1], plan.micro_batch_size


def main():
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    for name, limits in LIMITS.items():
        for limit in limits:
            program = f"from auto import measure; measure({name!r})"
            found = json.loads(run_apart(program, TF_CPU_BFC_MEM_LIMIT_IN_MB=str(limit)).splitlines()[-1])
            largest, recommended = planned(name, limit)
            print(
                f"{name:12} {limit:4} MiB: auto {found['size']:4} after {found['failed']} failures, "
                f"{found['ratio']:.3f} of a given size; plan: largest {largest.micro_batch_size:4}, "
                f"predicted {largest.predicted / largest.peak:.3f} of its peak, recommends {recommended}",
                flush=True,
            )


if __name__ == "__main__":
    main()
