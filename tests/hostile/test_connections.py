"""Connections that are held and send little or nothing: the daemon continues to serve and start."""

from __future__ import annotations

import contextlib
import resource
import socket
import time
from collections.abc import Iterator

import pytest

from tests.hostile.application import Application
from tests.hostile.attack import Attack, Limits
from tests.hostile.cluster import Cluster

IDLE = 1_100
SLOW = 200
HELD_S = 4.0
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HALF_SETTINGS = b"\x00\x00\x06\x04"
DESCRIPTORS = 1_024
"""The default limit of most systems for a daemon."""

pytestmark = pytest.mark.hostile


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with Cluster(tmp_path_factory.mktemp("connections")) as made:
        # The daemons inherit the default of most systems; a hard limit above lets them raise it.
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(DESCRIPTORS, hard), hard))
        try:
            made.start_master()
            made.start_agent()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        yield made


@contextlib.contextmanager
def held(target: str, number: int, payload: bytes = b"") -> Iterator[list[socket.socket]]:
    """So many connections, on each of which ``payload`` has been sent."""
    host, _, port = target.rpartition(":")
    opened: list[socket.socket] = []
    try:
        for _ in range(number):
            try:
                one = socket.create_connection((host, int(port)), 2.0)
            except OSError:
                continue
            opened.append(one)
            with contextlib.suppress(OSError):
                one.sendall(payload)
        yield opened
    finally:
        for one in opened:
            one.close()


def closed(connections: list[socket.socket]) -> int:
    """How many of them the other side has ended."""
    found = 0
    for one in connections:
        one.setblocking(False)
        try:
            while one.recv(4096):
                pass
            found += 1
        except BlockingIOError:
            continue
        except OSError:
            found += 1
    return found


def besiege(
    cluster: Cluster,
    name: str,
    payload: bytes,
    words: str,
    latency_s: float,
    held_s: float = HELD_S,
) -> None:
    """Hold the connections while another caller sends requests, and while a container starts."""
    daemon = cluster.daemons[0 if name == "master" else 1]
    target = cluster.address if name == "master" else cluster.endpoint()
    kind = "status" if name == "master" else "log"
    limits = Limits(latency_s=latency_s)
    probe = (kind, target, str(cluster.token_file))
    with (
        Attack("2", words, on=daemon, probe=probe, limits=limits) as seen,
        Application(cluster.address, cluster.token) as application,
        held(target, IDLE, payload) as connections,
    ):
        time.sleep(held_s)
        application.request("1")
        application.wait_running(1)
        seen.outcome = (
            f"{len(connections)} accepted, {closed(connections)} of them closed; a container "
            f"started meanwhile"
        )


@pytest.mark.parametrize("name", ["agent", "master"])
def test_connections_that_send_nothing(cluster: Cluster, name: str) -> None:
    besiege(cluster, name, b"", f"{IDLE:,} connections that say nothing", 1.0)


@pytest.mark.parametrize("name", ["agent", "master"])
def test_handshakes_that_are_half_done(cluster: Cluster, name: str) -> None:
    words = f"{IDLE:,} connections that stop amid the handshake"
    besiege(cluster, name, PREFACE + HALF_SETTINGS, words, 1.0)


@pytest.mark.parametrize("name", ["agent", "master"])
def test_connections_without_a_call(cluster: Cluster, name: str) -> None:
    settings = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
    words = f"{IDLE:,} connections that shake hands and never call"
    besiege(cluster, name, PREFACE + settings, words, 1.0)


def log_pages(cluster: Cluster) -> str:
    """Where the agent serves log pages: its only port that is not its endpoint's."""
    import psutil

    agent = cluster.daemons[1]
    endpoint = int(cluster.endpoint().rpartition(":")[2])
    ports = {
        c.laddr.port
        for c in psutil.Process(agent.pid).net_connections("tcp")
        if c.status == psutil.CONN_LISTEN
    }
    (found,) = ports - {endpoint}
    return f"127.0.0.1:{found}"


def test_log_pages_that_are_asked_for_slowly(cluster: Cluster) -> None:
    """A header byte by byte: each connection costs one descriptor for ten seconds at most."""
    pages, agent = log_pages(cluster), cluster.daemons[1]
    probe = ("log", cluster.endpoint(), str(cluster.token_file))
    with (
        Attack("2", f"{SLOW} log pages asked for byte by byte", on=agent, probe=probe,
               limits=Limits(latency_s=5.0)) as seen,
        held(pages, SLOW, b"GET / HTT") as connections,
    ):  # fmt: skip
        deadline = time.monotonic() + 12.0
        while time.monotonic() < deadline and closed(connections) < len(connections):
            for one in connections:
                with contextlib.suppress(OSError):
                    one.send(b"P")
            time.sleep(0.5)
        gone = closed(connections)
        seen.outcome = f"{gone} of {len(connections)} closed within 12 s"
        assert gone == len(connections), seen.outcome
