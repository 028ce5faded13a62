"""Nothing is lost when parts fail: two applications run, while all components below them end and
restart.

One runs four TPC-H queries repeatedly, the other holds cached blocks and shuffle files; each has an
executor on both nodes. In turn: the master dies by kill -9, and an executor before the next master
starts; both agents are restarted, one after the other, under their containers, as for an upgrade; a
node is drained and its agent restarted. No job fails, every query has the result of its first
round, and no block is computed twice. (``test_restarts`` has an agent's kill -9.)
"""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.conftest import PATIENCE
from tests.integration.conftest import APPS, REPOSITORY, Cluster, Submitted
from tests.integration.test_submissions import executors
from tests.spark_tools import SparkTools

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

SCALE = 0.01
GRANT_LIMIT_S = 5.0
HAND_OVER_S = 90.0
SUM_OF_SQUARES = 332833500
SUM = 499500
RESULT = re.compile(r"^ANSWER (\d+)$", re.MULTILINE)
LOST = re.compile(r"Lost (?:task|executor) .*")
NODES = ("node-1", "node-2")

Eventually = Callable[..., Any]
Started = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    inputs = pytest.importorskip("benchmarks.inputs")
    if not (Path(sys.executable).parent / "tpchgen-cli").exists() and not shutil.which(
        "tpchgen-cli"
    ):
        pytest.skip("tpchgen-cli is not installed: pip install 'hrm-spark[bench]'")
    made: Path = inputs.tpch_tables(tmp_path_factory.mktemp("tpch"), SCALE)
    return made


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory, _tools: SparkTools) -> Iterator[Cluster]:
    """For this try only, because its daemons do not stay as started. Agents leave their containers
    to the next ones, like the systemd unit in docs/operations.md."""
    subject = Cluster(tmp_path_factory.mktemp("cluster"), _tools)
    subject.environment["HRM_AGENT_KEEP_CONTAINERS"] = "true"
    subject.up("--nodes", "2", "--cores", "2", "--memory", "3g")
    yield subject
    subject.down()


class Daemons:
    """The running daemons; each may end and start again, on the same directory."""

    def __init__(self, cluster: Cluster, started: Started, eventually: Eventually) -> None:
        self.cluster = cluster
        self._started = started
        self._eventually = eventually
        self._pids = {p["name"]: int(p["pid"]) for p in cluster.cluster["processes"]}
        self._address = cluster.address

    def end(self, name: str, number: signal.Signals) -> None:
        process = psutil.Process(self._pids[name])
        process.send_signal(number)
        self._eventually(lambda: not lives(process), 60.0, f"{name} ends")

    def start_master(self) -> None:
        """Returns once it serves."""
        state = self.cluster.state
        self._pids["master"] = self._started(
            *("master", "--port", self._address.rpartition(":")[2]),
            *("--state-dir", str(state / "master"), "--token-file", str(state / "token")),
        ).pid
        self._eventually(
            lambda: self.cluster.run("status", "--master", self._address).returncode == 0,
            60.0,
            "a master serves",
        )

    def start_agent(self, name: str) -> None:
        """Returns once the master has it."""
        known_s = self.nodes()[name]["registered_at_s"]
        state = self.cluster.state
        self._pids[name] = self._started(
            *("agent", "--name", name, "--master", self._address, "--run-as", "off"),
            *("--cores", "2", "--memory-mib", "3072", "--work-dir", str(state / "nodes" / name)),
            *("--token-file", str(state / "token")),
        ).pid
        self._eventually(
            lambda: self.nodes()[name]["registered_at_s"] != known_s, 60.0, f"{name} is back"
        )

    def nodes(self) -> dict[str, dict[str, Any]]:
        return {node["name"]: node for node in self.cluster.ask("nodes")["nodes"]}


def lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


class Application:
    """One of the two; ``name``: the application's own."""

    def __init__(self, name: str, cluster: Cluster, submitted: Submitted) -> None:
        self.name = name
        self.cluster = cluster
        self.submitted = submitted
        self._id = ""

    def shown(self) -> dict[str, Any] | None:
        """The master's record of it; None before it exists."""
        found = (
            self.cluster.ask("app", "show", self._id)
            if self._id
            else self.cluster.application(self.name)
        )
        self._id = found["application_id"] if found else ""
        return found

    def containers(self) -> list[dict[str, Any]]:
        shown = self.shown()
        return shown.get("containers", []) if shown else []

    def running(self) -> dict[str, dict[str, Any]]:
        """Its containers that run, by id."""
        found = [c for c in self.containers() if c["state"] == "CONTAINER_STATE_RUNNING"]
        return {c["container_id"]: c for c in found}

    def lost(self) -> list[str]:
        """Its driver's log lines of tasks that failed, and of executors that ended unexpectedly."""
        return LOST.findall(self.submitted.output())

    def has_both_nodes(self) -> bool:
        return {c["node"] for c in self.running().values()} == set(NODES)

    def executors(self) -> set[psutil.Process]:
        """Its executors' JVMs, with or without a master; equal by pid and start time."""
        assert self._id
        return set(executors(self.cluster, self._id))


class Queries(Application):
    def completed(self) -> int:
        """How many queries have had the result of the first round."""
        return max(map(int, RESULT.findall(self.submitted.output())), default=0)

    def go_on(self, eventually: Eventually, when: str) -> None:
        """Waits for a query that began after now."""
        seen = self.completed()

        def further() -> bool:
            assert self.submitted.process.poll() is None, self.submitted.output()[-4000:]
            return self.completed() >= seen + 2

        eventually(further, 240.0, f"queries go on, {when}")


