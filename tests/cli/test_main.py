"""The command `bigbatch` and its subcommands."""

import re
import sys
from pathlib import Path

import pytest
from processes import run

import bigbatch
from bigbatch.cli import main

BIGBATCH = [sys.executable, "-m", "bigbatch"]


def test_version():
    assert run([*BIGBATCH, "--version"]).stdout == f"bigbatch {bigbatch.__version__}\n"


def test_help_names_the_subcommands():
    done = run([*BIGBATCH, "--help"])
    assert done.returncode == 0
    assert re.findall(r"^    (\w+) ", done.stdout, re.MULTILINE) == ["demo", "verify", "plan", "launch", "doctor"]


def test_help_of_launch_is_its_own():
    done = run([*BIGBATCH, "launch", "--help"])
    assert done.returncode == 0
    assert "--workers" in done.stdout


@pytest.mark.parametrize("arguments", [[], ["lunch"], ["demo", "--fast"], ["--", "launch"]], ids=" ".join)
def test_mistakes_end_with_two(arguments):
    done = run([*BIGBATCH, *arguments])
    assert done.returncode == 2
    assert "error: " in done.stderr
    assert done.stdout == ""


def test_exit_codes_come_through(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("raise SystemExit(3)")
    assert run([*BIGBATCH, "launch", str(script)]).returncode == 3
    assert main.main(("launch", "--workers", "1", str(script))) == 3


def test_the_installed_command_is_this_one():
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    command = re.search(r'^\[project\.scripts\]\nbigbatch = "(.*):(.*)"$', text, re.MULTILINE)
    assert command.groups() == (main.__name__, main.main.__name__)
