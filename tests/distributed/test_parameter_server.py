"""What is not supported says so."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.xdist_group("workers")


def test_parameter_servers_are_refused():
    program = Path(__file__).with_name("parameter_server.py")
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, check=False, timeout=120)
    assert done.stdout.startswith("An accumulated model must train on replicas that update together."), done.stderr
    assert "Received: ParameterServerStrategyV2" in done.stdout
