"""`schedules.noise_scale`: when the window grows, and that it goes on where it stopped."""

import logging
import pickle

import keras
import numpy as np
import pytest
import tensorflow as tf
from mirrored import strategy

import bigbatch
from bigbatch import schedules

BATCH_SIZE, FEATURES = 4, 5
rng = np.random.default_rng(0)
TRUTH = rng.normal(size=(FEATURES, 1))
X = rng.normal(size=(1200, FEATURES))
NOISY, CLEAN = X @ TRUTH + 8 * rng.normal(size=(1200, 1)), X @ TRUTH


def linear(rate=0.01):
    keras.utils.set_random_seed(7)
    model = keras.Sequential([keras.Input((FEATURES,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(rate), "mse")
    return model


def data(y=NOISY, number=1200):
    return tf.data.Dataset.from_tensor_slices((X[:number], y[:number])).batch(BATCH_SIZE)


def feed(schedule, noise, signal, updates=100, batch_size=10.0):
    for _ in range(updates):
        schedule.observe(noise, signal, batch_size)
    return schedule(1)


def test_grows_as_far_as_the_noise_goes():
    schedule = schedules.noise_scale(minimum=1, maximum=64)
    assert schedule(0) == schedule(1) == 1
    assert feed(schedule, noise=100.0, signal=1.0) == 8  # 80 samples, and 160 are too many
    assert feed(schedule, noise=1000.0, signal=1.0, updates=1000) == 64  # at most
    assert [decision["batches"] for decision in schedule.decisions] == [2, 4, 8, 16, 32, 64]
    assert schedule(0) == 64  # also after `compile`, which counts updates anew
    assert schedule.minimum == 1  # what the rate is relative to


def test_never_shrinks():
    schedule = schedules.noise_scale(minimum=2, maximum=64)
    assert feed(schedule, noise=100.0, signal=1.0) == 8
    assert feed(schedule, noise=1.0, signal=1.0, updates=1000) == 8


def test_an_uncertain_noise_scale_is_not_enough():
    """On the average the signal is 1, but nobody knows."""
    schedule = schedules.noise_scale(minimum=1, maximum=64)
    for turn in range(200):
        schedule.observe(25.0, 1.0 + (40.0 if turn % 2 else -40.0), 10.0)
    assert schedule(1) == 1
    assert 15 < schedule.value < 40


def test_a_ragged_tail_does_not_count_as_a_small_batch():
    schedule = schedules.noise_scale(minimum=1, maximum=64)
    for _ in range(50):
        schedule.observe(19.0, 1.0, 10.0)
        schedule.observe(19.0, 1.0, 1.0)
    assert schedule(1) == 1


def test_every_decision_is_logged_with_its_reason(caplog):
    schedule = schedules.noise_scale(minimum=1, maximum=4)
    with caplog.at_level(logging.WARNING, logger="bigbatch"):
        feed(schedule, noise=25.0, signal=1.0)
    [message] = [record.getMessage() for record in caplog.records]
    assert message == (
        "2 batches per update instead of 1: the noise scale is 25 (25 to 25), and an update will have 20 samples."
    )
    [decision] = schedule.decisions
    assert (decision["batches"], decision["value"]) == (2, pytest.approx(25.0))


def test_in_fit():
    noisy, clean = (schedules.noise_scale(minimum=1, maximum=16) for _ in range(2))
    for schedule, y in ((noisy, NOISY), (clean, CLEAN)):
        model = bigbatch.accumulate(linear(), batches_per_update=schedule)
        model.fit(data(y), epochs=3, verbose=0)
    assert noisy(1) == 16
    assert int(model.optimizer.iterations) == 3 * 300  # without noise, the gradient of every sample points the same way
    assert clean(1) == 1


def test_the_learning_rate_follows():
    schedule = schedules.noise_scale(minimum=1, maximum=4)
    feed(schedule, noise=1000.0, signal=1.0, batch_size=4.0)
    ours = bigbatch.accumulate(linear(0.01), batches_per_update=schedule, learning_rate_rule="linear")
    ours.fit(data(number=16), verbose=0)
    theirs = linear(0.04)
    theirs.fit(X[:16], NOISY[:16], batch_size=16, shuffle=False, verbose=0)
    np.testing.assert_allclose(ours.get_weights()[0], theirs.get_weights()[0], rtol=1e-10)


def test_two_replicas_decide_alike():
    with strategy(2).scope():
        model = linear()
        model.optimizer.build(model.trainable_variables)
        schedule = schedules.noise_scale(minimum=1, maximum=4)
        bigbatch.accumulate(model, batches_per_update=schedule, micro_batch_size=1)
    model.fit(data(), epochs=2, verbose=0)
    assert schedule(1) == 4


def trained(epochs, folder, callbacks=()):
    schedule = schedules.noise_scale(minimum=1, maximum=64)
    model = bigbatch.accumulate(linear(), batches_per_update=schedule)
    backup = keras.callbacks.BackupAndRestore(folder, delete_checkpoint=False)
    model.fit(data(), epochs=epochs, verbose=0, callbacks=[backup, *callbacks])
    return model, schedule


def test_goes_on_where_a_backup_was_made(tmp_path):
    trained(1, tmp_path / "a")
    resumed, schedule = trained(3, tmp_path / "a")
    whole, reference = trained(3, tmp_path / "b")
    assert schedule.get_config() == reference.get_config()
    assert reference(1) > 1
    for ours, theirs in zip(resumed.get_weights(), whole.get_weights()):
        np.testing.assert_array_equal(ours, theirs)


def test_weights_load_without_bigbatch(tmp_path):
    model, _ = trained(1, tmp_path / "a")
    model.save_weights(tmp_path / "model.weights.h5")
    plain = linear()
    plain.load_weights(tmp_path / "model.weights.h5")
    np.testing.assert_array_equal(plain.get_weights()[0], model.get_weights()[0])
    plain.save_weights(tmp_path / "plain.weights.h5")
    model.load_weights(tmp_path / "plain.weights.h5")  # has no schedule to bring back
    bigbatch.release(model)
    assert model.save_weights.__func__ is keras.Model.save_weights


def test_a_checkpoint_has_the_schedule(tmp_path):
    schedule = schedules.noise_scale(minimum=1, maximum=64)
    feed(schedule, noise=100.0, signal=1.0)
    path = tf.train.Checkpoint(schedule=schedule).save(str(tmp_path / "checkpoint"))
    other = schedules.noise_scale(minimum=1, maximum=64)
    tf.train.Checkpoint(schedule=other).restore(path).assert_consumed()
    assert other == schedule
    assert feed(other, noise=1000.0, signal=1.0) == feed(schedule, noise=1000.0, signal=1.0)


def test_is_a_schedule_like_the_others():
    schedule = schedules.noise_scale(minimum=1, maximum=64)
    feed(schedule, noise=100.0, signal=1.0)
    assert type(schedule).from_config(schedule.get_config()) == schedule
    assert pickle.loads(pickle.dumps(schedule)) == schedule
    assert schedule != schedules.noise_scale(minimum=1, maximum=64)
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("agg")
    [line] = schedule.plot().lines
    assert line.get_ydata().tolist() == [1, 2, 4, 8, 8]


def test_misuse():
    for arguments in ((0, 4), (1, 2.5), (8, 4)):
        with pytest.raises((ValueError, TypeError), match=r"minimum|maximum"):
            schedules.noise_scale(*arguments)
    with pytest.raises(ValueError, match="gradients of their own"):
        bigbatch.accumulate(
            linear(), batches_per_update=schedules.noise_scale(1, 4), micro_batch_size=2, whole_batch_loss=True
        )


def test_what_is_restored_stays_within_the_limits():
    grown = schedules.noise_scale(minimum=1, maximum=64)
    assert feed(grown, noise=1000.0, signal=1.0, batch_size=4.0) == 64
    for minimum, maximum, expected in ((1, 4, 4), (128, 256, 128), (1, 64, 64)):
        other = schedules.noise_scale(minimum, maximum)
        other.deserialize(grown.serialize())
        assert other(1) == expected
