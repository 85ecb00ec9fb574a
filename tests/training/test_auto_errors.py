"""Where `micro_batch_size="auto"` gives up, what it says, and what it leaves alone."""

from concurrent.futures import ThreadPoolExecutor

import keras
import limited_errors
import numpy as np
import pytest
import tensorflow as tf
from limiting import run_limited

import bigbatch

pytestmark = pytest.mark.xdist_group("memory")
LIMITS = {"not_one_sample": 31, "half_an_update": 130}  # in MiB; the program says what they are between


@pytest.fixture(scope="module")
def ended():
    """How every case ended. A failed allocation waits ten seconds, so both processes run at a time."""
    with ThreadPoolExecutor(2) as pool:
        results = pool.map(lambda name: run_limited(limited_errors.__file__, LIMITS[name], name), LIMITS)
        return dict(zip(LIMITS, results))


def test_says_that_not_one_sample_fits(ended):
    failed = ended["not_one_sample"]["failed"]
    words = (
        r"AccumulationError: One sample at a time must fit the memory of every device\. Received: a sample of shape "
        r"\(20000, 8\), \(2,\), which needs more than \d+\.\d MiB on CPU:0\. Nothing has changed since the last update"
    )
    with pytest.raises(bigbatch.AccumulationError, match=words):
        raise bigbatch.AccumulationError(failed)


def test_leaves_everything_as_it_was(ended):
    initial, _, before, after = ended["not_one_sample"]["states"]
    for kind in ("kernel", "seed_generator_state", "moving_mean", "momentum", "metric/loss/total"):
        paths = [path for path in before if kind in path]
        assert paths
        assert not any(np.array_equal(initial.get(path), before[path]) for path in paths), kind
    assert before.keys() == after.keys()
    for path, value in before.items():
        np.testing.assert_array_equal(value, after[path], err_msg=path)


def test_trains_on_as_if_nothing_had_happened(ended):
    after, undisturbed = ended["not_one_sample"]["after"], ended["not_one_sample"]["undisturbed"]
    assert len(after) == len(undisturbed)
    for path, value, other in zip(after, after.values(), undisturbed.values()):
        np.testing.assert_array_equal(value, other, err_msg=path)


def test_says_that_an_update_was_applied_by_half(ended):
    assert ended["half_an_update"]["proven"] == ""
    assert ended["half_an_update"]["failed"].startswith(
        "AccumulationError: There must be memory for the optimizer to apply an update. Received: an update that needs "
        "more than "
    )


class Checking(keras.Model):
    """Refuses its inputs when it runs, and tells how many samples it was given."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)
        self.runs = []

    def call(self, inputs):
        return self.dense(inputs)

    def train_step(self, data):
        note = tf.numpy_function(self.runs.append, [tf.shape(data[0])[0]], [])
        with tf.control_dependencies([note] if note is not None else []):
            tf.debugging.assert_less(data[0], tf.cast(100, data[0].dtype), message="an input is too large")
        return super().train_step(data)


@pytest.mark.parametrize("run_eagerly", [False, True])
def test_other_errors_pass_and_are_not_tried_again(run_eagerly):
    model = Checking()
    model.compile("sgd", "mse", jit_compile=False, run_eagerly=run_eagerly)
    model(np.ones((1, 3)))
    bigbatch.accumulate(model, micro_batch_size="auto")
    before = [weight.numpy() for weight in model.weights]
    with pytest.raises(tf.errors.InvalidArgumentError, match="an input is too large"):
        model.fit(np.full((8, 3), 101.0), np.ones((8, 1)), batch_size=8, verbose=0)
    assert model.runs == [8]
    for weight, value in zip(model.weights, before):
        np.testing.assert_array_equal(weight, value)