def test_two_applications_at_work_notice_nothing(
    cluster: Cluster, tables: Path, tmp_path: Path, started: Started, eventually: Eventually
) -> None:
    daemons = Daemons(cluster, started, eventually)
    queries, keeper = _at_work(cluster, tables, tmp_path, eventually)
    _without_the_master(daemons, queries, eventually)
    lost = queries.lost()
    assert len([x for x in lost if x.startswith("Lost executor")]) == 1, "the one that was killed"
    for name in NODES:
        _under_its_containers(daemons, name, (queries, keeper))
        queries.go_on(eventually, f"with another agent on {name}")
    _emptied(daemons, "node-1", keeper, eventually)
    queries.go_on(eventually, "after node-1 was emptied")

    (tmp_path / "finish").touch()
    for each in (queries, keeper):
        assert each.submitted.wait(240.0) == 0, each.submitted.output()[-4000:]
        shown = each.shown()
        assert shown is not None
        assert shown["state"] == "APPLICATION_STATE_SUCCEEDED"
    assert (queries.lost(), keeper.lost()) == (lost, []), "no task failed for an agent's end"
    output = keeper.submitted.output()
    assert f"CACHED {SUM_OF_SQUARES} COMPUTED 1000" in output, "nothing was computed twice"
    assert f"SHUFFLED {SUM} COMPUTED 1000" in output
    ends = [c["end"] for each in (queries, keeper) for c in each.containers()]
    exited = [end.get("exit_code", 0) for end in ends if end["cause"] == "END_CAUSE_EXITED"]
    assert [code for code in exited if code] == [137], "but for the one killed, all ended in order"


def _at_work(
    cluster: Cluster, tables: Path, directory: Path, eventually: Eventually
) -> tuple[Queries, Application]:
    two = ("--conf", "spark.executor.instances=2")
    submitted = cluster.submit(
        *(*two, "--conf", "spark.sql.shuffle.partitions=4", str(APPS / "queries.py")),
        *(str(tables), str(REPOSITORY / "benchmarks" / "tpch"), str(SCALE)),
        str(directory / "finish"),
    )
    queries = Queries("queries", cluster, submitted)
    eventually(queries.has_both_nodes, 120.0, "the queries have an executor on each node")
    (directory / "compute").touch()
    submitted = cluster.submit(*two, str(APPS / "keeper.py"), str(directory))
    keeper = Application("keeper", cluster, submitted)
    eventually((directory / "ready").exists, 180.0, "the blocks are there")
    assert keeper.has_both_nodes()
    eventually(lambda: queries.completed() > 0, 240.0, "the first answers")
    return queries, keeper


def _without_the_master(daemons: Daemons, queries: Queries, eventually: Eventually) -> None:
    """An executor that died meanwhile is replaced soon after the next master serves."""
    known = set(queries.running())
    daemons.end("master", signal.SIGKILL)
    queries.go_on(eventually, "without a master")
    queries.executors().pop().kill()
    queries.go_on(eventually, "without a master, with one executor less")
    daemons.start_master()

    def replaced() -> dict[str, Any] | None:
        new = [c for key, c in queries.running().items() if key not in known]
        return new[0] if new else None

    new = eventually(replaced, 120.0, "the dead executor is replaced")
    served_s = float(daemons.cluster.ask("status")["started_at_s"])
    back_s = max(float(node["registered_at_s"]) for node in daemons.nodes().values())
    print(
        f"\nafter the master began to serve: both agents back {back_s - served_s:.2f} s, "
        f"granted {new['assigned_at_s'] - served_s:.2f} s, "
        f"running {new['started_at_s'] - served_s:.2f} s"
    )
    assert new["assigned_at_s"] - served_s < PATIENCE * GRANT_LIMIT_S
    assert len(queries.running()) == 2
    queries.go_on(eventually, "with another master")


def _under_its_containers(daemons: Daemons, name: str, apps: tuple[Application, ...]) -> None:
    """An agent is ended, and another starts: containers and their processes stay the same."""
    before = [(set(app.running()), app.executors()) for app in apps]
    assert [(len(ids), len(jvms)) for ids, jvms in before] == [(2, 2)] * len(apps)
    daemons.end(name, signal.SIGTERM)
    assert [app.executors() for app in apps] == [jvms for _, jvms in before], "without an agent"
    daemons.start_agent(name)
    assert [(set(app.running()), app.executors()) for app in apps] == before


def _emptied(daemons: Daemons, name: str, keeper: Application, eventually: Eventually) -> None:
    """A drain that moves containers; then its agent is restarted with nothing below it."""
    (there,) = [key for key, c in keeper.running().items() if c["node"] == name]

    def drain(*how: str) -> None:
        done = daemons.cluster.run("node", "drain", name, *how, "--master", daemons.cluster.address)
        assert done.returncode == 0, done.stderr

    def end() -> dict[str, Any] | None:
        (same,) = [c for c in keeper.containers() if c["container_id"] == there]
        ended: dict[str, Any] | None = same.get("end")
        return ended

    began_s = time.monotonic()
    drain("--move", f"{PATIENCE * HAND_OVER_S:.0f}")
    ended = eventually(end, HAND_OVER_S, "its executor has handed over and ended")
    assert time.monotonic() - began_s < PATIENCE * HAND_OVER_S
    assert ended["cause"] == "END_CAUSE_PREEMPTED"
    assert ended.get("exit_code", 0) == 0, "it ended by itself, in time"
    eventually(
        lambda: not daemons.nodes()[name]["resource_units"][0].get("running"),
        HAND_OVER_S,
        f"{name} is empty",
    )
    daemons.end(name, signal.SIGTERM)
    daemons.start_agent(name)
    drain("--undo")
