"""Spark executors as the submitter, on a node whose agent is root."""

from __future__ import annotations

import functools
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest

from hrm.agent.run_as import may_switch
from tests.integration.conftest import APPS, BIN, REPOSITORY, Cluster, executors_of
from tests.spark_tools import SparkTools

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not may_switch(), reason="only root can become another user"),
    pytest.mark.skipif("USER == 'nobody'", reason="no user of this system lacks a home"),
]

USER = next(
    (
        x.pw_name
        for x in pwd.getpwall()
        if 0 < x.pw_uid < 1000 and x.pw_gid not in (0, 65534) and not Path(x.pw_dir).exists()
    ),
    "nobody",
)
"""A user of the system without a home, which the container's directory replaces."""
WAIT_S = 240.0  # the plugin is compiled first
PYTHON_PATH = os.pathsep.join(map(str, (REPOSITORY, Path(pyspark.__path__[0]).parent)))


@functools.cache
def open_python() -> str:
    """A Python of this version that others can run with HRM and Spark; empty if there is none.

    The tests' own may be below a home that is closed to them; the system's is open to all.
    """
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    reached = "import grpc, hrm.agent.drivers.driver_runner, pyspark"
    for candidate in (sys.executable, f"/usr/bin/{name}", f"/usr/local/bin/{name}"):
        try:
            subprocess.run(
                [candidate, "-P", "-c", reached], env={"PYTHONPATH": PYTHON_PATH}, user=USER,
                group=pwd.getpwnam(USER).pw_gid, extra_groups=[], cwd="/", check=True,
                timeout=60, capture_output=True,
            )  # fmt: skip
        except (OSError, subprocess.SubprocessError):
            continue
        return candidate
    return ""


@pytest.fixture
def python() -> str:
    found = open_python()
    if not found:
        pytest.skip(f"user {USER} can run no Python with {PYTHON_PATH}")
    return found


@pytest.fixture(scope="module")
def node(
    tmp_path_factory: pytest.TempPathFactory, _tools: SparkTools, eventually: Callable[..., Any]
) -> Iterator[tuple[Cluster, Path]]:
    """A cluster with one node in service, whose work directory every user can reach."""
    open_dir = Path(tempfile.mkdtemp(prefix="hrm-run-as-", dir="/tmp"))
    open_dir.chmod(0o711)
    directory = tmp_path_factory.mktemp("cluster")
    cluster = Cluster(directory, _tools)
    cluster.up("--nodes", "1", "--cores", "1", "--memory", "1g")
    agent = cluster.start(
        directory / "agent.log",
        "agent", "--name", "shared", "--master", cluster.address,
        "--work-dir", str(open_dir / "work"), "--cores", "2", "--memory-mib", "2048",
        "--token-file", str(cluster.state / "token"), "--run-as", "submitter",
        "--run-as-uid-min", "1", "--java-home", str(_tools.machines_java),
        program=(open_python() or sys.executable, "-P", "-m", "hrm.cli"),
        environment={"PYTHONPATH": PYTHON_PATH},
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
    assert "containers run as their submitter, uid 1 to 60000" in shown.stdout
    app = cluster.submit(
        "--conf", "spark.executor.instances=1",
        str(APPS / "shuffled.py"), str(tmp_path / "go"),
        environment={"SPARK_USER": USER},
    )  # fmt: skip
    eventually(lambda: "COUNT 100000" in app.output(), WAIT_S, "the shuffle is done")
    listed = cluster.application("shuffled")
    assert listed is not None
    assert listed["user"] == USER
    (executor,) = executors_of(listed["application_id"])
    uid = pwd.getpwnam(USER).pw_uid
    assert executor.uids().effective == executor.uids().real == uid
    (directory,) = (work_dir / "containers").glob(f"{listed['application_id']}-*")
    blocks = [path for path in (directory / "local").rglob("*") if path.is_file()]
    assert blocks and {path.stat().st_uid for path in blocks} == {uid}
    (tmp_path / "go").touch()
    assert app.wait() == 0, app.output()[-4000:]

    refused = cluster.submit(
        "--conf", "spark.executor.instances=1",
        str(APPS / "shuffled.py"), str(tmp_path / "go"),
        environment={"SPARK_USER": "root"},
    )  # fmt: skip

    def printed() -> bool:
        found = cluster.application("shuffled")
        ends = [c["end"]["message"] for c in found["containers"] if c.get("end")] if found else []
        return any("user root may not own containers" in message for message in ends)

    eventually(printed, WAIT_S, "root hears why")
    refused.process.terminate()
    refused.wait()


def test_python_tasks_are_the_submitters(node: tuple[Cluster, Path], python: str) -> None:
    """The driver belongs to the user that started it, here root."""
    cluster, _ = node
    app = cluster.submit(
        *("--conf", "spark.executor.instances=1", str(APPS / "whoami.py")),
        environment={"SPARK_USER": USER},
    )
    assert app.wait(WAIT_S) == 0, app.output()[-4000:]
    assert f"DRIVER 0 {BIN}/python" in app.output()
    assert f"TASKS {pwd.getpwnam(USER).pw_uid} {Path(python).parent}/python" in app.output()


def test_a_driver_in_cluster_mode_is_its_submitters_with_its_executors(
    node: tuple[Cluster, Path], python: str
) -> None:
    cluster, work_dir = node
    app = cluster.submit(
        *("--deploy-mode", "cluster", "--driver-memory", "512m", "--executor-memory", "512m"),
        *("--conf", "spark.executor.instances=1", str(APPS / "whoami.py")),
        environment={"LOGNAME": USER},
    )
    assert app.wait(WAIT_S) == 0, app.output()[-4000:]
    uid = pwd.getpwnam(USER).pw_uid
    shown = cluster.application("whoami")
    assert shown is not None
    (submission,) = cluster.ask("submissions", "--all")["submissions"]
    ids = (submission["submission_id"], shown["application_id"])
    logs = [path for x in ids for path in (work_dir / "containers").glob(f"{x}-*/stdout")]
    assert len(logs) == 2, "a driver and an executor"
    assert {path.stat().st_uid for path in logs} == {uid}
    printed = logs[0].read_text()
    assert f"DRIVER {uid} {Path(python).parent}/python" in printed
    assert f"TASKS {uid} {Path(python).parent}/python" in printed
    (kept,) = (work_dir / "files" / str(uid)).iterdir()
    assert kept.read_bytes() == (APPS / "whoami.py").read_bytes()
