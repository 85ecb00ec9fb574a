"""Peak memory of one update, exact to the byte, by TensorFlow's BFC allocator on the CPU.

    python benchmarks/memory.py

Every row is a process of its own, because the allocator is chosen when TensorFlow starts.
"""

import os
import subprocess
import sys

ROWS = {"plain 16": (16, None), "256 in 16s": (256, 16), "plain 256": (256, None)}


def measure(name, num_samples, size):
    """Runs in the subprocess: prints the peak above what is allocated before the first update."""
    import tensorflow as tf
    from workloads import WORKLOADS, compiled

    import bigbatch

    model, x, y = WORKLOADS[name]()
    bigbatch.accumulate(compiled(model), micro_batch_size=size)
    model.optimizer.build(model.trainable_variables)
    data = tf.data.Dataset.from_tensors((x[:num_samples], y[:num_samples])).repeat()
    model.make_train_function()
    iterator = iter(data)
    model.train_function(iterator)
    before = tf.config.experimental.get_memory_info("CPU:0")["current"]
    tf.config.experimental.reset_memory_stats("CPU:0")
    model.train_function(iterator)
    print(tf.config.experimental.get_memory_info("CPU:0")["peak"] - before)


def main():
    environment = os.environ | {"TF_CPU_ALLOCATOR_USE_BFC": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    for name in ("cnn", "transformer"):
        for row, (num_samples, size) in ROWS.items():
            program = f"from memory import measure; measure({name!r}, {num_samples}, {size})"
            done = subprocess.run(
                [sys.executable, "-c", program],
                env=environment,
                cwd=os.path.dirname(os.path.abspath(__file__)),
                capture_output=True,
                text=True,
                check=True,
            )
            print(f"{name:12} {row:12} {int(done.stdout) / 2**20:8.1f} MiB above the weights and slots")


if __name__ == "__main__":
    main()
