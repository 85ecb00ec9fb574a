"""`make demo` runs and prints what the README shows."""

import re

import pytest

from bigbatch.cli import demo


@pytest.fixture(scope="module")
def output():
    from contextlib import redirect_stdout
    from io import StringIO

    text = StringIO()
    with redirect_stdout(text):
        demo.main([])
    return text.getvalue()


def row(output, name):
    return [float(number) for number in re.search(rf"^{name}\s+(\S+)\s+(\S+)$", output, re.MULTILINE).groups()]


def test_both_runs_make_the_same_updates(output):
    assert row(output, "updates") == [12, 12]


def test_losses_agree_and_fall(output):
    first, last = row(output, "loss, epoch 1"), row(output, "loss, epoch 3")
    assert first[0] == pytest.approx(first[1], abs=1e-4)
    assert last[0] == pytest.approx(last[1], abs=1e-3)
    assert last[0] < first[0] / 2


def test_memory_shrinks(output):
    plain, ours = row(output, "peak memory, MiB")
    assert ours < plain / 3


def test_weights_agree(output):
    distance = float(re.search(r"between the weights: (\S+)", output).group(1))
    assert 0 < distance < 1e-3
