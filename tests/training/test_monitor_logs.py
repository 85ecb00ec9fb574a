"""`Monitor`: what it leaves alone, when it comes and goes, and those who read the logs."""

import csv
import os
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from oracle import assert_same_logs
from test_losses import X, Y, dense
from watching import BATCHES, FIGURES, MODES, SETTINGS, Recorder, build_anew, fit_data, num_parts, watch

import bigbatch

layers, losses = keras.layers, keras.losses


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("setting", SETTINGS)
def test_what_keras_logs_does_not_change_by_a_bit(setting, mode):
    def logs(*callbacks):
        keras.config.set_floatx("float32")
        keras.config.set_dtype_policy("float32")
        model = build_anew(lambda: dense("mse", metrics=["mae"], **MODES[mode]))
        bigbatch.accumulate(model, **SETTINGS[setting][0])
        recorder = Recorder()
        data = (X.astype("float32"), Y.astype("float32"))
        history = fit_data(*data, validation_data=data)(model, [*callbacks, recorder]).history
        return history, recorder.updates, model.get_weights()

    (plain, plain_updates, plain_weights), (ours, our_updates, our_weights) = logs(), logs(bigbatch.Monitor())
    assert {"loss", "mae", "val_loss", "val_mae"} == plain.keys()
    assert {name: ours[name] for name in plain} == plain
    assert ours.keys() - plain.keys() == {*FIGURES, "samples_per_second"}
    assert [{name: logs[name] for name in ("loss", "mae")} for logs in our_updates] == plain_updates
    assert all(np.array_equal(a, b) for a, b in zip(plain_weights, our_weights, strict=True))


def test_epochs_go_on_where_they_ended():
    model = bigbatch.accumulate(dense("mse"), micro_batch_size=5)
    seen = watch(model, fit_data(X, Y, epochs=5, initial_epoch=3))
    assert len(seen.epochs) == 2
    assert seen.column("samples") == BATCHES * 2


class Counting(keras.Sequential):
    num_traces = 0

    def train_step(self, data):
        self.num_traces += 1
        self.graph = tf.compat.v1.get_default_graph()
        return super().train_step(data)


@pytest.mark.parametrize("settings", [{}, {"micro_batch_size": 4}, {"batches_per_update": 2}], ids=str)
def test_each_is_traced_once_however_often_the_monitor_comes_and_goes(settings):
    model = Counting([keras.Input((6,)), layers.Dense(2)])
    model.compile("sgd", loss="mse")
    bigbatch.accumulate(model, **settings)
    fit = fit_data(X, Y)
    fit(model, [])
    plain = model.num_traces
    fit(model, [bigbatch.Monitor()])
    both = model.num_traces
    assert plain < both <= 2 * plain
    fit(model, [])
    fit(model, [bigbatch.Monitor()])
    assert model.num_traces == both


def num_operations(*callbacks):
    """Of the graph of one update, with all its functions."""
    model = Counting([keras.Input((6,)), layers.Dense(2)])
    model.compile("sgd", loss="mse")
    bigbatch.accumulate(model, micro_batch_size=4)
    fit_data(X, Y)(model, callbacks)
    graph = model.graph
    while getattr(graph, "outer_graph", None) is not None and graph.outer_graph.building_function:
        graph = graph.outer_graph
    definition = graph.as_graph_def()
    return len(definition.node) + sum(len(function.node_def) for function in definition.library.function)


def test_without_a_monitor_nothing_is_computed():
    """The control: with one, more is."""
    plain = num_operations()
    assert num_operations(Recorder()) == plain
    assert num_operations(bigbatch.Monitor()) > plain


