"""Workers meet before TensorFlow waits for them, or say who is missing: real processes on loopback."""

import json
import subprocess
import sys

import pytest

import bigbatch
from bigbatch.cli.launch import free_ports

CODE = "import bigbatch, sys; bigbatch.wait_for_workers({}); assert 'tensorflow' not in sys.modules; print('together')"


def config(addresses, index, job="worker", **jobs):
    return json.dumps({"cluster": {"worker": addresses, **jobs}, "task": {"type": job, "index": index}})


def start(tf_config, seconds):
    command, environment = [sys.executable, "-c", CODE.format(seconds)], {"TF_CONFIG": tf_config}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ends(processes):
    return [(process.communicate(timeout=60), process.returncode) for process in processes]


@pytest.mark.parametrize("num_workers", [2, 3])
def test_workers_meet_in_any_order(num_workers):
    addresses = [f"127.0.0.1:{port}" for port in free_ports(num_workers)]
    processes = [start(config(addresses, index), 30) for index in reversed(range(num_workers))]
    for (output, errors), code in ends(processes):
        assert (output, code) == ("together\n", 0), errors


def test_a_chief_leads():
    first, second = (f"127.0.0.1:{port}" for port in free_ports(2))
    processes = [start(config([second], 0, job=job, chief=[first]), 30) for job in ("worker", "chief")]
    assert [code for _, code in ends(processes)] == [0, 0]


@pytest.mark.parametrize(("present", "missing"), [(0, "worker 1"), (1, "worker 0")])
def test_the_missing_worker_is_named(present, missing):
    addresses = [f"127.0.0.1:{port}" for port in free_ports(2)]
    [((_, errors), code)] = ends([start(config(addresses, present), 1)])
    assert code == 1
    assert f"TimeoutError: All 2 workers must come within 1 seconds. Received: no word from {missing} (" in errors
    assert addresses[1 - present] in errors


@pytest.mark.parametrize(
    "tf_config",
    [None, "", config(["127.0.0.1:1"], 0), config(["127.0.0.1:1", "127.0.0.1:2"], 0, job="evaluator")],
    ids=["unset", "empty", "one_worker", "evaluator"],
)
def test_nothing_to_wait_for(tf_config, monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    if tf_config is not None:
        monkeypatch.setenv("TF_CONFIG", tf_config)
    assert bigbatch.wait_for_workers(0.0) is None
