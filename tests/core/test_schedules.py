"""Schedules are plain callables; the learning-rate rules are what they say."""

import dataclasses
import json
import pickle

import keras
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bigbatch import schedules

positive = st.integers(1, 10_000)
SCHEDULES = [schedules.ramp(1, 32, updates=1000), schedules.piecewise({0: 1, 500: 4, 2000: 16})]


@given(positive, positive, positive, st.integers(0, 20_000))
def test_a_ramp_stays_between_its_ends(first, last, updates, update):
    value = schedules.ramp(first, last, updates=updates)(update)
    assert type(value) is int
    assert min(first, last) <= value <= max(first, last)


@given(positive, positive, positive)
def test_a_ramp_begins_and_ends_where_it_says(first, last, updates):
    schedule = schedules.ramp(first, last, updates=updates)
    assert (schedule(0), schedule(updates), schedule(updates + 1)) == (first, last, last)


@pytest.mark.parametrize(("update", "batches"), [(0, 1), (499, 1), (500, 4), (1999, 4), (2000, 16), (10**6, 16)])
def test_piecewise_changes_where_it_says(update, batches):
    assert SCHEDULES[1](update) == batches


@pytest.mark.parametrize("schedule", SCHEDULES, ids=["ramp", "piecewise"])
def test_serialization(schedule):
    assert pickle.loads(pickle.dumps(schedule)) == schedule
    config = json.loads(json.dumps(schedule.get_config()))
    assert type(schedule).from_config(config) == schedule
    with pytest.raises(dataclasses.FrozenInstanceError):
        schedule.first = 2


@pytest.mark.parametrize("schedule", SCHEDULES, ids=["ramp", "piecewise"])
def test_plot(schedule):
    import matplotlib

    matplotlib.use("Agg")
    ax = schedule.plot()
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("updates made", "batches per update")
    assert max(ax.lines[0].get_ydata()) == schedule(10**6)
    assert schedule.plot(ax) is ax


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: schedules.ramp(0, 4, updates=3), r"`first` must be a positive integer\. Received: first=0\."),
        (lambda: schedules.ramp(1, 2.5, updates=3), r"`last` must be .*Received: last=2\.5\."),
        (lambda: schedules.ramp(1, 2, updates=None), r"`updates` must be .*Received: updates=None\."),
        (lambda: schedules.piecewise({}), r"beginning with update 0\. Received: batches=\{\}\. Add an entry"),
        (lambda: schedules.piecewise({3: 1}), r"beginning with update 0.*Received: batches=\{3: 1\}"),
        (lambda: schedules.piecewise({0: 1, 9: 0}), r"at least one batch.*Received: batches\[9\]=0\. Use 1"),
        (lambda: schedules.piecewise({0: 2.5}), r"Received: batches\[0\]=2\.5"),
    ],
)
def test_bad_schedules(make, message):
    with pytest.raises((ValueError, TypeError), match=message):
        make()


of_keras = keras.optimizers.schedules
RATES = {
    "cosine": of_keras.CosineDecay(0.1, 100, alpha=0.1, warmup_target=0.3, warmup_steps=10),
    "cosine_restarts": of_keras.CosineDecayRestarts(0.1, 10, alpha=0.1),
    "exponential": of_keras.ExponentialDecay(0.1, 10, 0.5),
    "inverse_time": of_keras.InverseTimeDecay(0.1, 10, 0.5),
    "piecewise": of_keras.PiecewiseConstantDecay([5, 50], [0.1, 0.01, 0.001]),
    "polynomial": of_keras.PolynomialDecay(0.1, 50, end_learning_rate=0.01),
}


@pytest.mark.parametrize(("rule", "factor"), [("linear", 4.0), ("sqrt", 2.0)])
@pytest.mark.parametrize("rate", RATES.values(), ids=RATES)
def test_a_schedule_is_scaled_everywhere(rate, rule, factor):
    scaled = schedules.scale_learning_rate(rate, batch_size=1024, base_batch_size=256, rule=rule)
    assert type(scaled) is type(rate)
    assert [float(scaled(step)) for step in range(60)] == pytest.approx(
        [factor * float(rate(step)) for step in range(60)], rel=1e-5
    )


def test_every_schedule_of_keras_is_here():
    classes = {
        name
        for name, value in vars(of_keras).items()
        if isinstance(value, type) and issubclass(value, of_keras.LearningRateSchedule)
    }
    assert classes - {"LearningRateSchedule"} == {type(rate).__name__ for rate in RATES.values()}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 0, "base_batch_size": 1}, r"`batch_size` must be a positive.*Received: batch_size=0"),
        ({"batch_size": 1, "base_batch_size": 2.0}, r"`base_batch_size` must be.*Received: base_batch_size=2\.0"),
        ({"batch_size": 1, "base_batch_size": 1, "rule": "cubic"}, r"`rule` must be.*Received: rule='cubic'"),
    ],
)
def test_bad_scaling(arguments, message):
    with pytest.raises((ValueError, TypeError), match=message):
        schedules.scale_learning_rate(0.1, **arguments)


def test_a_schedule_of_somebody_else_gets_the_factor_to_use():
    with pytest.raises(TypeError, match=r"number or a learning-rate schedule of Keras.*by 2\."):
        schedules.scale_learning_rate(lambda: 0.1, batch_size=4, base_batch_size=1, rule="sqrt")
