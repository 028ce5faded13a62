"""Nothing is lost when parts fail: SQL under load, while all below it ends and comes back."""

from __future__ import annotations

import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import APPS, REPOSITORY, Cluster, executors_of, kill_daemon

pytestmark = [pytest.mark.spark, pytest.mark.extra, pytest.mark.timeout(1500)]

SCALE = 0.01
GRANT_LIMIT_S = 5.0
SUM_OF_SQUARES = 332833500
SUM = 499500

Eventually = Callable[..., Any]
Started = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    inputs = pytest.importorskip("benchmarks.inputs")
    made: Path = inputs.tpch_tables(tmp_path_factory.mktemp("tpch"), SCALE)
    return made


def answers(output: str) -> int:
    return max(map(int, re.findall(r"^ANSWER (\d+)$", output, re.MULTILINE)), default=0)


class Load:
    """The queries, running; ``goes_on`` waits for a query that began after now."""

    def __init__(self, cluster: Cluster, tables: Path, stop: Path, eventually: Eventually) -> None:
        self._eventually = eventually
        self._stop = stop
        self.cluster = cluster
        self.submitted = cluster.submit(
            "--conf", "spark.executor.instances=2",
            "--conf", "spark.sql.shuffle.partitions=4",
            str(APPS / "queries.py"), str(tables), str(REPOSITORY / "benchmarks" / "tpch"),
            str(SCALE), str(stop),
        )  # fmt: skip

    def goes_on(self, what: str) -> None:
        seen = answers(self.submitted.output())

        def further() -> bool:
            assert self.submitted.process.poll() is None, self.submitted.output()[-4000:]
            return answers(self.submitted.output()) >= seen + 2

        self._eventually(further, 400.0, f"queries go on, {what}")

    def finish(self) -> None:
        self._stop.touch()
        assert self.submitted.wait(400.0) == 0, self.submitted.output()[-4000:]

    @property
    def application(self) -> dict[str, Any]:
        found = self.cluster.application("queries")
        assert found is not None
        return found

    def running(self) -> list[dict[str, Any]]:
        containers = self.application["containers"]
        return [c for c in containers if c["state"] == "CONTAINER_STATE_RUNNING"]


def start_master(cluster: Cluster, started: Started, address: str) -> None:
    state = cluster.state
    started(
        *("master", "--port", address.rpartition(":")[2], "--state-dir", str(state / "master")),
        *("--token-file", str(state / "token")),
    )


def start_agent(cluster: Cluster, started: Started, name: str) -> subprocess.Popen[bytes]:
    state = cluster.state
    return started(
        *("agent", "--name", name, "--master", cluster.address, "--cores", "2", "--run-as", "off"),
        *("--memory-mib", "3072", "--work-dir", str(state / "nodes" / name)),
        *("--token-file", str(state / "token")),
    )


def nodes(cluster: Cluster) -> dict[str, dict[str, Any]]:
    return {n["name"]: n for n in cluster.ask("nodes")["nodes"]}


def test_a_drained_node_hands_over_cached_and_shuffle_blocks(
    cluster: Cluster, tmp_path: Path, eventually: Eventually
) -> None:
    app = cluster.submit(
        "--conf", "spark.executor.instances=2", str(APPS / "keeper.py"), str(tmp_path)
    )
    (tmp_path / "compute").touch()
    eventually((tmp_path / "ready").exists, 120.0, "the data is there")
    shown = cluster.application("keeper")
    assert shown is not None
    (there,) = [c for c in shown["containers"] if c["node"] == "node-1"]
    assert cluster.run(
        "node", "drain", "node-1", "--move", "90", "--master", cluster.address
    ).returncode == 0  # fmt: skip

    def end() -> dict[str, Any] | None:
        found = cluster.application("keeper")
        assert found is not None
        (same,) = [c for c in found["containers"] if c["container_id"] == there["container_id"]]
        end: dict[str, Any] | None = same.get("end")
        return end

    began_s = time.monotonic()
    ended = eventually(end, 120.0, "its executor has handed over and ended")
    assert time.monotonic() - began_s < 90.0
    assert ended["cause"] == "END_CAUSE_PREEMPTED"
    assert ended.get("exit_code", 0) == 0, "it ended by itself, in time"
    (tmp_path / "finish").touch()
    assert app.wait(400.0) == 0, app.output()
    assert f"CACHED {SUM_OF_SQUARES} COMPUTED 1000" in app.output(), "nothing was computed twice"
    assert f"SHUFFLED {SUM} COMPUTED 1000" in app.output()
    undone = cluster.run("node", "drain", "node-1", "--undo", "--master", cluster.address)
    assert undone.returncode == 0, undone.stderr


