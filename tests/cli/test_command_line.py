"""`bigbatch verify | plan | doctor`: what they print, and how they end."""

import json
import os
import re
import subprocess
import sys
from textwrap import dedent

import pytest
from targets import MODELS

BIGBATCH = [sys.executable, "-m", "bigbatch"]
TIMEOUT = 600


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "models.py").write_text(MODELS)
    return tmp_path


def run(folder, *words, **environment):
    path = os.pathsep.join(os.path.abspath(part) for part in sys.path if part)
    environment = os.environ | {"PYTHONPATH": path, "COLUMNS": "100"} | environment
    return subprocess.run(
        [*BIGBATCH, *words], cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=TIMEOUT
    )


def beginning_with(folder, program):
    """An environment in which every process begins with a program."""
    (folder / "sitecustomize.py").write_text(program)
    path = os.pathsep.join([str(folder), *(os.path.abspath(part) for part in sys.path if part)])
    return {"PYTHONPATH": path}


def without(folder, module):
    """An environment in which a module cannot be found."""
    hiding = dedent(f"""
        import sys

        class Hide:
            def find_spec(self, name, path=None, target=None):
                if name.split(".")[0] == {module!r}:
                    raise ModuleNotFoundError(f"No module named {{name!r}}", name={module!r})

        sys.meta_path.insert(0, Hide())
        """)
    return beginning_with(folder, hiding)


@pytest.mark.parametrize("target", ["models.py:dense", "models:dense", "models.py:dataset"])
def test_verify_an_exact_model(target, folder):
    done = run(folder, "verify", target, "--micro-batch-size", "5")
    assert done.returncode == 0, done.stderr
    number = 16 if target.endswith("dataset") else 32
    sizes = "1, 5, 5, 5" if number == 16 else "2, 5, 5, 5, 5, 5, ..."
    first = f"equal, to rounding: one update of {number} samples, and the same in micro-batches of {sizes}\n"
    assert done.stdout.startswith(first)
    for words in ("what a user prints", "what a child prints"):
        assert words in done.stderr
        assert words not in done.stdout


def test_verify_a_model_as_it_accumulates(folder):
    (folder / "mine.py").write_text(
        "import bigbatch, models\n\n\ndef build():\n    model, x, y = models.dense()\n"
        "    return bigbatch.accumulate(model, micro_batch_size=16), x, y\n"
    )
    done = run(folder, "verify", "mine.py:build")
    assert done.returncode == 0, done.stderr
    assert "micro-batches of 16, 16\n" in done.stdout


def test_verify_a_model_that_is_not_exact(folder):
    done = run(folder, "verify", "models.py:normalised", "--micro-batch-size", "5")
    assert done.returncode == 1, done.stderr
    assert done.stdout.startswith("NOT equal: one update of 32 samples, and the same in micro-batches of 2, 5, ")
    [cause] = re.findall(r"^cause: batch normalisation\. .*\n(?:  .*\n)+remedy: .*\n", done.stdout, re.MULTILINE)
    assert "norm_of_mine" in cause


def test_verify_for_machines(folder):
    done = run(folder, "verify", "models.py:normalised", "--micro-batch-size", "5", "--json")
    assert done.returncode == 1
    report = json.loads(done.stdout)
    assert report["exact"] is False
    assert {"table", "causes"} <= report.keys()
    assert all(cause["remedy"] for cause in report["causes"])
    assert report["causes"]


@pytest.mark.parametrize(
    "command", [("verify", "--micro-batch-size"), ("plan", "--batch-size")], ids=["verify", "plan"]
)
def test_machines_read_nothing_that_children_print(command, folder):
    name, size = command
    done = run(folder, name, "models.py:prints_in_an_update", size, "16", "--json")
    assert done.returncode == 0, done.stderr
    assert isinstance(json.loads(done.stdout), dict)
    assert "what a child prints\n" in done.stderr
    assert "what an update prints\n" in done.stderr


def test_plan(folder):
    done = run(folder, "plan", "models.py:dense", "--batch-size", "16", "--memory", "64MB")
    assert done.returncode == 0, done.stderr
    assert "fits in 61.0 MiB" in done.stdout
    assert "recommended for batches of 16: micro_batch_size=" in done.stdout
    assert "\033" not in done.stdout  # nobody sees colours in a pipe


def test_plan_for_machines(folder):
    done = run(folder, "plan", "models.py:dataset", "--batch-size", "16", "--json")
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    assert plan["batch_size"] == 16
    assert 1 <= plan["micro_batch_size"] <= 16


def test_plan_what_does_not_fit(folder):
    done = run(folder, "plan", "models.py:huge", "--batch-size", "16", "--memory", "8MB", "--json")
    assert done.returncode == 1
    assert "One sample at a time must fit the memory" in json.loads(done.stdout)["error"]
    assert "One sample at a time must fit the memory" in done.stderr
    assert "Traceback" not in done.stderr


