"""Where an update runs, and what travels there. Imported after TensorFlow's environment is set."""

from pathlib import Path

import tensorflow as tf
from measuring import operations

ONE, DEVICES, WORKERS = "one device", "two devices", "two workers"
NUM_PROCESSES = {ONE: 1, DEVICES: 1, WORKERS: 2}


def strategy_of(place):
    """Must come before anything else of TensorFlow."""
    if place == WORKERS:
        return tf.distribute.MultiWorkerMirroredStrategy()
    if place == DEVICES:
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
        return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    return tf.distribute.get_strategy()


def travelled(update, number=5):
    """The collectives of an update, and the bytes that each of two workers sends.

    Collectives are counted in the graphs, where one in a loop would be one; bytes by the kernel, of everything that is
    on the loopback interface. (TensorFlow's profiler would count what runs, but crashes one of two workers at times.)
    """
    before = _sent()
    for _ in range(number):
        update()
    sent = (_sent() - before) / number / 2
    return {"collectives": sum(each.type == "CollectiveReduceV2" for each in operations()), "sent": sent}


def _sent():
    [line] = [line for line in Path("/proc/net/dev").read_text().splitlines() if line.strip().startswith("lo:")]
    return int(line.split()[9])
