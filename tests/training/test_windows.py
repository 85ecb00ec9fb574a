"""Several batches per update: a window equals training on its batches joined into one."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from oracle import NUM_SAMPLES, assert_same, eagerly, train
from test_losses import CASES as LOSS_CASES
from test_losses import LABELS, MANY_X, MANY_Y, TOKEN_WEIGHTS, TOKENS, WEIGHTS, X, Y, dense, tagger, two_outputs
from test_optimizers import OPTIMIZERS

import bigbatch

losses, schedules = keras.losses, bigbatch.schedules
SIZES = [4, 3, 5, 1, 4, 4, 6, 2, 1]  # batches of any size: nine of them, thirty samples


def parts(sizes, *arrays):
    ends = np.cumsum(sizes)
    cut = lambda start, stop: tf.nest.map_structure(lambda array: array[start:stop], arrays)  # noqa: E731
    return [cut(stop - size, stop) for size, stop in zip(sizes, ends, strict=True)]


def dataset(sizes, *arrays):
    """A dataset of batches of the given sizes, with a known number of batches."""
    spec = tf.nest.map_structure(lambda array: tf.TensorSpec((None, *array.shape[1:]), array.dtype), arrays)

    def batches():
        for batch in parts(sizes, *arrays):
            # Under `MirroredStrategy`, TensorFlow writes into memory that a generator hands out.
            yield tf.nest.map_structure(np.copy, batch)

    data = tf.data.Dataset.from_generator(batches, output_signature=spec)
    return data.apply(tf.data.experimental.assert_cardinality(len(sizes)))


def joined(sizes, windows):
    """The sizes of the windows; the last may be short."""
    result, rest = [], list(sizes)
    while rest:
        number = windows(len(result)) if callable(windows) else windows
        result.append(sum(rest[:number]))
        rest = rest[number:]
    return result


def fit(data, **arguments):
    return lambda model: model.fit(data(), **({"epochs": 2, "verbose": 0} | arguments))


CASES = {
    "mean": (LOSS_CASES["mean"][0], (X, Y)),
    "sum": (lambda: LOSS_CASES["sum"][0](), (X, Y)),
    "mean_with_sample_weight": (LOSS_CASES["mean_with_sample_weight"][0], (X, Y, WEIGHTS)),
    "sample_weight": (LOSS_CASES["sample_weight"][0], (X, Y, WEIGHTS)),
    "mask": (tagger, (TOKENS, LABELS)),
    "mask_and_l2": (lambda: tagger(regularizer="l2"), (TOKENS, LABELS)),
    "mask_and_weights": (tagger, (TOKENS, LABELS, TOKEN_WEIGHTS)),
    "different_masks": (two_outputs, (MANY_X, MANY_Y)),
    "different_masks_and_a_sum": (lambda: two_outputs("sum"), (MANY_X, MANY_Y)),
    "add_loss": (LOSS_CASES["add_loss_of_a_mean"][0], (X, Y)),
}
if "regularizers" in LOSS_CASES:
    CASES["regularizers"] = (LOSS_CASES["regularizers"][0], (X, Y))
    CASES["mask_and_activity"] = (lambda: tagger(activity="l2"), (TOKENS, LABELS))
WINDOWS = {"three": 3, "four": 4, "larger_than_the_epoch": 50, "ramp": schedules.ramp(1, 4, updates=4)}


@pytest.mark.parametrize("size", [None, 2], ids=["batches", "micro_batches"])
@pytest.mark.parametrize("window", WINDOWS.values(), ids=WINDOWS)
@pytest.mark.parametrize("name", CASES)
def test_equals_the_joined_batches(name, window, size):
    build, arrays = CASES[name]
    epochs = 1 if callable(window) else 2  # a schedule goes on over epochs, the reference here does not
    ours = train(
        build,
        fit(lambda: dataset(SIZES, *arrays), epochs=epochs),
        lambda model: bigbatch.accumulate(model, batches_per_update=window, micro_batch_size=size),
    )
    assert_same(ours, train(build, fit(lambda: dataset(joined(SIZES, window), *arrays), epochs=epochs)))


@pytest.mark.parametrize("mode", [{"run_eagerly": True}, {"jit_compile": True}, {"steps_per_execution": 2}], ids=str)
@pytest.mark.parametrize("size", [None, 2], ids=["batches", "micro_batches"])
def test_every_execution(mode, size):
    def build():
        model = dense("mse")
        model.compile(keras.optimizers.Adam(0.1), loss="mse", metrics=["mae"], **mode)
        return model

    ours = train(
        build,
        fit(lambda: dataset(SIZES, X, Y)),
        lambda model: bigbatch.accumulate(model, batches_per_update=4, micro_batch_size=size),
    )
    assert_same(ours, train(build, fit(lambda: dataset(joined(SIZES, 4), X, Y))))


def test_pure_sum_without_regularizers():
    def build():
        model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(2)])
        model.compile(keras.optimizers.SGD(0.01), loss=losses.MeanSquaredError(reduction="sum"))
        return model

    ours = train(
        build, fit(lambda: dataset(SIZES, X, Y)), lambda model: bigbatch.accumulate(model, batches_per_update=4)
    )
    assert_same(ours, train(build, fit(lambda: dataset(joined(SIZES, 4), X, Y))))


def padded_batches(sizes):
    """Each batch is only as wide as its longest sample."""
    for tokens, labels in parts(sizes, TOKENS, LABELS):
        width = max(1, int((tokens > 0).sum(axis=1).max()))
        yield tokens[:, :width], labels[:, :width]


@pytest.mark.parametrize("size", [None, 2], ids=["batches", "micro_batches"])
def test_batches_of_different_padded_lengths_share_a_window(size):
    def build():
        inputs = keras.Input((None,), dtype="int32")
        hidden = keras.layers.Embedding(10, 4, mask_zero=True)(inputs)
        model = keras.Model(inputs, keras.layers.Dense(3, activation="softmax")(hidden))
        model.compile(keras.optimizers.SGD(0.5), loss=losses.SparseCategoricalCrossentropy())
        return model

    spec = (tf.TensorSpec((None, None), tf.int64), tf.TensorSpec((None, None), tf.int64))
    narrow = lambda: tf.data.Dataset.from_generator(lambda: padded_batches(SIZES), output_signature=spec).apply(  # noqa: E731
        tf.data.experimental.assert_cardinality(len(SIZES))
    )
    ours = train(
        build, fit(narrow), lambda model: bigbatch.accumulate(model, batches_per_update=4, micro_batch_size=size)
    )
    assert_same(ours, train(build, fit(lambda: dataset(joined(SIZES, 4), TOKENS, LABELS))))


def test_windows_by_samples():
    """A window closes with the batch that fills it: 4+3+5, 1+4+4+6, 2+1."""
    ours = train(
        lambda: dense("mse"),
        fit(lambda: dataset(SIZES, X, Y)),
        lambda model: bigbatch.accumulate(model, samples_per_update=10),
    )
    assert_same(ours, train(lambda: dense("mse"), fit(lambda: dataset([12, 15, 3], X, Y))))


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


@pytest.mark.parametrize("name", ["different_masks", "different_masks_and_a_sum"])
def test_held_windows_eagerly(name):
    build, arrays = CASES[name]
    ours = train(
        eagerly(build),
        fit(lambda: dataset(SIZES, *arrays), epochs=1),
        lambda model: bigbatch.accumulate(model, batches_per_update=4, micro_batch_size=2),
    )
    reference = train(build, fit(lambda: dataset(joined(SIZES, 4), *arrays), epochs=1))
    assert_same(ours, reference)


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


def test_thirty_samples_in_nine_batches():
    assert sum(SIZES) == NUM_SAMPLES
    assert joined(SIZES, 4) == [13, 16, 1]


@pytest.mark.parametrize(("rule", "factors"), [(None, [1, 1, 1]), ("linear", [1, 2, 3]), ("sqrt", [1, 2**0.5, 3**0.5])])
@pytest.mark.parametrize("eagerly", [False, True], ids=["graph", "eager"])
def test_the_applied_rate_follows_the_window(rule, factors, eagerly):
    """Against plain Keras with the factor in its schedule; the stored rate stays as it is."""
    window = schedules.piecewise({0: 1, 1: 2, 2: 3})
    rate = keras.optimizers.schedules.PiecewiseConstantDecay([0, 1], [0.1 * factor for factor in factors])

    def build(learning_rate):
        model = dense("mse")
        model.compile(keras.optimizers.SGD(learning_rate), loss="mse", run_eagerly=eagerly)
        return model

    data = lambda: dataset(SIZES[:6], X[:21], Y[:21])  # noqa: E731
    whole = lambda: dataset(joined(SIZES[:6], window), X[:21], Y[:21])  # noqa: E731
    settings = {"batches_per_update": window, "learning_rate_rule": rule}
    ours = train(lambda: build(0.1), fit(data, epochs=1), lambda model: bigbatch.accumulate(model, **settings))
    reference = train(lambda: build(rate), fit(whole, epochs=1))
    for a, b in zip(ours.weights, reference.weights, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)  # Keras keeps schedules in float32
    assert ours.optimizer[1] == 0.1


def test_a_bad_rule():
    with pytest.raises(ValueError, match=r"`learning_rate_rule` must be .*Received: learning_rate_rule='cubic'\. Use"):
        bigbatch.accumulate(dense("mse"), learning_rate_rule="cubic")


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer(name):
    def build():
        model = dense("mse")
        model.compile(OPTIMIZERS[name](), loss="mse", metrics=["mae"])
        return model

    ours = train(
        build, fit(lambda: dataset(SIZES, X, Y)), lambda model: bigbatch.accumulate(model, batches_per_update=4)
    )
    assert_same(ours, train(build, fit(lambda: dataset(joined(SIZES, 4), X, Y))))


def test_batch_norm_statistics_are_those_of_the_window():
    def statistics(sizes, **settings):
        keras.utils.set_random_seed(7)
        norm = keras.layers.BatchNormalization(momentum=0.8)
        model = keras.Sequential([keras.Input((6,)), norm, keras.layers.Dense(2)])
        model.compile("sgd", loss="mse")
        bigbatch.accumulate(model, batch_norm="pooled", **settings)
        model.fit(dataset(sizes, X, Y), epochs=2, verbose=0)
        return norm.moving_mean.numpy(), norm.moving_variance.numpy()

    reference = statistics(joined(SIZES, 4))
    for ours, theirs in zip(statistics(SIZES, batches_per_update=4, micro_batch_size=3), reference, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-10)
    assert np.abs(reference[1] - 1).max() > 0.01


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