def test_sql_under_load_notices_nothing(
    cluster: Cluster, tables: Path, tmp_path: Path, started: Started, eventually: Eventually
) -> None:
    """The master by kill -9, with an executor dead meanwhile; then all agents, one by one."""
    load = Load(cluster, tables, tmp_path / "stop", eventually)
    eventually(lambda: answers(load.submitted.output()) > 0, 400.0, "the first answers")
    first = load.running()
    assert {c["node"] for c in first} == {"node-1", "node-2"}
    _without_the_master(cluster, load, started, eventually)

    # An agent that dies leaves its executors to the next one.
    before = {c["container_id"] for c in load.running()}
    kill_daemon(cluster, "node-2")
    again = start_agent(cluster, started, "node-2")
    load.goes_on("with another agent on node-2")
    assert {c["container_id"] for c in load.running()} == before

    # An orderly restart, as for an upgrade: the node is emptied first.
    for name, end in (("node-1", None), ("node-2", again)):
        drained = cluster.run("node", "drain", name, "--move", "60", "--master", cluster.address)
        assert drained.returncode == 0, drained.stderr
        eventually(
            lambda name=name: not nodes(cluster)[name]["resource_units"][0].get("running"),
            120.0,
            f"{name} is empty",
        )
        if end is None:
            (pid,) = [p["pid"] for p in cluster.cluster["processes"] if p["name"] == name]
            subprocess.run(["kill", "-TERM", str(pid)], check=True)
        else:
            end.send_signal(signal.SIGTERM)
            end.wait(60)
        eventually(
            lambda name=name: float(nodes(cluster)[name]["last_heard_s_ago"]) > 2.0,
            120.0,
            "it ends",
        )
        start_agent(cluster, started, name)
        eventually(
            lambda name=name: float(nodes(cluster)[name]["last_heard_s_ago"]) < 2.0,
            120.0,
            "is back",
        )
        undone = cluster.run("node", "drain", name, "--undo", "--master", cluster.address)
        assert undone.returncode == 0, undone.stderr
        load.goes_on(f"after the restart of {name}")

    load.finish()
    after = load.application
    assert after["state"] == "APPLICATION_STATE_SUCCEEDED"
    ends = [c["end"] for c in after["containers"] if c["end"]["cause"] == "END_CAUSE_EXITED"]
    assert [end.get("exit_code") for end in ends if end.get("exit_code")] == [137], (
        "but for the one that was killed, all ended in order"
    )


def _without_the_master(
    cluster: Cluster, load: Load, started: Started, eventually: Eventually
) -> None:
    address, application_id = cluster.address, load.application["application_id"]
    known = {c["container_id"] for c in load.running()}
    kill_daemon(cluster, "master")
    load.goes_on("without a master")
    executors_of(application_id)[0].kill()
    load.goes_on("without a master, with one executor less")
    start_master(cluster, started, address)

    def replaced() -> dict[str, Any] | None:
        if cluster.run("status", "--master", address).returncode != 0:
            return None
        new = [c for c in load.running() if c["container_id"] not in known]
        return new[0] if new else None

    new = eventually(replaced, 180.0, "the dead executor is replaced")
    back_at_s = [n["registered_at_s"] for n in nodes(cluster).values()]
    granted_s = new["assigned_at_s"] - max(back_at_s)
    started_s = new["started_at_s"] - float(cluster.ask("status")["started_at_s"])
    print(
        f"\ngranted {granted_s:.2f} s after the last agent had registered; running "
        f"{started_s:.2f} s after the master had begun to serve"
    )
    assert granted_s < GRANT_LIMIT_S
    assert len(load.running()) == 2
    load.goes_on("with another master")