USAGE = {
    "no_size": ("verify", ["models.py:dense"], "micro_batch_size=None, batches_per_update=1, which make one"),
    "too_large": ("verify", ["models.py:dense", "--micro-batch-size", "50"], "micro_batch_size=50"),
}


@pytest.mark.parametrize("name", USAGE)
def test_arguments_that_bigbatch_refuses_end_with_two(name, folder):
    command, words, received = USAGE[name]
    done = run(folder, command, *words)
    assert done.returncode == 2, done.stderr
    assert f"bigbatch {command}: error: The update must have at least two micro-batches" in done.stderr
    assert f"Received: {received}" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


CRASHES = {
    "fails": ("in fails\n", "KeyError: 'what went wrong inside'"),
    "fails_in_keras": ("Traceback", "ValueError: "),
    "fails_in_bigbatch": ("in fails_in_bigbatch\n", "Received: micro_batch_size=0"),
}


@pytest.mark.parametrize("function", CRASHES)
def test_what_crashes_ends_with_three_and_keeps_its_traceback(function, folder):
    done = run(folder, "verify", f"models.py:{function}", "--micro-batch-size", "16")
    assert done.returncode == 3, done.stderr
    for words in CRASHES[function]:
        assert words in done.stderr
    assert done.stdout == ""


def test_doctor(folder):
    done = run(folder, "doctor", "--json")
    assert done.returncode == 0, done.stderr
    diagnosis = json.loads(done.stdout)
    assert diagnosis["works"] is True
    assert diagnosis["here"]["Python"] == "{}.{}.{}".format(*sys.version_info[:3])
    features = {feature["name"]: feature for feature in diagnosis["features"]}
    working = {name for name, feature in features.items() if feature["works"]}
    here = {"accumulate", "custom loops", "plan", "MultiWorkerMirroredStrategy", "mixed precision", "XLA"}
    assert {*here, "tables", "plots"} <= working, features
    assert features["accumulate"]["found"] == "1 update of 4 samples, 2 at a time"
    assert not features["MirroredStrategy"]["works"]
    assert "set_logical_device_configuration" in features["MirroredStrategy"]["remedy"]


def test_doctor_without_tensorflow(folder):
    done = run(folder, "doctor", **without(folder, "tensorflow"))
    assert done.returncode == 1, done.stderr
    assert "accumulate cannot work here" in done.stdout
    assert "no module 'tensorflow'" in done.stdout
    assert 'pip install "bigbatch[tensorflow]"' in done.stdout
    assert "Traceback" not in done.stderr


def test_a_feature_that_kills_does_not_kill_the_doctor(folder):
    """As bfloat16 does on a virtual machine that shows AMX and forbids it."""
    dying = "import os, signal, sys\n'bfloat16' in str(sys.orig_argv) and os.kill(os.getpid(), signal.SIGILL)\n"
    done = run(folder, "doctor", "--json", **beginning_with(folder, dying))
    assert done.returncode == 0, done.stderr
    [mixed] = [each for each in json.loads(done.stdout)["features"] if each["name"] == "mixed precision"]
    assert (mixed["works"], mixed["found"]) == (False, "a process that tried it died of SIGILL")
    assert "ONEDNN_MAX_CPU_ISA" in mixed["remedy"]


def test_doctor_with_another_backend(folder):
    done = run(folder, "doctor", "--json", **without(folder, "jax"), KERAS_BACKEND="jax")
    assert done.returncode == 1, done.stderr
    [accumulate] = [each for each in json.loads(done.stdout)["features"] if each["is_needed"]]
    assert not accumulate["works"]


def test_without_rich_there_is_plain_text_and_a_word(folder):
    """Keras 3 needs it, too: who has no rich has another Keras, or none."""
    done = run(folder, "doctor", **without(folder, "rich"))
    assert done.returncode == 1, done.stderr
    assert done.stderr.endswith(
        "Tables and colours need rich. Received: no module 'rich'. "
        'Install it with `pip install "bigbatch[cli]"`; here is plain text.\n'
    )
    assert "custom loops                 works: the mean of 1 and 3 is 2" in done.stdout
    assert "accumulate                   does not work: no module 'rich'" in done.stdout


def test_machines_need_no_rich(folder):
    done = run(folder, "doctor", "--json", **without(folder, "rich"))
    assert done.returncode == 1
    assert "need rich" not in done.stderr
    tables = [each for each in json.loads(done.stdout)["features"] if each["name"] == "tables"]
    assert [(each["works"], each["remedy"]) for each in tables] == [(False, '`pip install "bigbatch[cli]"`')]
