"""Peak memory of one update, exact to the byte, by TensorFlow's BFC allocator on the CPU.

    python benchmarks/memory.py

Every row is a process of its own, because the allocator is chosen when TensorFlow starts.
"""

import os
import subprocess
import sys

ROWS = {
    "plain 16": {"num_samples": 16},
    "256 in 16s": {"num_samples": 256, "micro_batch_size": 16},
    "plain 256": {"num_samples": 256},
    "windows of 2 x 16": {"num_samples": 16, "batches_per_update": 2},
    "windows of 8 x 16": {"num_samples": 16, "batches_per_update": 8},
    "windows of 64 x 16": {"num_samples": 16, "batches_per_update": 64},
}


def measure(name, num_samples, **settings):
    """Runs in the subprocess: prints the peak above what is allocated before the first update."""
    import tensorflow as tf
    from workloads import WORKLOADS, compiled

    import bigbatch

    model, x, y = WORKLOADS[name]()
    bigbatch.accumulate(compiled(model), **settings)
    model.optimizer.build(model.trainable_variables)
    data = tf.data.Dataset.from_tensors((x[:num_samples], y[:num_samples])).repeat()
    model.make_train_function()
    iterator = iter(data)
    model.train_function(iterator)
    before = tf.config.experimental.get_memory_info("CPU:0")["current"]
    tf.config.experimental.reset_memory_stats("CPU:0")
    # The peak depends on which operations happen to run side by side: every row gets 64 forward passes to show it.
    for _ in range(64 // max(1, num_samples // settings.get("micro_batch_size", num_samples))):
        model.train_function(iterator)
    print(tf.config.experimental.get_memory_info("CPU:0")["peak"] - before)


def main():
    environment = os.environ | {"TF_CPU_ALLOCATOR_USE_BFC": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    for name in ("cnn", "transformer"):
        for row, settings in ROWS.items():
            program = f"from memory import measure; measure({name!r}, **{settings!r})"
            done = subprocess.run(
                [sys.executable, "-c", program],
                env=environment,
                cwd=os.path.dirname(os.path.abspath(__file__)),
                capture_output=True,
                text=True,
                check=True,
            )
            print(f"{name:12} {row:18} {int(done.stdout) / 2**20:8.1f} MiB above the weights and slots")


if __name__ == "__main__":
    main()
