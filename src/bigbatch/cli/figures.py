"""The three figures of the demo, from its results; the page and the picture draw the same."""

from __future__ import annotations

from bigbatch.cli import charts
from bigbatch.cli.charts import Level, Series
from bigbatch.cli.demo_results import Results

_UPDATES = "updates of the whole batch"
# The smallest relative difference between two numbers of float32.
FLOAT32 = 2.0**-23


def losses(results: Results) -> str:
    """The loss of every batch: the wide line is plain Keras, the narrow one on it is bigbatch."""
    plain, ours = (
        tuple((float(number), update.loss) for number, update in enumerate(run.updates, 1))
        for run in (results.plain, results.ours)
    )
    y = charts.linear("loss of the batch", [loss for _, loss in plain + ours])
    x = charts.linear(_UPDATES, [len(plain)], whole=True)
    series = [Series("plain Keras, with room", "plain", plain), Series("bigbatch, small budget", "ours", ours)]
    return charts.draw("Loss of every batch, plain Keras and bigbatch", x, y, series)


def memory(results: Results) -> str:
    """Peak memory against micro-batch size, and the budget."""
    ours = tuple((float(each.micro_batch_size), each.peak / 2**20) for each in results.peaks)
    plain = ((float(results.batch_size), (results.plain.peak or 0) / 2**20),)
    budget = results.budget / 2**20
    y = charts.linear("peak memory (MiB)", [*(peak for _, peak in ours + plain), budget])
    x = charts.named("micro-batch size (samples)", [each.micro_batch_size for each in results.peaks])
    series = [Series("plain Keras, whole batch", "plain", plain), Series("bigbatch", "ours", ours)]
    levels = [Level(f"budget, {budget:.0f} MiB", budget, "start")]
    return charts.draw("Peak memory against micro-batch size", x, y, series, levels)


def distance(results: Results) -> str:
    """The distance of the weights from plain Keras' after every update."""
    ours = tuple((float(each.update), each.bigbatch) for each in results.distances)
    built_in = tuple((float(each.update), each.built_in) for each in results.distances)
    y = charts.decades("distance of the weights (relative)", [FLOAT32, *(value for _, value in ours + built_in)])
    x = charts.linear(_UPDATES, [len(ours)], whole=True)
    series = [Series("bigbatch", "ours", ours), Series("Keras' own accumulation", "built-in", built_in)]
    title = "Distance of the weights from those of the whole batch, after every update"
    return charts.draw(title, x, y, series, [Level("rounding of one float32", FLOAT32, "end")])
