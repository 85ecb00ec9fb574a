"""The ways to run the same window of micro-batches: eagerly, traced in parts, traced as a whole, compiled."""

import big_batch
import tensorflow as tf

import bigbatch

VECTOR, MATRIX = tf.TensorSpec([None, 5], tf.int64), tf.TensorSpec([None, 4], tf.float64)


def eager(variables, accumulator, optimizer):
    def window(parts):
        for ids, y in parts:
            accumulator.add(big_batch.gradients(variables, ids, y), weight=len(ids.numpy()))
        accumulator.apply(optimizer)

    return window


def traced_add(variables, accumulator):
    @tf.function(input_signature=[VECTOR, MATRIX])
    def add(ids, y):
        accumulator.add(big_batch.gradients(variables, ids, y), weight=tf.shape(ids)[0])

    return add


def add_traced(variables, accumulator, optimizer):
    add = traced_add(variables, accumulator)

    def window(parts):
        for ids, y in parts:
            add(ids, y)
        accumulator.apply(optimizer)

    return window


def both_traced(variables, accumulator, optimizer):
    add, apply = traced_add(variables, accumulator), tf.function(lambda: accumulator.apply(optimizer))

    def window(parts):
        for ids, y in parts:
            add(ids, y)
        apply()

    return window


def loop_traced(variables, accumulator, optimizer):
    @tf.function(input_signature=[VECTOR, MATRIX, tf.TensorSpec([None], tf.int32)])
    def traced(ids, y, ends):
        start = tf.constant(0)
        for end in ends:
            accumulator.add(big_batch.gradients(variables, ids[start:end], y[start:end]), weight=end - start)
            start = end
        accumulator.apply(optimizer)

    def window(parts):
        ids, y = (tf.concat(tensors, 0) for tensors in zip(*parts))
        traced(ids, y, tf.cumsum([int(part[0].shape[0]) for part in parts]))

    return window


def compiled(variables, accumulator, optimizer):
    @tf.function(jit_compile=True)
    def window(parts):
        for ids, y in parts:
            accumulator.add(big_batch.gradients(variables, ids, y), weight=ids.shape[0])
        accumulator.apply(optimizer)

    return window


# AutoGraph of TensorFlow 1.14 wraps what it cannot make anew, with its words inside.
WHILE_TRACING = bigbatch.AccumulationError if big_batch.VERSION >= (2, 0) else Exception
MODES = {mode.__name__: mode for mode in (eager, add_traced, both_traced, loop_traced)}
if big_batch.VERSION >= (2, 5):
    MODES["compiled"] = compiled
