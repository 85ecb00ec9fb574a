"""Where a model comes from, and what is said where none does."""

import re
import sys

import pytest

from bigbatch.cli import main, plan, target, verify

CODE = """
import keras

def uncompiled():
    return keras.Sequential([keras.layers.Dense(1)]), 1, 2

def compiled():
    model = uncompiled()[0]
    model.compile("sgd", loss="mse")
    return model

def triple():
    return compiled(), 1, 2

def pair():
    return compiled(), 1

def alone():
    return compiled()

def reversed():
    return 1, compiled()

def needs(size, *rest, rate, decay=0.0, **others):
    return triple()

def optional(size=1, *rest, **others):
    return triple()

number = 3
"""


@pytest.fixture
def place(tmp_path, monkeypatch, request):
    """A file of a name that no other test has imported."""
    name = re.sub(r"\W", "_", request.node.name)
    (tmp_path / f"{name}.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield name
    sys.modules.pop(name, None)


@pytest.mark.parametrize("suffix", [".py", ""], ids=["file", "module"])
@pytest.mark.parametrize(("function", "rest"), [("triple", (1, 2)), ("pair", (1, None)), ("optional", (1, 2))])
def test_what_a_function_returns(function, rest, suffix, place):
    model, *data = target.load(f"{place}{suffix}:{function}")
    assert model.compiled
    assert tuple(data) == rest


MISTAKES = {
    "no_colon": ("{}.py", r"must name a place and a function\. Received: target='.*'\. Use path/to/file\.py:function"),
    "no_function": ("{}.py:", r"must name a place and a function"),
    "no_place": (":triple", r"must name a place and a function"),
    "no_file": ("no_{}.py:triple", r"^The file must exist\. Received: file='.*no_.*'\. Check the path, .* relative to"),
    "no_module": (
        "no.{}:triple",
        r"^The module must exist\. Received: module='no\..*'\. Check the name, or give",
    ),
    "unknown": (
        "{}.py:tripel",
        r"^The function must exist\. Received: 'tripel' of .*\. There are: uncompiled, .*",
    ),
    "not_a_function": ("{}.py:number", r"^The function must exist\. Received: 'number'"),
    "arguments": (
        "{}.py:needs",
        r"^'needs' of .* must need no arguments\. Received: size, rate\. Give them defaults",
    ),
    "no_tuple": ("{}.py:alone", r"must return \(model, x, y\) or \(model, dataset\)\. Received: Sequential\. Return"),
    "wrong_order": ("{}.py:reversed", r"must return .*Received: int, Sequential\."),
    "uncompiled": ("{}.py:uncompiled", r"must return a compiled model\. Received: compiled=False\. Call `model\.comp"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes(name, place):
    text, match = MISTAKES[name]
    with pytest.raises(target.TargetError, match=match):
        target.load(text.format(place))


def test_a_module_that_the_users_module_misses_is_theirs(place, tmp_path):
    (tmp_path / f"{place}.py").write_text("import no_such_module_anywhere")
    with pytest.raises(ModuleNotFoundError, match="no_such_module_anywhere"):
        target.load(f"{place}:triple")


def test_a_file_with_the_name_of_a_module_is_refused(tmp_path, monkeypatch):
    (tmp_path / "json.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(target.TargetError, match=r"must not have the name of another module\. Received: 'json\.py'"):
        target.load("json.py:triple")


PARSES = """
import argparse

parser = argparse.ArgumentParser()
parser.add_argument("--rate", type=float, default=0.1)
parser.parse_args()

""" + CODE.replace("return compiled(), 1, 2", "return compiled(), parser.prog, parser.parse_args().rate")


@pytest.mark.parametrize("suffix", [".py", ""], ids=["file", "module"])
def test_a_module_that_parses_arguments_sees_none_of_ours(suffix, place, tmp_path, monkeypatch):
    (tmp_path / f"{place}.py").write_text(PARSES)
    ours = ["bigbatch", "verify", "train.py:build", "--json"]
    monkeypatch.setattr(sys, "argv", ours)
    _, prog, rate = target.load(f"{place}{suffix}:triple")
    assert (prog, rate) == (f"{place}{suffix}", 0.1)
    assert sys.argv is ours


def test_arguments_come_back_after_an_error(place, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["bigbatch", "verify"])
    with pytest.raises(target.TargetError):
        target.load(f"{place}.py:alone")
    assert sys.argv == ["bigbatch", "verify"]


@pytest.mark.parametrize("where", ["module", "function"])
@pytest.mark.parametrize("above", [True, False], ids=["above", "inside"])
def test_a_file_of_a_package_is_refused_with_the_name_of_its_module(where, above, place, tmp_path, monkeypatch):
    package = tmp_path / "package"
    package.mkdir()
    indent = "" if where == "module" else "def triple():\n    "
    (package / f"{place}.py").write_text(f"{CODE}\n{indent}from . import other\n")
    monkeypatch.chdir(tmp_path if above else package)
    match = rf"must not have relative imports\. Received: file='.*'\. Use package\.{place}:triple in {tmp_path}\."
    with pytest.raises(target.TargetError, match=match):
        target.load(f"{'package/' if above else ''}{place}.py:triple")


def test_a_relative_import_elsewhere_is_theirs(place, tmp_path):
    (tmp_path / f"{place}.py").write_text("import beside")
    (tmp_path / "beside.py").write_text("from . import other")
    with pytest.raises(ImportError, match="no known parent package"):
        target.load(f"{place}.py:triple")


ENDS = """
import keras
import numpy as np

class Ends(keras.Model):
    def call(self, x):
        raise SystemExit(0)

def triple():
    model = Ends()
    model.compile("sgd", loss="mse")
    return model, np.ones((4, 1)), np.ones((4, 1))
"""
EXITS = {
    "module": "import sys\nsys.exit(0)",
    "function": "import sys\ndef triple():\n    sys.exit(0)",
    "update": ENDS,
}


@pytest.mark.parametrize("where", EXITS)
def test_what_ends_the_program_has_not_been_verified(where, place, tmp_path, capfd):
    (tmp_path / f"{place}.py").write_text(EXITS[where])
    with pytest.raises(SystemExit) as caught:
        verify.main([f"{place}.py:triple", "--micro-batch-size", "1"])
    assert caught.value.code == 2
    output = capfd.readouterr()
    assert "The code of a target must not end the program. Received: SystemExit(0). Leave `sys.exit`" in output.err
    assert output.out == ""


USAGE = {
    "target": (verify, ["train.py"], "must name a place and a function"),
    "size": (verify, ["train.py:build", "--micro-batch-size", "0"], "must be a positive integer. Received: '0'"),
    "window": (verify, ["train.py:build", "--batches-per-update", "two"], "must be a positive integer"),
    "memory": (plan, ["train.py:build", "--batch-size", "8", "--memory", "8 apples"], "must be bytes"),
    "missing": (plan, ["train.py:build"], "required: --batch-size"),
    "unknown": (plan, ["train.py:build", "--batch", "8"], "required: --batch-size"),
}


@pytest.mark.parametrize("name", USAGE)
def test_usage_ends_with_two_and_prints_nothing(name, capfd):
    command, words, message = USAGE[name]
    with pytest.raises(SystemExit) as caught:
        command.main(words)
    assert caught.value.code == 2
    output = capfd.readouterr()
    assert message in output.err
    assert output.out == ""


@pytest.mark.parametrize("command", ["demo", "verify", "plan", "launch", "doctor"])
def test_help_shows_an_example(command, capsys):
    with pytest.raises(SystemExit) as caught:
        main.main([command, "--help"])
    assert caught.value.code == 0
    assert re.search(rf"^example:\n  bigbatch {command}", capsys.readouterr().out, re.MULTILINE)


def test_help_names_the_exit_codes(capsys):
    with pytest.raises(SystemExit):
        main.main(["--help"])
    assert re.findall(r"\b([123]) (?:where|for)", capsys.readouterr().out) == ["1", "2", "3"]