class Interrupt(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        raise KeyboardInterrupt


def test_a_fit_after_an_interrupted_one_is_not_watched():
    model = Counting([keras.Input((6,)), layers.Dense(2)])
    model.compile("sgd", loss="mse")
    bigbatch.accumulate(model, micro_batch_size=4)
    fit = fit_data(X, Y)
    fit(model, [])
    with pytest.raises(KeyboardInterrupt):
        fit(model, [bigbatch.Monitor(), Interrupt()])
    model.graph = None
    before = model.num_traces
    fit(model, [])
    assert model.num_traces == before
    assert watch(model, fit).column("samples") == BATCHES * 2


def test_a_model_that_is_released_meanwhile_has_no_figures():
    class Release(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 1 and "_accumulation" in vars(self.model):
                bigbatch.release(self.model)

    model, recorder = bigbatch.accumulate(dense("mse"), micro_batch_size=4), Recorder()
    fit_data(X, Y)(model, [Release(), recorder, bigbatch.Monitor()])
    assert ["samples" in logs for logs in recorder.updates] == [True, True, False, False, False, False]
    assert ["samples" in logs for logs in recorder.epochs] == [True, False]


def test_a_model_with_a_fit_of_its_own():
    class OwnFit(keras.Sequential):
        def fit(self, *args, **kwargs):
            return super().fit(*args, **kwargs)

    model = OwnFit([keras.Input((6,)), layers.Dense(2)])
    model.compile("sgd", loss="mse")
    bigbatch.accumulate(model, micro_batch_size=5)
    recorder = Recorder()
    fit_data(X, Y)(model, [bigbatch.Monitor(), recorder])
    assert recorder.column("micro_batches") == num_parts(5) * 2


def test_a_whole_batch_of_a_coupled_loss_is_not_warned_of():
    model = bigbatch.accumulate(dense(losses.Dice()))
    seen = watch(model, fit_data(np.abs(X), np.abs(Y), epochs=1))
    assert seen.column("samples") == BATCHES


def test_plain_keras_is_refused():
    with pytest.raises(ValueError, match=r"must watch an accumulated model\. Received: model='.*', which is plain Ker"):
        fit_data(X, Y)(dense("mse"), [bigbatch.Monitor()])


def test_a_name_that_is_taken_is_refused():
    model = dense("mse", metrics=[keras.metrics.MeanAbsoluteError(name="weight")])
    bigbatch.accumulate(model, micro_batch_size=5)
    with pytest.raises(ValueError, match=r"must be free in the logs\. Received: a log named 'weight'\. Give the met"):
        fit_data(X, Y)(model, [bigbatch.Monitor()])


def test_csv_logger(tmp_path):
    path = tmp_path / "log.csv"
    model = bigbatch.accumulate(dense("mse"), micro_batch_size=5)
    callbacks = [keras.callbacks.CSVLogger(str(path)), bigbatch.Monitor()]
    history = fit_data(X, Y, validation_data=(X, Y))(model, callbacks).history
    with path.open() as file:
        rows = list(csv.DictReader(file))
    assert rows[0].keys() == {"epoch", "loss", "val_loss", *FIGURES, "samples_per_second"}
    assert [float(row["samples"]) for row in rows] == [10.0, 10.0]
    assert_same_logs({name: [float(row[name]) for row in rows] for name in history}, history)


def scalars(folder):
    """All scalars of the event files of a folder, by tag and in order."""
    found = {}
    for path in sorted(Path(folder).glob("events.*")):
        for record in tf.data.TFRecordDataset(str(path)):
            for value in tf.compat.v1.Event.FromString(record.numpy()).summary.value:
                found.setdefault(value.tag, []).append(float(tf.make_ndarray(value.tensor)))
    return found


def test_tensorboard(tmp_path):
    """It keeps float32."""
    model = bigbatch.accumulate(dense("mse"), micro_batch_size=5)
    board = keras.callbacks.TensorBoard(str(tmp_path), update_freq="batch", write_graph=False)
    recorder = Recorder()
    fit_data(X, Y)(model, [board, recorder, bigbatch.Monitor()])
    shown = scalars(tmp_path / "train")
    for name in (*FIGURES, "samples_per_second"):
        np.testing.assert_allclose(shown[f"batch_{name}"], recorder.column(name), rtol=1e-6)
        np.testing.assert_allclose(shown[f"epoch_{name}"], [logs[name] for logs in recorder.epochs], rtol=1e-6)


MEMORY = """
import keras, numpy as np, bigbatch
model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4096), keras.layers.Dense(1)])
model.compile("sgd", loss="mse")
x, y = np.ones((1024, 8), "float32"), np.ones((1024, 1), "float32")
for size in (1024, 8):
    bigbatch.accumulate(model, micro_batch_size=size)
    history = model.fit(x, y, batch_size=1024, epochs=2, verbose=0, callbacks=[bigbatch.Monitor()]).history
    print(*history["peak_memory"])
"""


def test_peak_memory_is_that_of_the_update():
    """By an allocator that counts. Activations of a batch are 17 MB; all else, a batch pulled ahead too, is 1 MB."""
    environment = os.environ | {"TF_CPU_ALLOCATOR_USE_BFC": "1"}
    done = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True, env=environment, check=True)
    large, small = ([float(word) for word in line.split()] for line in done.stdout.splitlines())
    assert all(16e6 < peak < 60e6 for peak in large)
    assert all(0.1e6 < peak < 2e6 for peak in small)
