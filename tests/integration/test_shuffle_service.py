"""The agent's shuffle service with a real Spark: the files of an executor outlive it."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import APPS, Cluster, executors_of
from tests.spark_tools import SparkTools

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

SUM = 499500


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def served(
    tmp_path_factory: pytest.TempPathFactory, _tools: SparkTools, eventually: Callable[..., Any]
) -> Iterator[tuple[Cluster, int]]:
    """A cluster of one node with a shuffle service, and its port."""
    subject, port = Cluster(tmp_path_factory.mktemp("served"), _tools), free_port()
    subject.environment["HRM_AGENT_SHUFFLE_SERVICE"] = "true"
    subject.environment["HRM_AGENT_SHUFFLE_SERVICE_PORT"] = str(port)
    subject.environment["HRM_AGENT_SHUFFLE_SERVICE_MEMORY_MIB"] = "128"
    subject.up("--nodes", "1", "--cores", "2", "--memory", "3g")
    try:
        log = subject.state / "logs" / "node-1.log"
        eventually(lambda: "the shuffle service is up" in log.read_text(), 200.0, "it is up")
        yield subject, port
    finally:
        subject.down()


def test_a_killed_executors_shuffle_is_not_computed_again(
    served: tuple[Cluster, int], tmp_path: Path, eventually: Callable[..., Any]
) -> None:
    cluster, port = served
    app = cluster.submit(
        "--conf", "spark.executor.instances=1",
        "--conf", "spark.shuffle.service.enabled=true",
        "--conf", f"spark.shuffle.service.port={port}",
        str(APPS / "keeper.py"), str(tmp_path),
    )  # fmt: skip
    (tmp_path / "compute").touch()
    eventually((tmp_path / "ready").exists, 200.0, "the shuffle is written")
    shown = cluster.application("keeper")
    assert shown is not None
    kept = cluster.state / "nodes" / "node-1" / "shuffle" / shown["application_id"]
    assert list(kept.rglob("shuffle_*.data"))
    (victim,) = executors_of(shown["application_id"])
    victim.kill()
    (tmp_path / "finish").touch()
    assert app.wait(300.0) == 0, app.output()
    assert f"SHUFFLED {SUM} COMPUTED 1000" in app.output(), "not once more"
    assert "COMPUTED 2000" in app.output(), "what it had cached died with it"
    eventually(lambda: not kept.exists(), 20.0, "its files are removed with the application")


def test_an_application_without_a_secret_is_informed_at_once(served: tuple[Cluster, int]) -> None:
    cluster, port = served
    app = cluster.submit(
        "--conf", "spark.shuffle.service.enabled=true",
        "--conf", f"spark.shuffle.service.port={port}",
        "--conf", "spark.authenticate=false",
        str(APPS / "total.py"), "1", "0",
    )  # fmt: skip
    assert app.wait(120.0) != 0
    assert "spark.shuffle.service.enabled needs spark.authenticate=true" in app.output()
