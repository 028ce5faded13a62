"""Another program on the master's port: what it learns while the master is down, and the error of a
master that finds its port in use."""

from __future__ import annotations

import contextlib
import shutil
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from hrm import certificates
from tests.hostile.attack import Attack, Row, write_row
from tests.hostile.cluster import Cluster, wait_until

BAD_CONFIGURATION = 2
"""The status after which the documented systemd unit does not try again."""


class Squatter:
    """Listens, and keeps whatever it is sent. It replies to the opening of an HTTP/2 connection, so
    that callers continue with their requests."""

    def __init__(self, port: int = 0) -> None:
        self.received = b""
        self._listening = socket.create_server(("127.0.0.1", port))
        self.port: int = self._listening.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listening.accept()
                threading.Thread(target=self._receive, args=(connection,), daemon=True).start()

    def _receive(self, connection: socket.socket) -> None:
        settings, ack = (b"\0\0\0\x04" + flags + b"\0\0\0\0" for flags in (b"\0", b"\x01"))
        with contextlib.suppress(OSError), connection:
            connection.settimeout(10.0)
            first = connection.recv(65_536)
            self.received += first
            if first.startswith(b"PRI"):
                connection.sendall(settings + ack)
            while data := connection.recv(65_536):
                self.received += data

    def close(self) -> None:
        # A listening socket that is only closed keeps its port while accept() waits on it.
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join(5.0)


@pytest.fixture
def squatter() -> Iterator[Squatter]:
    made = Squatter()
    yield made
    made.close()


def test_a_port_that_is_taken_is_tried_again(tmp_path: Path, squatter: Squatter) -> None:
    """One line, and a status with which the unit restarts it."""
    with Cluster(tmp_path) as cluster:
        master = cluster.start_master(port=squatter.port, wait=False)
        status = master.ended()
        outcome_text = master.log()
    assert "Traceback" not in outcome_text
    assert f":{squatter.port}" in outcome_text
    row = Row(point="3", attack="the master's port is taken at its start", attacked="master")
    row.outcome = f"status {status}: the unit tries again"
    if status in (0, BAD_CONFIGURATION):
        row.outcome = f"HURT: status {status}: the unit gives up"
    write_row(row)
    assert status not in (0, BAD_CONFIGURATION), outcome_text


@pytest.mark.hostile
def test_clear_text_beyond_loopback_is_refused(tmp_path: Path) -> None:
    """Without certificates, and without the setting that allows clear text by name."""
    with Cluster(tmp_path) as cluster:
        master = cluster.start_master("--host", "0.0.0.0", wait=False)
        wait_until(
            lambda: not master.alive() or "ready on" in master.log(), "it starts, or not", 40
        )
        served, outcome_text = master.alive(), master.log()
    row = Row(point="3", attack="clear text on an address of the network", attacked="master")
    row.outcome = "HURT: it serves" if served else "refused at the start"
    write_row(row)
    assert not served, outcome_text
    assert "allow_clear_text" in outcome_text and "Traceback" not in outcome_text


@pytest.mark.hostile
def test_a_node_gives_nothing_to_a_squatter_without_the_certificate(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        (pair,) = certificates.make(tmp_path / "certificates", ["127.0.0.1"])
        shutil.copy(tmp_path / "certificates" / "ca.pem", tmp_path / "ca.pem")
        flags = ("--tls-cert", str(pair.cert), "--tls-key", str(pair.key))
        master = cluster.start_master(*flags)
        port, token = cluster.port, cluster.token
        agent = cluster.start_agent(wait=False, tls_cert=str(pair.cert), tls_key=str(pair.key))
        ready = tmp_path / "node-1" / "ready.json"
        wait_until(ready.exists, "the agent is ready", 40.0)
        master.kill()
        squatter = Squatter(port)
        try:
            with Attack("3", "a squatter, TLS", on=agent) as seen:
                wait_until(
                    lambda: squatter.received.count(b"\x16\x03") >= 2, "it tried twice", 30.0
                )
                assert token.encode() not in squatter.received
                seen.outcome = "hears handshakes, never the token"
        finally:
            squatter.close()


@pytest.mark.hostile
def test_what_a_squatter_on_loopback_receives(tmp_path: Path) -> None:
    """Clear text is accepted on loopback only, where a program on a port of this machine belongs to
    one of its users, according to the threat model. Afterwards the cluster continues."""
    with Cluster(tmp_path) as cluster:
        master = cluster.start_master()
        port, token = cluster.port, cluster.token
        agent = cluster.start_agent()
        master.kill()
        squatter = Squatter(port)
        with Attack("3", "a squatter on loopback, clear text, 5 s", on=agent) as seen:
            wait_until(lambda: b"PRI * HTTP/2.0" in squatter.received, "the agent has come", 30.0)
            with contextlib.suppress(AssertionError):
                wait_until(lambda: token.encode() in squatter.received, "the token", 5.0)
            received = token.encode() in squatter.received
            squatter.close()
            cluster.start_master(port=port)
            wait_until(lambda: "node-1" in cluster.alive_nodes(), "the node is back", 90.0)
            seen.outcome = (
                f"{'hears' if received else 'does not hear'} the token (accepted on loopback); "
                f"the node is back with the master"
            )
