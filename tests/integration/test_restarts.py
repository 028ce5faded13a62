"""The master and an agent are killed (kill -9) and restarted, under a running application."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import APPS, Cluster, kill_daemon
from tests.integration.test_submissions import executors
from tests.spark_tools import SparkTools

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory, _tools: SparkTools) -> Iterator[Cluster]:
    """Its daemons are killed: no other test shares it."""
    subject = Cluster(tmp_path_factory.mktemp("cluster"), _tools)
    subject.up("--nodes", "2", "--cores", "2", "--memory", "3g")
    yield subject
    subject.down()


def _ids(app: dict[str, Any]) -> set[str]:
    return {c["container_id"] for c in app["containers"]}


def test_a_running_application_survives_its_master_and_its_agents(
    cluster: Cluster,
    tmp_path: Path,
    started: Callable[..., None],
    running_app: Callable[..., Any],
    eventually: Callable[..., Any],
) -> None:
    marker = tmp_path / "tasks-run"
    app = cluster.submit(
        "--conf", "spark.executor.instances=2", str(APPS / "total.py"), "8", "6", str(marker)
    )
    shown = running_app("total", 2)
    eventually(marker.exists, 60.0, "its tasks run")
    before, jvms = _ids(shown), {p.pid for p in executors(cluster, shown["application_id"])}
    assert len(jvms) == 2

    address = cluster.address
    port = address.rpartition(":")[2]
    kill_daemon(cluster, "master")
    refused = cluster.run("status", "--master", address)
    assert refused.returncode == 1
    assert "hrm up" in refused.stderr
    state = cluster.state
    started(
        *("master", "--port", port, "--state-dir", str(state / "master")),
        *("--token-file", str(state / "token")),
    )
    eventually(lambda: cluster.run("status", "--master", address).returncode == 0, 20.0, "it is up")
    again = running_app("total", 2)
    assert _ids(again) == before
    assert {p.pid for p in executors(cluster, shown["application_id"])} == jvms

    kill_daemon(cluster, "node-1")
    started(
        *("agent", "--name", "node-1", "--master", address, "--cores", "2", "--memory-mib", "3072"),
        *("--work-dir", str(state / "nodes" / "node-1"), "--token-file", str(state / "token")),
        *("--run-as", "off"),
    )

    def whole() -> bool:
        nodes = cluster.ask("nodes")["nodes"]
        fresh = all(float(n["last_heard_s_ago"]) < 3.0 for n in nodes)
        return fresh and {n["state"] for n in nodes} == {"NODE_STATE_ALIVE"}

    eventually(whole, 20.0, "the agent is back")
    assert {p.pid for p in executors(cluster, shown["application_id"])} == jvms, (
        "its executor lives on"
    )

    assert app.wait() == 0, app.output()
    assert "TOTAL 332833500" in app.output()
    after = cluster.ask("app", "show", shown["application_id"])
    assert after["state"] == "APPLICATION_STATE_SUCCEEDED"
    assert _ids(after) == before, "no executor was lost or replaced"
    eventually(lambda: cluster.free_vcores() == 4, 10.0, "all vcores are free again")
