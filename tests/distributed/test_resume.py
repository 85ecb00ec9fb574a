"""kill -9 one of two workers in mid-epoch, start both again, and end bit-identical to a run that was never killed."""

from pathlib import Path

import numpy as np
import pytest
from launching import launched

PROGRAM = Path(__file__).with_name("resume.py")
pytestmark = pytest.mark.xdist_group("workers")


def weights(folder, worker):
    with np.load(folder / f"weights-{worker}.npz") as arrays:
        return [arrays[name] for name in arrays.files]


def test_killed_and_resumed(tmp_path):
    undisturbed, disturbed = tmp_path / "undisturbed", tmp_path / "disturbed"
    whole = launched(2, PROGRAM, undisturbed)
    assert whole.returncode == 0, whole.stderr

    killed = launched(2, PROGRAM, disturbed, 17)  # in the fourth update of the second epoch
    assert killed.returncode == 128 + 9
    assert "worker 1 failed with exit code 137 (signal 9)" in killed.stderr
    assert not list(disturbed.glob("weights-*"))
    resumed = launched(2, PROGRAM, disturbed)
    assert resumed.returncode == 0, resumed.stderr
    print(f"undisturbed:\n{whole.stdout}killed and resumed:\n{resumed.stdout}")

    assert "updates 15, epochs in this run 3, forward passes 30" in whole.stdout
    assert "updates 15, epochs in this run 2, forward passes 20" in resumed.stdout
    for worker in (0, 1):
        for ours, reference in zip(weights(disturbed, worker), weights(undisturbed, 0), strict=True):
            assert np.array_equal(ours, reference)
