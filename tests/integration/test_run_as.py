"""Spark executors as the user who submitted, on a node whose agent is root."""

from __future__ import annotations

import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hrm.agent.run_as import may_switch
from tests.integration.conftest import APPS, Cluster, executors_of

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not may_switch(), reason="only root can become another user"),
]

USER = "nobody"
WAIT_S = 240.0  # the plugin is compiled first


@pytest.fixture
def node(
    tmp_path: Path, _plugins: Path, eventually: Callable[..., Any]
) -> Iterator[tuple[Cluster, Path]]:
    """A cluster with one node in service, whose work directory every user can reach."""
    open_dir = Path(tempfile.mkdtemp(prefix="hrm-run-as-", dir="/tmp"))
    open_dir.chmod(0o711)
    cluster = Cluster(tmp_path, _plugins)
    cluster.up("--nodes", "1", "--cores", "1", "--memory", "1g")
    agent = cluster.start(
        tmp_path / "agent.log",
        "agent", "--name", "shared", "--master", cluster.address,
        "--work-dir", str(open_dir / "work"), "--cores", "2", "--memory-mib", "2048",
        "--token-file", str(cluster.state / "token"), "--run-as", "submitter",
    )  # fmt: skip
    try:
        eventually(lambda: len(cluster.ask("nodes")["nodes"]) == 2, 30.0, "the node is there")
        drained = cluster.run("node", "drain", "node-1", "--master", cluster.address)
        assert drained.returncode == 0, drained.stderr
        yield cluster, open_dir / "work"
    finally:
        agent.terminate()
        agent.wait(60)
        cluster.down()
        shutil.rmtree(open_dir)


def test_executors_are_the_submitters_and_root_gets_none(
    node: tuple[Cluster, Path], tmp_path: Path, eventually: Callable[..., Any]
) -> None:
    cluster, work_dir = node
    shown = cluster.run("node", "show", "shared", "--master", cluster.address)
    assert "containers run as their submitter, uid 1000 and up" in shown.stdout
    app = cluster.submit(
        "--conf", "spark.executor.instances=1",
        str(APPS / "shuffled.py"), str(tmp_path / "go"),
        environment={"SPARK_USER": USER},
    )  # fmt: skip
    eventually(lambda: "COUNT 100000" in app.output(), WAIT_S, "the shuffle is done")
    (listed,) = cluster.ask("apps")["applications"]
    assert listed["user"] == USER
    (executor,) = executors_of(listed["application_id"])
    uid = pwd.getpwnam(USER).pw_uid
    assert executor.uids().effective == executor.uids().real == uid
    (directory,) = (work_dir / "containers").iterdir()
    blocks = [path for path in (directory / "local").rglob("*") if path.is_file()]
    assert blocks and {path.stat().st_uid for path in blocks} == {uid}
    (tmp_path / "go").touch()
    assert app.wait() == 0, app.output()[-4000:]

    refused = cluster.submit(
        "--conf", "spark.executor.instances=1",
        str(APPS / "shuffled.py"), str(tmp_path / "go"),
        environment={"SPARK_USER": "root"},
    )  # fmt: skip

    def told() -> bool:
        found = cluster.application("shuffled")
        ends = [c["end"]["message"] for c in found["containers"] if c.get("end")] if found else []
        return any("user root may not own containers" in message for message in ends)

    eventually(told, WAIT_S, "root hears why")
    refused.process.terminate()
    refused.wait()


def test_a_driver_in_cluster_mode_is_its_submitters_with_its_executors(
    node: tuple[Cluster, Path], eventually: Callable[..., Any]
) -> None:
    reached = [sys.executable, "-c", "import grpc, hrm, pyspark"]
    try:
        subprocess.run(reached, user=USER, check=True, timeout=60, capture_output=True)
    except (OSError, subprocess.SubprocessError):
        pytest.skip(f"other users cannot run {sys.executable}")
    cluster, work_dir = node
    app = cluster.submit(
        *("--deploy-mode", "cluster", "--driver-memory", "512m", "--executor-memory", "512m"),
        *("--conf", "spark.executor.instances=1", str(APPS / "total.py"), "2", "0.1"),
        environment={"LOGNAME": USER},
    )
    assert app.wait(WAIT_S) == 0, app.output()[-4000:]
    uid = pwd.getpwnam(USER).pw_uid
    logs = list((work_dir / "containers").glob("*/stdout"))
    assert len(logs) == 2, "a driver and an executor"
    assert {path.stat().st_uid for path in logs} == {uid}
    assert "TOTAL 332833500" in "".join(path.read_text() for path in logs)
    (kept,) = (work_dir / "files" / str(uid)).iterdir()
    assert kept.read_bytes() == (APPS / "total.py").read_bytes()
