"""The private names of TensorFlow that we use.

When they move, tests/loops/test_xla.py, tests/training/test_peaks.py and the matrix fail.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tensorflow.python.ops import control_flow_util

# For what has nothing that AutoGraph should convert; it fails on generators in TensorFlow 1.14.
if hasattr(tf.autograph.experimental, "do_not_convert"):
    as_written = tf.autograph.experimental.do_not_convert
else:
    from tensorflow.python.autograph.impl import api

    as_written = api.do_not_convert()


def compiled_by_xla() -> bool:
    """Whether the function that is being traced will be compiled by XLA.

    There XLA drops assertions, and adds its padding of dynamically shaped rows to row 0 (TensorFlow 2.15 to 2.21): both
    silently, so that one must know.
    """
    return not tf.executing_eagerly() and control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph())


def device_memory(name: str) -> int:
    """The bytes that TensorFlow may use of a device; its public names tell only how many are in use."""
    from tensorflow.python.client import device_lib

    return next(int(each.memory_limit) for each in device_lib.list_local_devices() if each.name.endswith(f":{name}"))


def not_recording() -> Any:
    """A context in which tapes do not listen: those of others, which have no public name for it."""
    from tensorflow.python.eager import record

    return record.stop_recording()


def wait_for(operation: tf.Operation, other: tf.Operation) -> None:
    """Has an operation of a graph run after another; public names order only what is not made yet."""
    operation._add_control_input(other)
