"""What a user of `fit` sees of windows: updates are counted, callbacks may change them, and nothing is left over."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from oracle import assert_same, train
from ragged import SIZES, dataset, joined, parts
from test_losses import X, Y, dense

import bigbatch

losses, schedules = keras.losses, bigbatch.schedules


class Recorder(keras.callbacks.Callback):
    def __init__(self):
        self.updates, self.losses, self.iterations = [], [], []

    def on_train_batch_end(self, batch, logs=None):
        self.updates.append(batch)
        self.losses.append(logs["loss"])
        self.iterations.append(int(self.model.optimizer.iterations))


def run(window, epochs=2, model=None, **arguments):
    recorder = Recorder()
    model = bigbatch.accumulate(model or dense("mse"), batches_per_update=window)
    history = model.fit(dataset(SIZES, X, Y), epochs=epochs, verbose=0, callbacks=[recorder], **arguments)
    return model, recorder, history


def test_everything_counts_updates():
    _, recorder, history = run(4)
    assert recorder.updates == [0, 1, 2] * 2
    assert recorder.iterations == [1, 2, 3, 4, 5, 6]
    assert history.params["steps"] == 3


def test_the_tail_of_an_epoch_is_never_carried_over():
    _, recorder, _ = run(50, epochs=3)
    assert recorder.iterations == [1, 2, 3]


def test_steps_per_epoch_counts_updates():
    recorder = Recorder()
    model = bigbatch.accumulate(dense("mse"), batches_per_update=4)
    data = dataset(SIZES, X, Y).repeat()
    model.fit(data, epochs=3, steps_per_epoch=2, verbose=0, callbacks=[recorder])
    assert recorder.updates == [0, 1] * 3


@pytest.mark.parametrize(("window", "totals"), [(4, [3, 3]), (schedules.piecewise({0: 1, 9: 4}), [9, 3])], ids=str)
def test_the_progress_bar_shows_updates_and_their_total(window, totals, capsys):
    model = bigbatch.accumulate(dense("mse"), batches_per_update=window)
    model.fit(dataset(SIZES, X, Y), epochs=2, verbose=2)
    shown = [line.split(" ")[0] for line in capsys.readouterr().out.splitlines() if "loss" in line]
    assert shown == [f"{total}/{total}" for total in totals]


def test_the_progress_bar_ends_with_the_updates_that_were_made(capsys):
    model = bigbatch.accumulate(dense("mse"))
    grow = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: bigbatch.accumulate(model, batches_per_update=4)
    )
    model.fit(dataset(SIZES, X, Y), verbose=2, callbacks=[grow])
    [line] = [line for line in capsys.readouterr().out.splitlines() if "loss" in line]
    assert line.startswith("3/3 ")  # 1, 4 and 4 of nine batches


def test_a_callback_changes_the_window_without_a_trace():
    class Traces(keras.Sequential):
        num_traces = 0

        def train_step(self, data):
            Traces.num_traces += 1
            return super().train_step(data)

    class Change(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            bigbatch.accumulate(self.model, batches_per_update=3)

    model = Traces([keras.Input((6,)), keras.layers.Dense(2)])
    model.compile("sgd", loss="mse")
    bigbatch.accumulate(model, batches_per_update=5)
    recorder = Recorder()
    model.fit(dataset(SIZES, X, Y), epochs=3, verbose=0, callbacks=[Change(), recorder])
    assert recorder.updates == [0, 1, 0, 1, 2, 0, 1, 2]
    assert Traces.num_traces == 2


@pytest.mark.parametrize(
    "before", [None, lambda model: model.fit(dataset(SIZES, X, Y), verbose=0)], ids=["new", "used"]
)
def test_a_model_that_was_trained_before_joins_batches_too(before):
    """Keras caches the train function of a plain `fit`."""
    model = dense("mse")
    if before:
        before(model)
    made = int(model.optimizer.iterations)
    bigbatch.accumulate(model, batches_per_update=4)
    model.fit(dataset(SIZES, X, Y), verbose=0)
    assert int(model.optimizer.iterations) == made + 3


def test_a_callback_may_release_the_model():
    class Release(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if int(self.model.optimizer.iterations) == 2:
                bigbatch.release(self.model)

    recorder = Recorder()
    model = bigbatch.accumulate(dense("mse"), batches_per_update=3)
    model.fit(dataset(SIZES, X, Y), epochs=2, verbose=0, callbacks=[Release(), recorder])
    assert recorder.updates == [0, 1, 2, 3, 4, *range(9)]  # two windows of three, then batch by batch


def test_a_schedule_adds_no_trace_and_goes_on_over_epochs():
    seen = []
    schedule = lambda update: seen.append(update) or update + 1  # noqa: E731
    _, recorder, _ = run(schedule, epochs=2)
    assert recorder.updates == [0, 1, 2, 3, 0, 1]
    assert set(seen) >= set(range(6))


class Stop(keras.callbacks.Callback):
    def __init__(self, error):
        self.error = error

    def on_train_batch_end(self, batch, logs=None):
        if batch == 1:
            raise self.error


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("stop")], ids=["interrupt", "error"])
def test_an_interrupted_fit_leaves_the_last_update_and_a_clean_start(error):
    model, reference = dense("mse"), dense("mse")
    reference.set_weights(model.get_weights())
    bigbatch.accumulate(model, batches_per_update=2)
    with pytest.raises(type(error)):
        model.fit(dataset(SIZES, X, Y), verbose=0, callbacks=[Stop(error)])
    model.fit(dataset(SIZES, X, Y), verbose=0)
    reference.fit(dataset(joined(SIZES, 2)[:2], X[:13], Y[:13]), verbose=0)
    reference.fit(dataset(joined(SIZES, 2), X, Y), verbose=0)
    for a, b in zip(model.get_weights(), reference.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10)


def test_an_early_stop_keeps_its_updates():
    class StopTraining(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            self.model.stop_training = batch == 1

    model = bigbatch.accumulate(dense("mse"), batches_per_update=2)
    model.fit(dataset(SIZES, X, Y), epochs=3, verbose=0, callbacks=[StopTraining()])
    assert int(model.optimizer.iterations) == 2


def test_data_of_unknown_length():
    """Keras warns that such data ran out, and learns the length; so do we."""
    spec = (tf.TensorSpec((None, 6), tf.float64), tf.TensorSpec((None, 2), tf.float64))
    data = tf.data.Dataset.from_generator(lambda: iter(parts(SIZES, X, Y)), output_signature=spec)
    recorder = Recorder()
    model = bigbatch.accumulate(dense("mse"), batches_per_update=4)
    with pytest.warns(UserWarning, match="ran out of data"):
        model.fit(data, epochs=3, verbose=0, callbacks=[recorder])
    assert recorder.updates == [0, 1, 2] * 3


def test_arrays_and_py_datasets():
    recorder = Recorder()
    model = bigbatch.accumulate(dense("mse"), samples_per_update=10)
    history = model.fit(X, Y, batch_size=4, epochs=2, verbose=0, callbacks=[recorder])
    assert recorder.updates == [0, 1, 2] * 2
    assert history.params["steps"] == 3


def test_train_on_batch_is_an_update_of_its_own():
    model = bigbatch.accumulate(dense("mse"), batches_per_update=4)
    model.train_on_batch(X, Y)
    model.train_on_batch(X, Y)
    assert int(model.optimizer.iterations) == 2


def test_validation_sees_batches():
    model = bigbatch.accumulate(dense("mse"), batches_per_update=4)
    history = model.fit(dataset(SIZES, X, Y), validation_data=dataset(SIZES, X, Y), verbose=0).history
    np.testing.assert_allclose(history["val_loss"][0], model.evaluate(dataset(SIZES, X, Y), verbose=0), rtol=1e-10)


def test_callbacks_of_keras_count_updates(tmp_path):
    rates = []
    model = bigbatch.accumulate(dense("mse"), batches_per_update=4)
    callbacks = [
        keras.callbacks.ModelCheckpoint(tmp_path / "{epoch}-{batch}.weights.h5", save_freq=2, save_weights_only=True),
        keras.callbacks.LearningRateScheduler(lambda epoch, rate: rates.append(rate) or rate / 2),
        keras.callbacks.CSVLogger(tmp_path / "log.csv"),
    ]
    model.fit(dataset(SIZES, X, Y), epochs=2, verbose=0, callbacks=callbacks)
    assert sorted(path.name for path in tmp_path.glob("*.h5")) == ["1-2.weights.h5", "2-1.weights.h5", "2-3.weights.h5"]
    assert len(rates) == 2
    assert len((tmp_path / "log.csv").read_text().splitlines()) == 3


def test_changing_between_windows_and_batches():
    """A summed loss divides differently in the two; each keeps what its own trace found."""

    def build():
        model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(2)])
        model.compile(keras.optimizers.SGD(0.01), loss=losses.MeanSquaredError(reduction="sum"))
        return model

    def changing(model):
        for window, data in ((4, dataset), (1, dataset), (4, lambda *a: dataset(*a).repeat(1)), (1, dataset)):
            bigbatch.accumulate(model, batches_per_update=window, micro_batch_size=2)
            history = model.fit(data(SIZES, X, Y), verbose=0)
        return history

    def reference(model):
        for window in (4, 1, 4, 1):
            history = model.fit(dataset(joined(SIZES, window), X, Y), verbose=0)
        return history

    assert_same(train(build, changing), train(build, reference))
