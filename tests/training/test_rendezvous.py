"""Workers meet before TensorFlow waits for them, or say who is missing: real processes on loopback."""

import json
import socket
import subprocess
import sys
from contextlib import suppress

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
    assert f"TimeoutError: All 2 workers must connect within 1 seconds. Received: no word from {missing} (" in errors
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
    assert bigbatch.wait_for_workers(0.1) is None


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), "60", None], ids=str)
def test_seconds_must_be_positive(seconds):
    with pytest.raises(ValueError, match="`seconds` must be a positive number"):
        bigbatch.wait_for_workers(seconds)


BAD = {
    "no_json": "{",
    "a_list": "[]",
    "no_such_task": config(["127.0.0.1:1", "127.0.0.1:2"], 5),
    "no_port": config(["127.0.0.1", "127.0.0.1:2"], 0),
    "a_name_as_port": config(["localhost:abc", "127.0.0.1:2"], 0),
}


@pytest.mark.parametrize("tf_config", BAD.values(), ids=BAD)
def test_a_configuration_that_makes_no_sense(tf_config, monkeypatch):
    monkeypatch.setenv("TF_CONFIG", tf_config)
    with pytest.raises(ValueError, match="TF_CONFIG must name this task and a cluster"):
        bigbatch.wait_for_workers(0.1)


def test_a_port_in_use_is_named(monkeypatch):
    with socket.create_server(("", 0)) as server:
        port = server.getsockname()[1]
        monkeypatch.setenv("TF_CONFIG", config([f"127.0.0.1:{port}", "127.0.0.1:2"], 0))
        with pytest.raises(OSError, match=rf"listen on its own port. Received: 127.0.0.1:{port}: .*in use"):
            bigbatch.wait_for_workers(1)


def test_strangers_at_the_port_hold_up_nobody():
    """One looks whether the port is open and says nothing; one says that it is a worker that nobody knows."""
    addresses = [f"127.0.0.1:{port}" for port in free_ports(2)]
    host, port = addresses[0].split(":")
    leader = start(config(addresses, 0), 30)
    strangers = []
    while len(strangers) < 2 and leader.poll() is None:
        with suppress(ConnectionRefusedError):
            strangers.append(socket.create_connection((host, int(port))))
    strangers[1].sendall(b"7\n")
    for (output, errors), code in ends([leader, start(config(addresses, 1), 30)][::-1]):
        assert (output, code) == ("together\n", 0), errors
    for stranger in strangers:
        stranger.close()
