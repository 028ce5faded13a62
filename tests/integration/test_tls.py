"""A cluster with TLS, and a real Spark on it: drivers here and on a node, logs."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.integration.conftest import APPS, Cluster
from tests.spark_tools import SparkTools

pytestmark = [pytest.mark.spark, pytest.mark.timeout(500)]

TLS_HANDSHAKE = b"\x16\x03"
TOTAL = f"TOTAL {sum(x * x for x in range(1000))}"


class Relay:
    """A port that forwards to the master, and the first bytes of each connection through it."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.begun: list[bytes] = []
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._target)
                self._open += [client, server]
                for pair in ((client, server, True), (server, client, False)):
                    threading.Thread(target=self._pass_on, args=pair, daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket, of_client: bool) -> None:
        first = of_client
        with suppress(OSError):
            while data := source.recv(65536):
                if first:
                    self.begun.append(data[:2])
                first = False
                sink.sendall(data)
        with suppress(OSError):
            sink.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        for each in (self._listener, *self._open):
            each.close()


@pytest.fixture
def cluster(tmp_path: Path, _tools: SparkTools) -> Iterator[Cluster]:
    subject = Cluster(tmp_path / "cluster", _tools)
    subject.up("--nodes", "2", "--cores", "2", "--memory", "3g", "--tls")
    yield subject
    subject.down()


@pytest.fixture
def relay(cluster: Cluster) -> Iterator[Relay]:
    subject = Relay(cluster.address)
    yield subject
    subject.close()


def test_drivers_run_encrypted_here_and_on_a_node_and_one_without_the_authority_not_at_all(
    cluster: Cluster, relay: Relay
) -> None:
    program = (str(APPS / "total.py"), "2", "0")
    few = ("--conf", "spark.executor.instances=1")
    here = cluster.submit(*few, "--name", "here", *program, master=f"hrm://{relay.address}")
    there = cluster.submit(
        *few, "--deploy-mode", "cluster", "--name", "there", "--driver-memory", "600m", *program,
        master=f"hrm://{relay.address}",
    )  # fmt: skip
    clear = cluster.submit(*program, environment={"HRM_TLS_CA": ""})
    assert here.wait(240) == 0, here.output()
    assert TOTAL in here.output()
    assert there.wait(240) == 0, there.output()
    assert len(relay.begun) >= 2
    assert set(relay.begun) == {TLS_HANDSHAKE}, "nothing went by in clear text"

    (submission,) = cluster.ask("submissions", "--all")["submissions"]
    log = cluster.run(
        *("submission", "logs", submission["submission_id"], "--stream", "stdout"),
        *("--master", cluster.address),
    )
    assert TOTAL in log.stdout, log.stderr
    applications = {x["application_id"]: x for x in cluster.ask("apps", "--all")["applications"]}
    del applications[submission["submission_id"]]  # the driver's own
    assert [x["state"] for x in applications.values()] == ["APPLICATION_STATE_SUCCEEDED"] * 2
    for application_id in applications:
        logs = cluster.run("app", "logs", application_id, "--master", cluster.address)
        assert logs.returncode == 0, logs.stderr
        assert "CoarseGrainedExecutorBackend" in logs.stdout

    assert clear.wait(240) != 0
    printed = [line for line in clear.output().splitlines() if "speaks TLS" in line]
    assert printed, clear.output()
    assert "export HRM_TLS_CA=" in printed[0]
