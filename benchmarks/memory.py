"""Peak memory of an update, exact to the byte, by TensorFlow's BFC allocator on the CPU.

    python benchmarks/memory.py [cnn transformer mlp]

The floor is what nobody can do without: weights, the slots of Adam, one copy of the gradients and the activations of 16
samples. It is measured: a forward and a backward pass whose gradients are kept. Every row says what updates of 256 and
of 4096 samples take over it, without their inputs: all variables, and what is above all that is there between updates.
The allocator may hand out up to twice what it is asked for; the bare loop tells what of it is its doing.
"""

import sys

from apart import call

NAMES = ("cnn", "transformer", "mlp")
WAYS = ("plain_keras", "bigbatch_fit", "bigbatch_windows", "limit")
NUMBERS = (16, 256)  # of micro-batches


def floor(name):
    """Runs in a process of its own."""
    import tensorflow as tf
    from measuring import peak
    from tensorflow import keras
    from workloads import load

    workload = load(name)
    model, optimizer, inputs = workload.make(), keras.optimizers.Adam(1e-3), workload.data(workload.SIZE)
    optimizer.build(model.trainable_variables)
    x, y = map(tf.constant, inputs)

    @tf.function
    def gradients():
        with tf.GradientTape() as tape:
            total = workload.loss_sum(x, y, model(x, training=True))
        return tape.gradient(total, model.trainable_variables)

    return peak(gradients)


def of_update(name, way, number):
    """The same of an update, in a process of its own."""
    import contenders
    from measuring import peak
    from tensorflow import keras
    from workloads import load

    return peak(getattr(contenders, way)(load(name), number, keras.optimizers.Adam(1e-3))[1])


def main():
    for name in sys.argv[1:] or NAMES:
        least = call("memory.floor", name)
        print(f"{name:12} the floor        {least / 2**20:.1f} MiB", flush=True)
        for way in WAYS:
            numbers = NUMBERS[:1] if way == "plain_keras" else NUMBERS
            ratios = [f"{call('memory.of_update', name, way, number) / least:.2f}" for number in numbers]
            print(f"{name:12} {way:16} {' '.join(ratios)}", flush=True)


if __name__ == "__main__":
    main()
