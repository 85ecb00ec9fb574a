"""Peak memory of one update, exact to the byte, by TensorFlow's BFC allocator on the CPU.

    python benchmarks/memory.py

The floor is what nobody can do without: weights, optimizer slots, one copy of the gradients and what a plain forward
and backward pass of 16 samples takes. It is measured: the pass alone, with all of its gradients kept, beside the slots.
The bare loop (`bare_loop.py`) tells what is the allocator's: it may hand out up to twice what it is asked for, and does
so where a large batch has left a large hole.

Every row is a process of its own, because the allocator is chosen when TensorFlow starts.
"""

from apart import run_apart

ROWS = {
    "floor": {"num_samples": 16, "is_floor": True},
    "plain 16": {"num_samples": 16},
    "256 in 16s": {"num_samples": 256, "micro_batch_size": 16},
    "4096 in 16s": {"num_samples": 4096, "micro_batch_size": 16},
    "bare 256 in 16s": {"num_samples": 256, "is_bare": True},
    "bare 4096 in 16s": {"num_samples": 4096, "is_bare": True},
    "plain 256": {"num_samples": 256},
    "windows of 64 x 16": {"num_samples": 16, "batches_per_update": 64},
}


def measure(name, num_samples, *, is_floor=False, is_bare=False, **settings):
    """Runs in the subprocess: prints the peak, and the bytes of the inputs."""
    import numpy as np
    import tensorflow as tf
    from bare_loop import bare_loop
    from workloads import LARGE, compiled

    import bigbatch

    model, x, y = LARGE[name]()
    bigbatch.accumulate(compiled(model), **settings)
    model.optimizer.build(model.trainable_variables)
    rows = np.arange(num_samples) % len(x)
    iterator = iter(tf.data.Dataset.from_tensors((x[rows], y[rows])).repeat())

    @tf.function(autograph=False)
    def forward_and_backward(iterator):
        x, y = iterator.get_next()
        with tf.GradientTape() as tape:
            loss = model.loss(y, model(x, training=True))
        return tape.gradient(loss, model.trainable_variables)

    run = forward_and_backward if is_floor else model.make_train_function()
    if is_bare:
        run = bare_loop(model, 16)
    run(iterator)
    tf.config.experimental.reset_memory_stats("CPU:0")
    # The peak depends on which operations happen to run side by side: every row gets 64 forward passes to show it.
    for _ in range(max(1, 64 // (num_samples // 16))):
        run(iterator)
    print(tf.config.experimental.get_memory_info("CPU:0")["peak"], x[rows].nbytes + y[rows].nbytes)


def main():
    for name in ("cnn", "transformer", "mlp"):
        floor = None
        for row, settings in ROWS.items():
            program = f"from memory import measure; measure({name!r}, **{settings!r})"
            peak, inputs = map(int, run_apart(program).split())
            # A batch must be somewhere, and a longer one takes more.
            own = peak - inputs
            floor = floor or own
            ratio = f"{own / floor:.2f} of the floor, without its inputs"
            print(f"{name:12} {row:18} {peak / 2**20:8.1f} MiB, {ratio}", flush=True)


if __name__ == "__main__":
    main()
