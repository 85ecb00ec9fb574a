"""`wait_for_workers`: every worker of a cluster is there, or an error says which is missing.

`tf.distribute.MultiWorkerMirroredStrategy` waits for all workers when it is made: an hour, in silence, deaf to Ctrl-C.
Here the workers meet before that, on the port of the first one, which it gives back to TensorFlow afterwards. Nothing
imports TensorFlow, which must be left alone before the strategy is made. Runs on Python 3.7.
"""

from __future__ import annotations

import json
import os
import socket
import time
from contextlib import ExitStack, suppress
from typing import NamedTuple

from bigbatch.core.errors import describe

_GO = b"go\n"
_RETRY_SECONDS = 0.2
_HELLO_SECONDS = 1.0


class _Cluster(NamedTuple):
    """The workers in TensorFlow's order, of which the first one leads, and which of them this is."""

    names: list[str]
    addresses: list[str]
    port: int  # of the first
    me: int

    def describe(self, index: int) -> str:
        return f"{self.names[index]} ({self.addresses[index]})"


def wait_for_workers(seconds: float = 60.0) -> None:
    """Returns when all workers of `TF_CONFIG` have called it; call it before the strategy is made.

        bigbatch.wait_for_workers(seconds=120)
        strategy = tf.distribute.MultiWorkerMirroredStrategy()

    Without `TF_CONFIG`, or with one worker, it returns at once.

    Args:
        seconds: how long to wait.

    Raises:
        ValueError: for `seconds` that is not a positive number, and for a `TF_CONFIG` that makes no sense.
        TimeoutError: with the name and the address of every worker that is missing.
    """
    if not isinstance(seconds, (int, float)) or not 0 < seconds < float("inf"):
        remedy = "Use 60 for a minute."
        raise ValueError(describe("`seconds` must be a positive number.", f"seconds={seconds!r}", remedy))
    cluster = _cluster(os.environ.get("TF_CONFIG", ""))
    if cluster is None or len(cluster.names) < 2:
        return
    deadline = time.monotonic() + seconds
    missing = _gather(cluster, deadline) if cluster.me == 0 else _report(cluster, deadline)
    if missing:
        raise TimeoutError(
            describe(
                f"All {len(cluster.names)} workers must connect within {seconds:g} seconds.",
                f"no word from {', '.join(cluster.describe(index) for index in missing)}",
                "Start the missing workers with the same cluster in TF_CONFIG, or wait longer with `seconds`.",
            )
        )


def _cluster(text: str) -> _Cluster | None:
    """`None` for who trains with nobody: no cluster, or an evaluator."""
    if not text:
        return None
    try:
        config = json.loads(text)
        jobs = {job: list(config.get("cluster", {}).get(job, [])) for job in ("chief", "worker")}
        tasks = [(job, index) for job, addresses in jobs.items() for index in range(len(addresses))]
        addresses = [*jobs["chief"], *jobs["worker"]]
        task = config.get("task", {"type": "worker", "index": 0})
        if task["type"] not in jobs or not tasks:
            return None
        me = tasks.index((task["type"], int(task["index"])))
        ports = [int(address.rsplit(":", 1)[1]) for address in addresses]
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        expected = "TF_CONFIG must name this task and a cluster of `host:port` addresses."
        remedy = (
            "See https://www.tensorflow.org/guide/distributed_training#setting_up_the_tf_config_environment_variable."
        )
        raise ValueError(describe(expected, f"TF_CONFIG={text!r}", remedy)) from error
    return _Cluster([f"{job} {index}" for job, index in tasks], addresses, ports[0], me)


def _gather(cluster: _Cluster, deadline: float) -> list[int]:
    """The first worker: listens until all others have said who they are. Returns who has not."""
    others = set(range(1, len(cluster.names)))
    with ExitStack() as stack:
        server = stack.enter_context(_listen(cluster))
        peers: dict[int, socket.socket] = {}
        while set(peers) != others and time.monotonic() < deadline:
            server.settimeout(_left(deadline))
            with suppress(OSError, ValueError):
                peer = stack.enter_context(server.accept()[0])
                peer.settimeout(_HELLO_SECONDS)  # somebody who only looks whether the port is open says nothing
                index = int(peer.makefile().readline())
                peer.settimeout(_left(deadline))
                if index in others:
                    peers[index] = peer
        if set(peers) != others:
            return sorted(others - set(peers))
        for peer in peers.values():
            # The peer closes first, so that the port is free at once.
            with suppress(OSError):
                peer.sendall(_GO)
                peer.recv(1)
    return []


def _report(cluster: _Cluster, deadline: float) -> list[int]:
    """Any other worker: says who it is until the first one has heard of all. Returns the first if it never has."""
    address = cluster.addresses[0].rsplit(":", 1)[0], cluster.port
    while time.monotonic() < deadline:
        with suppress(OSError), socket.create_connection(address, _left(deadline)) as leader:
            leader.sendall(f"{cluster.me}\n".encode())
            leader.settimeout(_left(deadline))
            if leader.recv(len(_GO)) == _GO:
                return []
        time.sleep(_RETRY_SECONDS)
    return [0]


def _listen(cluster: _Cluster) -> socket.socket:
    server = socket.socket()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        server.bind(("", cluster.port))
    except OSError as error:
        server.close()
        expected = "The first worker must be able to listen on its own port."
        remedy = "End what uses the port, or choose another in TF_CONFIG."
        raise OSError(describe(expected, f"{cluster.addresses[0]}: {error}", remedy)) from error
    server.listen()
    return server


def _left(deadline: float) -> float:
    return max(deadline - time.monotonic(), 0.01)
