"""The limit: forward and backward per micro-batch, one application of the optimizer, in raw TensorFlow."""

import tensorflow as tf


def bare_loop(model, micro_batch_size, jit_compile=False):
    """A function that takes an iterator of batches and makes one update per call; whole micro-batches only."""
    variables = model.trainable_variables
    model.optimizer.build(variables)

    @tf.function(autograph=False, jit_compile=jit_compile)
    def gradients(x, y):
        with tf.GradientTape() as tape:
            loss = model.loss(y, model(x, training=True))
        return [tf.convert_to_tensor(gradient) for gradient in tape.gradient(loss, variables)]

    @tf.function(autograph=False)
    def update(iterator):
        x, y = iterator.get_next()
        number = x.shape[0] // micro_batch_size

        def part(index):
            start = index * micro_batch_size
            return x[start : start + micro_batch_size], y[start : start + micro_batch_size]

        def body(index, sums):
            start = index * micro_batch_size
            micro_x = tf.slice(x, [start] + [0] * (x.shape.rank - 1), [micro_batch_size, *x.shape[1:]])
            micro_y = tf.slice(y, [start], [micro_batch_size])
            return index + 1, [a + b for a, b in zip(sums, gradients(micro_x, micro_y))]

        first = gradients(*part(0))
        with tf.control_dependencies(first):
            index = tf.constant(1) + 0
        _, sums = tf.while_loop(lambda index, _: index < number, body, (index, first), parallel_iterations=1)
        model.optimizer.apply([total / number for total in sums], variables)

    return update
