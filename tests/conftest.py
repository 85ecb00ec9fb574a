import gc
import os

# TensorFlow reads these when it is imported.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")
# As many test processes as cores, or more: threads only get in each other's way.
os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")
os.environ.setdefault("TF_NUM_INTEROP_THREADS", "1")
# Some virtual machines show AMX and forbid it: bfloat16 would end in an illegal instruction.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")

import pytest
import tensorflow as tf

# TensorFlow 1.14 traces in the mode that it was in when it was first asked anything, such as for its devices.
if not tf.executing_eagerly():
    tf.compat.v1.enable_eager_execution()

# What has been imported stays: looking through it for garbage again and again took a seventh of test_losses.py's time.
gc.collect()
gc.freeze()

# Devices for `MirroredStrategy`, which must be there before TensorFlow starts; by their names in TensorFlow 1.14.
[cpu] = tf.config.experimental.list_physical_devices("CPU")
tf.config.experimental.set_virtual_device_configuration(cpu, [tf.config.experimental.VirtualDeviceConfiguration()] * 3)


@pytest.fixture(autouse=True)
def defaults_of_keras():
    """No test leaves its precision to the next."""
    yield
    tf.keras.backend.set_floatx("float32")
    if hasattr(tf.keras, "config"):  # Keras 3
        tf.keras.config.set_dtype_policy("float32")
