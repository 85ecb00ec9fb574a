"""SIGKILL at any point, resume, and end bit-identical to a run that was never interrupted."""

import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

PROGRAM = Path(__file__).with_name("interrupted.py")


def run(folder, *arguments):
    command = [sys.executable, PROGRAM, folder, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def weights(folder):
    with np.load(folder / "weights.npz") as arrays:
        return [arrays[name] for name in arrays.files]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("uninterrupted")
    results = {}
    for how in ("backup", "checkpoint"):
        assert run(folder, how).returncode == 0
        results[how] = weights(folder)
    return results


@pytest.mark.parametrize("kill_at", [2, 21, 28], ids=["first_window", "middle_of_a_window", "tail_of_an_epoch"])
@pytest.mark.parametrize("how", ["backup", "checkpoint"])
def test_killed_and_resumed(how, kill_at, uninterrupted, tmp_path):
    killed = run(tmp_path, how, kill_at)
    assert killed.returncode == -signal.SIGKILL
    assert not (tmp_path / "weights.npz").exists()
    resumed = run(tmp_path, how)
    assert resumed.returncode == 0, resumed.stderr
    print(f"{how}, killed at forward pass {kill_at}; resumed: {resumed.stdout}")
    for ours, reference in zip(weights(tmp_path), uninterrupted[how], strict=True):
        assert np.array_equal(ours, reference)


def test_the_runs_train(uninterrupted):
    assert not np.array_equal(*(np.concatenate([w.ravel() for w in uninterrupted[how]]) for how in uninterrupted))
