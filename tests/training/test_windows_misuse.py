"""Windows that cannot be are refused, with the way out, before anything has changed."""

import keras
import pytest
from ragged import SIZES, dataset
from test_losses import X, Y, dense

import bigbatch

BAD = {"zero": 0, "negative": -2, "float": 2.5, "bool": True, "none": None, "string": "8"}


@pytest.mark.parametrize("value", BAD.values(), ids=BAD)
def test_bad_windows(value):
    model = dense("mse")
    before = dict(vars(model))
    pattern = rf"`batches_per_update` must be .*Received: batches_per_update={value!r}\. Use 1"
    with pytest.raises((ValueError, TypeError), match=pattern):
        bigbatch.accumulate(model, batches_per_update=value)
    assert vars(model) == before


@pytest.mark.parametrize("value", [0, -2, 2.5, True], ids=str)
def test_bad_samples(value):
    with pytest.raises((ValueError, TypeError), match=rf"Received: samples_per_update={value!r}\. Use None"):
        bigbatch.accumulate(dense("mse"), samples_per_update=value)


def test_batches_and_samples_exclude_each_other():
    with pytest.raises(ValueError, match=r"Received: batches_per_update=2, samples_per_update=9\. Give one of the two"):
        bigbatch.accumulate(dense("mse"), batches_per_update=2, samples_per_update=9)


@pytest.mark.parametrize("bad", [0, -1, 2.5, None], ids=str)
def test_a_schedule_that_goes_wrong_names_the_update_and_changes_nothing(bad):
    model = bigbatch.accumulate(dense("mse"), batches_per_update=lambda update: bad if update == 5 else 1)
    with pytest.raises(ValueError, match=rf"positive integer.*Received: batches_per_update\(5\)={bad!r}\. Nothing"):
        model.fit(dataset(SIZES, X, Y), verbose=0, steps_per_epoch=9)
    assert int(model.optimizer.iterations) == 5


def test_a_model_with_its_own_fit_is_refused():
    class OwnFit(keras.Sequential):
        def fit(self, *args, **kwargs):
            return super().fit(*args, **kwargs)

    model = OwnFit([keras.Input((6,)), keras.layers.Dense(2)])
    bigbatch.accumulate(model, micro_batch_size=2)
    with pytest.raises(bigbatch.AccumulationError, match=r"must have the `fit` of Keras.*Received: OwnFit.fit"):
        bigbatch.accumulate(model, batches_per_update=2)


def test_a_bad_rule():
    with pytest.raises(ValueError, match=r"`learning_rate_rule` must be .*Received: learning_rate_rule='cubic'\. Use"):
        bigbatch.accumulate(dense("mse"), learning_rate_rule="cubic")
