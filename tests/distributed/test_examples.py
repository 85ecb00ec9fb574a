"""The examples for several workers run, and all workers end with the same weights."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from launching import launched

from bigbatch.cli.launch import free_ports

EXAMPLES = Path(__file__).parents[2] / "examples"
pytestmark = pytest.mark.xdist_group("workers")


def test_launched():
    done = launched(2, EXAMPLES / "workers.py", 1)
    assert done.returncode == 0, done.stderr
    first, second = re.findall(r"\[worker \d\] (loss .*)", done.stdout)
    assert first == second


def test_slurm():
    """As `srun` would start two tasks on this machine."""
    step = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NODELIST": "localhost", "SLURM_STEP_TASKS_PER_NODE": "2"}
    step["PORT_BASE"] = str(free_ports(1)[0])
    tasks = [
        subprocess.Popen(
            [sys.executable, EXAMPLES / "slurm.py"],
            env=os.environ | step | {"SLURM_PROCID": str(index)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for index in range(2)
    ]
    outputs = [task.communicate(timeout=300) for task in tasks]
    assert [task.returncode for task in tasks] == [0, 0], outputs
    first, second = (re.search(r"rank \d: (loss .*)", output).group(1) for output, _ in outputs)
    assert first == second
