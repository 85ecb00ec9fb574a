"""What `verify` takes, what its report says, and what it refuses."""

import dataclasses
import json

import keras
import numpy as np
import pytest
import tensorflow as tf
import verified
from verified import SIZE, X, Y, state_of, verify

import bigbatch

L = keras.layers


def test_accumulated_model_as_it_accumulates():
    model = bigbatch.accumulate(verified.mlp(), micro_batch_size=SIZE, batches_per_update=2)
    report = bigbatch.verify(model, X, Y)
    assert report.micro_batches == (5, 6, 5, 6)
    assert report.exact
    assert model.make_train_function is not None


def test_dataset():
    dataset = tf.data.Dataset.from_tensor_slices((X, Y)).batch(8)
    report = bigbatch.verify(verified.mlp(), dataset, batches_per_update=3, micro_batch_size=5)
    assert report.micro_batches == (3, 5, 3, 5, 1, 5)
    assert report.exact


def test_model_that_is_not_built():
    model = keras.Sequential([L.Dense(4), L.Dense(1)])
    model.compile("adam", "mse", metrics=["mae"])
    assert bigbatch.verify(model, X, Y, micro_batch_size=SIZE).exact
    assert int(model.optimizer.iterations) == 0
    model.fit(X, Y, verbose=0)


@pytest.mark.parametrize("norm", [False, True], ids=["exact", "batch_norm"])
def test_under_a_strategy(norm):
    # Not by collectives, whose numbers two strategies of one process would both begin at 100.
    engine = tf.distribute.ReductionToOneDevice()
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"], cross_device_ops=engine)
    with strategy.scope():
        layers = [L.Dense(4), *([L.BatchNormalization(name="norm")] if norm else []), L.Dropout(0.3), L.Dense(1)]
        model = verified.sequential(*layers)
        model.optimizer.build(model.trainable_variables)
    before = state_of(model)
    report = bigbatch.verify(model, X, Y, micro_batch_size=4)
    assert sum(report.micro_batches) == len(X)
    assert report.exact is not norm, str(report)
    assert [cause.kind for cause in report.causes] == (["batch normalisation"] if norm else [])
    for value, known in zip(state_of(model), before, strict=True):
        np.testing.assert_array_equal(value, known)


def test_report():
    report = verify(lambda: verified.sequential(L.BatchNormalization(name="norm"), L.Dense(1)), X, Y)
    with pytest.raises(dataclasses.FrozenInstanceError):
        report.exact = True
    told = json.loads(report.to_json())
    assert told["exact"] is False
    assert told["worst"] == {"variable": report.worst.variable, "error": report.worst.error}
    assert {row["kind"] for row in told["table"]} == {"gradient", "weight", "optimizer", "statistic", "log"}
    for words in ["NOT equal", "beyond rounding", "cause: batch normalisation", "norm", "remedy: Freeze them"]:
        assert words in str(report)


def test_plot():
    from matplotlib import pyplot

    axes = verify(verified.mlp, X, Y).plot()
    assert axes.get_ylabel() == "largest difference (relative)"
    assert axes.get_yscale() == "log"
    assert axes.get_xlabel()
    pyplot.close(axes.figure)


def test_messages():
    model = verified.mlp()
    with pytest.raises(ValueError, match=r"`model` must be a compiled Keras 3 model. Received: model=3"):
        bigbatch.verify(3, X, Y, micro_batch_size=2)
    with pytest.raises(ValueError, match=r"at least two micro-batches .* micro_batch_size=None, batches_per_update=1"):
        bigbatch.verify(model, X, Y)
    with pytest.raises(ValueError, match=r"`micro_batch_size` must be .* Received: micro_batch_size=0"):
        bigbatch.verify(model, X, Y, micro_batch_size=0)
    with pytest.raises(ValueError, match=r"`x` must hold samples\."):
        bigbatch.verify(model, X[:0], Y[:0], micro_batch_size=2)
    with pytest.raises(ValueError, match=r"`x` must be arrays or a `tf.data.Dataset`\. Received: x=generator"):
        bigbatch.verify(model, (row for row in X), micro_batch_size=2)
    with pytest.raises(ValueError, match=r"A dataset must hold targets and weights itself\."):
        bigbatch.verify(model, tf.data.Dataset.from_tensor_slices((X, Y)).batch(8), Y, micro_batch_size=2)
    with pytest.raises(ValueError, match=r"`batches_per_update` must be given for a model that joins batches by"):
        bigbatch.verify(bigbatch.accumulate(verified.mlp(), samples_per_update=8), X, Y)
    with pytest.raises(ValueError, match=r"must be given for a model that finds its own size"):
        bigbatch.verify(bigbatch.accumulate(model, micro_batch_size="auto"), X, Y)
