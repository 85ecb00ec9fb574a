"""`bigbatch demo`, run for real, as short as it can be."""

import json
import re
import subprocess
import sys

import pytest

from bigbatch.cli import demo, demo_display
from bigbatch.cli.demo_processes import events

pytestmark = pytest.mark.xdist_group("demo")  # it runs once, for all tests here
UPDATES = 4  # 1,797 samples in batches of 512, once


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("demo")


@pytest.fixture(scope="module")
def done(folder):
    command = [sys.executable, "-m", "bigbatch", "demo", "--epochs", "1", "--json", "--picture", "demo.svg"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def results(done):
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_plain_keras_dies_in_the_small_budget(results, done):
    assert results["starved"]["error"].startswith("OOM when allocating tensor with shape[")
    assert results["starved"]["updates"] == []
    assert re.search(r"^  DIED: OOM when allocating", done.stderr, re.MULTILINE)


def test_bigbatch_stays_within_it(results):
    assert 0 < results["ours"]["updates"][-1]["peak"] <= results["budget"] < results["plain"]["updates"][-1]["peak"]


def test_bigbatch_makes_the_updates_of_plain_keras(results):
    assert results["broken_promises"] == []
    assert [each["samples"] for each in results["distances"]] == [512, 1024, 1536, 1797]
    assert max(each["bigbatch"] for each in results["distances"]) < 1e-5
    losses = [[update["loss"] for update in results[name]["updates"]] for name in ("plain", "ours")]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    assert len(losses[0]) == UPDATES
    assert losses[0][-1] < losses[0][0] - 0.1


def test_keras_own_accumulation_departs_at_the_ragged_batch(results):
    assert [update["num_applied"] for update in results["built_in"]["updates"]] == [1, 2, 3, 3]
    *even, ragged = (each["built_in"] for each in results["distances"])
    assert max(even) < 1e-5
    assert ragged > 1e-3


def test_memory_follows_the_micro_batch(results):
    peaks = [each["peak"] for each in results["peaks"]]
    assert peaks == sorted(peaks)
    assert peaks[-1] > 5 * peaks[0]


def test_the_table_is_printed(done, results):
    table = done.stderr[done.stderr.index("memory budget") :]
    assert re.search(r"^plain Keras, small budget .* out of memory ", table, re.MULTILINE)
    assert re.search(rf"^bigbatch, small budget .* {results['ours']['loss']:.5f} .*e-0[6-9]$", table, re.MULTILINE)


def test_the_page_and_the_picture_are_written(done, results, folder):
    text = (folder / "bigbatch-demo.html").read_text()
    assert results["starved"]["error"] in text
    assert f"{results['ours']['loss']:.5f}" in text
    assert str(folder / "bigbatch-demo.html") in done.stderr
    assert (folder / "demo.svg").read_text().startswith("<svg")


MISTAKES = {
    "no_epochs": (["--epochs", "0"], r"`--epochs` must be a positive integer\. Received: --epochs=0\. Leave it out"),
    "no_number": (["--epochs", "two"], "invalid int value"),
    "unknown": (["--fast"], "unrecognized arguments: --fast"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_end_with_two(name, capsys):
    arguments, message = MISTAKES[name]
    with pytest.raises(SystemExit) as caught:
        demo.main(arguments)
    assert caught.value.code == 2
    assert re.search(message, capsys.readouterr().err)


def test_missing_packages_are_named(monkeypatch):
    monkeypatch.setattr(demo, "NEEDED", {"json": "cli", "no_such_package": "demo"})
    with pytest.raises(ModuleNotFoundError, match=r'Received: no no_such_package\. .*"bigbatch\[demo\]"'):
        demo.require_packages()


def test_a_run_that_fails_says_why():
    with pytest.raises(RuntimeError, match=r"(?s)Every run must end\. Received: exit code 1\. It said: .*KeyError"):
        list(events({}, None))


class Terminal:
    """A file that says it is a terminal."""

    encoding = "utf-8"

    def __init__(self):
        self.text = ""

    def isatty(self):
        return True

    def write(self, text):
        self.text += text

    def flush(self):
        pass


def test_a_terminal_gets_bars():
    terminal = Terminal()
    display = demo_display.suited_to(terminal)
    assert isinstance(display, demo_display.Bars)
    with display.live():
        display.begin("one")
        display.advance("one", 1, 4, "loss 2.3")
        display.end("one", "shape[512]", died=True)
        display.begin("two")
        display.advance("two", 4, 4, "loss 0.2")
        display.end("two", "well")
    assert "one: shape[512]" in re.sub(r"\x1b\[[0-9;]*m", "", terminal.text)
    assert "4/4" in terminal.text


def test_a_pipe_gets_lines(capsys):
    display = demo_display.suited_to(sys.stdout)
    display.begin("one")
    display.advance("one", 4, 8, "loss 2.3")
    display.end("one", "too large", died=True)
    assert capsys.readouterr().out == "one ...\n  4/8  loss 2.3\n  DIED: too large\n"


def test_without_rich_a_terminal_gets_lines(monkeypatch):
    monkeypatch.setattr(demo_display, "find_spec", lambda name: None)
    assert isinstance(demo_display.suited_to(Terminal()), demo_display.Lines)
