"""What can work here, found by trying. Each check returns what it found, or raises `Cannot` or whatever stops it.

Nothing here imports TensorFlow before it is tried: a machine without it is one of the patients.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module, metadata
from typing import NamedTuple

INSTALL = {
    "tensorflow": "tensorflow",
    "keras": "tensorflow",
    "matplotlib": "plot",
    "rich": "cli",
    "ray": "ray",
    "sklearn": "demo",
}


class Cannot(Exception):
    """Why something cannot work here, and the way out."""

    def __init__(self, why: str, remedy: str) -> None:
        super().__init__(why)
        self.remedy = remedy


class Check(NamedTuple):
    """A feature, what it is tried by, and whether `accumulate` needs it."""

    name: str
    run: Callable[[], str]
    is_needed: bool = False


def _accumulate() -> str:
    import bigbatch

    accumulate = bigbatch.accumulate
    import keras
    import numpy as np

    if keras.config.backend() != "tensorflow":
        why = f"Keras runs on the {keras.config.backend()!r} backend"
        raise Cannot(why, "Set KERAS_BACKEND=tensorflow before Keras is imported.")
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", loss="mse")
    x = np.ones((4, 1), "float32")
    accumulate(model, micro_batch_size=2).fit(x, x, batch_size=4, verbose=0)
    return f"{int(model.optimizer.iterations)} update of 4 samples, 2 at a time"


def _loops() -> str:
    import tensorflow as tf

    import bigbatch

    variable = tf.Variable([1.0])
    accumulator = bigbatch.GradientAccumulator([variable])
    for gradient in ([1.0], [3.0]):
        accumulator.add([tf.constant(gradient)])
    return f"the mean of 1 and 3 is {accumulator.gradients()[0].numpy()[0]:.0f}"


def _plan() -> str:
    import tensorflow  # noqa: F401

    from bigbatch.training.memory import device, peak

    where = device()
    if where != "CPU:0":
        if peak(where) is None:
            raise Cannot(f"the allocator of {where} does not count", "Unset TF_GPU_ALLOCATOR.")
        return f"measured by the allocator of {where}"
    program = "import tensorflow as tf; tf.config.experimental.get_memory_info('CPU:0')"
    _apart(program, "Upgrade TensorFlow.", TF_CPU_ALLOCATOR_USE_BFC="1", CUDA_VISIBLE_DEVICES="-1")
    return "measured by the BFC allocator, in a process of its own"


def _mirrored() -> str:
    import tensorflow as tf

    devices = tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("CPU")
    if len(devices) < 2:
        remedy = "Make several of a CPU with `tf.config.set_logical_device_configuration`."
        raise Cannot(f"there is one device, {devices[0].name.split('device:')[-1]}", remedy)
    return f"{len(devices)} devices"


def _workers() -> str:
    import tensorflow  # noqa: F401

    from bigbatch.cli.launch import free_ports

    return "ports {} and {} of this machine are free".format(*free_ports(2))


def _mixed() -> str:
    import tensorflow as tf

    program = (
        "import tensorflow as tf\nfor x in (tf.ones((8, 8), 'float16'), tf.ones((8, 8), 'bfloat16')): tf.matmul(x, x)"
    )
    _apart(
        program, "Set ONEDNN_MAX_CPU_ISA=AVX512_CORE_FP16, if this is a virtual machine that shows AMX and forbids it."
    )
    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        return "float16 and bfloat16 run; on a CPU they save memory, not time"
    capability = tf.config.experimental.get_device_details(gpus[0]).get("compute_capability", (0, 0))
    fast = "with" if capability >= (7, 0) else "without"
    return f"float16 and bfloat16 run, {fast} tensor cores"


def _xla() -> str:
    import tensorflow  # noqa: F401

    program = "import tensorflow as tf; tf.function(lambda x: x + 1, jit_compile=True)(tf.ones(())).numpy()"
    _apart(program, "Train without `jit_compile`.")
    return "a function compiles and runs"


def _apart(program: str, remedy: str, **environment: str) -> None:
    """Runs a program in a process of its own, for what dies of it must not be the doctor."""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, check=False)
    if done.returncode < 0:
        raise Cannot(f"a process that tried it died of {signal.Signals(-done.returncode).name}", remedy)
    if done.returncode:
        raise Cannot((done.stderr.strip().splitlines() or ["a process of its own failed"])[-1], remedy)


def _imported(module: str, distribution: str) -> Callable[[], str]:
    def check() -> str:
        import_module(module)
        return f"{distribution} {metadata.version(distribution)}"

    return check


CHECKS = (
    Check("accumulate", _accumulate, is_needed=True),
    Check("custom loops", _loops),
    Check("plan", _plan),
    Check("MirroredStrategy", _mirrored),
    Check("MultiWorkerMirroredStrategy", _workers),
    Check("mixed precision", _mixed),
    Check("XLA", _xla),
    Check("tables", _imported("rich", "rich")),
    Check("plots", _imported("matplotlib", "matplotlib")),
    Check("demo", _imported("sklearn", "scikit-learn")),
    Check("Ray", _imported("ray", "ray")),
)
