"""`Monitor`: the figures of every update, against those of the whole batch by hand, and those who read them."""

import csv
import os
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from oracle import assert_same_logs, fit_arrays, one_update
from test_losses import LABELS, TOKEN_WEIGHTS, TOKENS, WEIGHTS, X, Y, dense, tagger
from test_models import Gan
from test_replicas import strategy
from test_windows import dataset, parts

import bigbatch

layers, losses, optimizers = keras.layers, keras.losses, keras.optimizers
FIGURES = ("samples", "weight", "micro_batches", "gradient_norm")
BATCHES = [12, 12, 6]  # of an epoch of thirty samples


class Recorder(keras.callbacks.Callback):
    """What a callback sees that comes before the monitor."""

    def __init__(self):
        super().__init__()
        self.updates, self.epochs = [], []

    def on_train_batch_end(self, batch, logs=None):
        self.updates.append(dict(logs))

    def on_epoch_end(self, epoch, logs=None):
        self.epochs.append(dict(logs))

    def column(self, name):
        return [logs[name] for logs in self.updates]


def watch(model, fit):
    """Fits with a monitor; returns what another callback has seen."""
    recorder = Recorder()
    fit(model, callbacks=[recorder, bigbatch.Monitor()])
    return recorder


def fit_data(*arrays, sizes=BATCHES, **arguments):
    return lambda model, callbacks: model.fit(
        dataset(sizes, *arrays), callbacks=callbacks, verbose=0, **({"epochs": 2} | arguments)
    )


def build_anew(build):
    keras.utils.set_random_seed(7)
    return build()


def norm(gradients):
    dense = [tf.convert_to_tensor(gradient).numpy() for gradient in gradients]
    return float(np.sqrt(sum((gradient**2).sum() for gradient in dense)))


def norms_by_hand(build, arrays, sizes=BATCHES, epochs=2):
    """The norms of a raw `GradientTape` on whole batches of plain Keras."""
    model = build_anew(build)
    return [norm(one_update(model, *batch)) for _ in range(epochs) for batch in parts(sizes, *arrays)]


def num_parts(size):
    return [-(-each // size) for each in BATCHES]


MODES = {
    "graph": {},
    "xla": {"jit_compile": True},
    "eager": {"run_eagerly": True},
}
SETTINGS = {
    "whole": ({}, BATCHES, [1, 1, 1]),
    "micro_batches": ({"micro_batch_size": 5}, BATCHES, num_parts(5)),
    "auto": ({"micro_batch_size": "auto"}, BATCHES, [1, 1, 1]),
    "windows": ({"batches_per_update": 2}, [24, 6], [2, 1]),
    "windows_of_micro_batches": ({"batches_per_update": 2, "micro_batch_size": 5}, [24, 6], [6, 2]),
    "windows_auto": ({"batches_per_update": 2, "micro_batch_size": "auto"}, [24, 6], [2, 1]),
    "samples": ({"samples_per_update": 20}, [24, 6], [2, 1]),
}


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("mode", MODES)
def test_every_update_by_hand(mode, setting):
    settings, sizes, micro_batches = SETTINGS[setting]
    build = lambda: dense("mse", **MODES[mode])  # noqa: E731
    seen = watch(bigbatch.accumulate(build_anew(build), **settings), fit_data(X, Y))
    assert seen.column("samples") == seen.column("weight") == sizes * 2
    assert seen.column("micro_batches") == micro_batches * 2
    norms = norms_by_hand(build, (X, Y), sizes)
    assert max(norms) > 1.1 * min(norms)
    np.testing.assert_allclose(seen.column("gradient_norm"), norms, rtol=1e-10)
    assert all(speed > 0 for speed in seen.column("samples_per_second"))


@pytest.mark.parametrize("setting", SETTINGS)
def test_an_epoch_has_the_means_of_its_updates(setting):
    settings, sizes, _ = SETTINGS[setting]
    seen = watch(bigbatch.accumulate(dense("mse"), **settings), fit_data(X, Y))
    for epoch, logs in enumerate(seen.epochs):
        updates = seen.updates[epoch * len(sizes) : (epoch + 1) * len(sizes)]
        means = {name: np.mean([update[name] for update in updates]) for name in FIGURES}
        np.testing.assert_allclose([logs[name] for name in FIGURES], list(means.values()), rtol=1e-12)
        seconds = sum(update["samples"] / update["samples_per_second"] for update in updates)
        assert logs["samples_per_second"] == pytest.approx(30 / seconds)


@pytest.mark.parametrize("settings", [{}, {"micro_batch_size": 5}, {"batches_per_update": 2}], ids=str)
def test_several_updates_per_execution(settings):
    """The last one's figures; the epoch's are of all."""
    build = lambda: dense("mse", steps_per_execution=2)  # noqa: E731
    seen = watch(bigbatch.accumulate(build_anew(build), **settings), fit_data(X, Y, epochs=1))
    sizes = [24, 6] if "batches_per_update" in settings else BATCHES
    norms = norms_by_hand(build, (X, Y), sizes, epochs=1)
    ends = [1] if len(sizes) == 2 else [1, 2]
    assert seen.column("samples") == [sizes[end] for end in ends]
    np.testing.assert_allclose(seen.column("gradient_norm"), [norms[end] for end in ends], rtol=1e-10)
    [epoch] = seen.epochs
    assert epoch["samples"] == pytest.approx(np.mean(sizes))
    assert epoch["gradient_norm"] == pytest.approx(np.mean(norms), rel=1e-10)


def totals(values):
    return [float(part[0].sum()) for part in parts(BATCHES, values)]


WEIGHED = {
    "samples": (lambda: dense("mse"), (X, Y, WEIGHTS), BATCHES),
    "sum": (lambda: dense(losses.MeanSquaredError(reduction="sum")), (X, Y), BATCHES),
    "weights": (
        lambda: dense(losses.MeanSquaredError(reduction="mean_with_sample_weight")),
        (X, Y, WEIGHTS),
        totals(WEIGHTS),
    ),
    "tokens": (tagger, (TOKENS, LABELS), totals(TOKENS > 0)),
    "tokens_with_weights": (tagger, (TOKENS, LABELS, TOKEN_WEIGHTS), totals(TOKENS > 0)),
}


@pytest.mark.parametrize("size", [None, 5], ids=["whole", "micro_batches"])
@pytest.mark.parametrize("name", WEIGHED)
def test_the_weight_is_what_the_loss_divides_by(name, size):
    build, arrays, weights = WEIGHED[name]
    seen = watch(bigbatch.accumulate(build_anew(build), micro_batch_size=size), fit_data(*arrays, epochs=1))
    np.testing.assert_allclose(seen.column("weight"), weights, rtol=1e-12)
    assert seen.column("samples") == BATCHES
    np.testing.assert_allclose(seen.column("gradient_norm"), norms_by_hand(build, arrays, epochs=1), rtol=1e-10)


def test_the_weight_of_a_sum_in_a_window_is_its_samples():
    model = bigbatch.accumulate(dense(losses.MeanSquaredError(reduction="sum")), batches_per_update=2)
    assert watch(model, fit_data(X, Y, epochs=1)).column("weight") == [24, 6]


SCALED = {
    "dynamic": lambda: optimizers.LossScaleOptimizer(optimizers.SGD(0.1), initial_scale=64.0, dynamic_growth_steps=2),
    "fixed": lambda: optimizers.SGD(0.1, loss_scale_factor=64.0),
    "clipped": lambda: optimizers.SGD(0.1, global_clipnorm=1e-3),
}


@pytest.mark.parametrize("size", [None, 5], ids=["whole", "micro_batches"])
@pytest.mark.parametrize("name", SCALED)
def test_the_norm_is_neither_scaled_nor_clipped(name, size):
    def build(optimizer):
        model = dense("mse")
        model.compile(optimizer, loss="mse")
        return model

    model = bigbatch.accumulate(build_anew(lambda: build(SCALED[name]())), micro_batch_size=size)
    seen = watch(model, fit_data(X, Y))
    plain = {} if name != "clipped" else {"global_clipnorm": 1e-3}
    norms = norms_by_hand(lambda: build(optimizers.SGD(0.1, **plain)), (X, Y))
    assert min(norms) > 0.01
    np.testing.assert_allclose(seen.column("gradient_norm"), norms, rtol=1e-10)


def test_mixed_precision():
    """float16 has eleven bits."""

    def build(policy, optimizer):
        keras.config.set_dtype_policy(policy)
        model = keras.Sequential([keras.Input((6,)), layers.Dense(2)])
        model.set_weights([X[:6, :2], X[0, :2]])  # initial weights are other ones for another dtype
        model.compile(optimizer, loss="mse")
        return model

    scaled = optimizers.LossScaleOptimizer(optimizers.SGD(0.1), initial_scale=8.0)
    model = bigbatch.accumulate(build("mixed_float16", scaled), micro_batch_size=5)
    seen = watch(model, fit_data(X, Y, epochs=1))
    norms = norms_by_hand(lambda: build("float64", optimizers.SGD(0.1)), (X, Y), epochs=1)
    np.testing.assert_allclose(seen.column("gradient_norm"), norms, rtol=2e-3)


def test_an_update_that_overflows_shows_it():
    model = dense("mse")
    model.compile(optimizers.LossScaleOptimizer(optimizers.SGD(0.1)), loss="mse")
    bigbatch.accumulate(model, micro_batch_size=5)
    poisoned = X.copy()
    poisoned[0] = np.inf
    seen = watch(model, fit_data(poisoned, Y, epochs=1))
    assert np.isfinite(seen.column("gradient_norm")).tolist() == [False, True, True]


@pytest.mark.parametrize("size", [None, 5], ids=["whole", "micro_batches"])
def test_the_norm_of_a_custom_train_step_is_over_all_its_optimizers(size):
    real, noise = X, X[:, :2]

    def build():
        model = Gan()
        model.compile(optimizers.SGD(0.1), optimizers.SGD(0.2))
        return model

    model = bigbatch.accumulate(build_anew(build), micro_batch_size=size)
    seen = watch(model, fit_arrays_with(real, noise, epochs=1, batch_size=30))

    reference = build_anew(build)
    pairs = [(reference.discriminator, reference.d_optimizer), (reference.generator, reference.g_optimizer)]
    gradients = []
    for index, (part, optimizer) in enumerate(pairs):
        with tf.GradientTape() as tape:
            loss = reference.losses_of(real, noise)[index]
        gradients.append(tape.gradient(loss, part.trainable_weights))
        if size is None:  # micro-batches all run before the first optimizer is applied
            optimizer.apply(gradients[-1], part.trainable_weights)
    np.testing.assert_allclose(seen.column("gradient_norm"), [norm(sum(gradients, []))], rtol=1e-10)


def fit_arrays_with(*arrays, **arguments):
    return lambda model, callbacks: fit_arrays(*arrays, callbacks=callbacks, **arguments)(model)


@pytest.mark.parametrize("settings", [{}, {"micro_batch_size": 4}, {"micro_batch_size": "auto"}], ids=str)
@pytest.mark.parametrize("mode", [{}, {"run_eagerly": True}], ids=["graph", "eager"])
def test_several_replicas_are_counted_together(mode, settings):
    build = lambda: dense("mse", **mode)  # noqa: E731
    with strategy(2).scope():
        model = bigbatch.accumulate(build_anew(build), **settings)
    seen = watch(model, fit_arrays_with(X, Y, batch_size=29))
    assert seen.column("samples") == seen.column("weight") == [29, 1] * 2
    assert seen.column("micro_batches") == ([8, 1] if settings.get("micro_batch_size") == 4 else [2, 1]) * 2
    norms = norms_by_hand(build, (X, Y), [29, 1])
    np.testing.assert_allclose(seen.column("gradient_norm"), norms, rtol=1e-10)
    assert [epoch["samples"] for epoch in seen.epochs] == [15, 15]


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


def test_rows_of_an_embedding_are_added_before_their_norm_is_taken():
    tokens = np.ones((12, 8), "int64")  # the same row, again and again

    def build():
        model = keras.Sequential([keras.Input((8,), dtype="int32"), layers.Embedding(10, 4), layers.Flatten()])
        model.add(layers.Dense(2))
        model.compile(optimizers.SGD(0.1), loss="mse")
        return model

    seen = watch(bigbatch.accumulate(build_anew(build)), fit_data(tokens, Y[:12], sizes=[12], epochs=1))
    norms = norms_by_hand(build, (tokens, Y[:12]), [12], epochs=1)
    np.testing.assert_allclose(seen.column("gradient_norm"), norms, rtol=1e-10)


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
model = keras.Sequential([keras.Input((1000,)), keras.layers.Dense(1000), keras.layers.Dense(1)])
model.compile("sgd", loss="mse")
x, y = np.ones((1024, 1000), "float32"), np.ones((1024, 1), "float32")
for size in (1024, 8):
    bigbatch.accumulate(model, micro_batch_size=size)
    history = model.fit(x, y, batch_size=1024, epochs=2, verbose=0, callbacks=[bigbatch.Monitor()]).history
    print(*history["peak_memory"])
"""


def test_peak_memory_is_that_of_the_update():
    """By an allocator that counts. Weights and their gradient are 8 MB, inputs 4 MB, the activations of a batch 4 MB."""
    environment = os.environ | {"TF_CPU_ALLOCATOR_USE_BFC": "1"}
    done = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True, env=environment, check=True)
    large, small = ([float(word) for word in line.split()] for line in done.stdout.splitlines())
    assert all(12e6 < peak < 60e6 for peak in (*large, *small))
    assert small[-1] < large[-1] - 3e6
