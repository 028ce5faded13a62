"""What the cluster does to an application is not the application's fault.

A job goes on, and is right, although its first failed task would end it
(``spark.task.maxFailures`` is 1): while a node with everything on it disappears and comes back, or
is back before anybody missed it, the master is away as an executor dies, and executors are
preempted. What such a node's shuffle service had kept is computed again without a stage having to
find out that it is gone.

The job is four queries of TPC-H, and with the marker ``extra`` all 22, each of which must answer
once more after the last fault. A task of a slow job beside them, in the same application, runs on
each executor that is killed; Spark's event log tells which tasks were lost, and with what they were
charged. ``-s`` shows the figures.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import signal
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.conftest import PATIENCE
from tests.integration.conftest import APPS, REPOSITORY, Cluster
from tests.integration.test_parts_fail import (
    SCALE,
    Application,
    Daemons,
    Queries,
    lives,
    tables,
)
from tests.spark_tools import SparkTools

__all__ = ["tables"]

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

NODE_TIMEOUT_S = 8.0 * PATIENCE
MASTER_AWAY_S = 20.0
QUERIES_IN_ALL = 22
OTHER_HOST = "127.0.0.2"
SUM = 499500
FRAGILE = ("--conf", "spark.task.maxFailures=1")
JUST_BEGUN_S = 1.0
KILLED_AT_WORK = 3
PREEMPTION_GRACE_S = 0.5
"""Less than a slow task takes: what preempted executors have in flight is lost."""
"""Two power cuts, and an executor without a master."""
SLOW_ANSWERS = re.compile(r"^SLOW (\d+)$", re.MULTILINE)

Eventually = Callable[..., Any]
Started = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory, _tools: SparkTools) -> Iterator[Cluster]:
    """One node; its daemons do not stay as started."""
    subject = Cluster(tmp_path_factory.mktemp("cluster"), _tools)
    subject.environment["HRM_MASTER_NODE_TIMEOUT_S"] = str(NODE_TIMEOUT_S)
    yield subject
    subject.down()


class TwoHosts(Daemons):
    """``node-1``, of `hrm up`, and ``far``, which has an address of its own."""

    def start_far(self) -> None:
        self.run_agent("far", OTHER_HOST, cores=2)

    def run_agent(self, name: str, host: str, *, cores: int) -> None:
        state = self.cluster.state
        known_s = self.nodes().get(name, {}).get("registered_at_s")
        self._pids[name] = self._started(
            *("agent", "--name", name, "--host", host, "--master", self._address),
            *("--run-as", "off", "--cores", str(cores), "--memory-mib", str(1536 * cores)),
            *("--work-dir", str(state / "nodes" / name), "--token-file", str(state / "token")),
        ).pid
        self._eventually(
            lambda: self.nodes().get(name, {}).get("registered_at_s") not in (None, known_s),
            60.0,
            f"{name} is there",
        )

    def cut_power(self, name: str) -> None:
        """Nothing on the node says goodbye."""
        agent = psutil.Process(self._pids[name])
        processes = [agent, *agent.children(recursive=True)]
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._eventually(lambda: not any(map(lives, processes)), 30.0, f"{name} is off")


class BusyQueries(Queries):
    """Queries with a slow job beside them, whose tasks are on all executors in turn."""

    begun: Path
    events: Path

    def on(self, node: str) -> set[str]:
        return {key for key, c in self.running().items() if c["node"] == node}

    def at_work(self, there: set[str], eventually: Eventually) -> str:
        """One of these containers, where a slow task has just begun that takes thrice as long."""

        def just_begun() -> str | None:
            now_s = time.time()
            for key in there:
                mark = self.begun / key
                if mark.exists() and now_s - mark.stat().st_mtime < JUST_BEGUN_S:
                    return key
            return None

        found: str = eventually(just_begun, 60.0, "a slow task has just begun")
        return found

    def all_at_work(self) -> bool:
        """Has each executor begun a slow task? There are always more of them then."""
        return all((self.begun / key).exists() for key in self.running())

    def kill_at_work(self, there: set[str], eventually: Eventually) -> None:
        killed = self.at_work(there, eventually)
        (process,) = (each for each in self.executors() if Path(each.cwd()).name == killed)
        process.kill()

    def lost_tasks(self) -> list[tuple[str, bool]]:
        """Of each task that was lost with its executor: which executor, and was it charged?"""
        reasons = [
            json.loads(line)["Task End Reason"]
            for path in self.events.rglob("*")
            if path.is_file() and not path.name.startswith(("appstatus", "."))
            for line in path.read_text().splitlines()
            if '"Event":"SparkListenerTaskEnd"' in line
        ]
        return [
            (r["Executor ID"], r["Exit Caused By App"])
            for r in reasons
            if r["Reason"] == "ExecutorLostFailure"
        ]


@pytest.mark.parametrize("which", ["four", pytest.param("all", marks=pytest.mark.extra)])
def test_no_task_is_charged_with_what_the_cluster_does(
    cluster: Cluster,
    tables: Path,
    tmp_path: Path,
    started: Started,
    eventually: Eventually,
    which: str,
) -> None:
    cluster.environment["HRM_AGENT_PREEMPTION_GRACE_S"] = str(PREEMPTION_GRACE_S)
    cluster.up("--nodes", "1", "--cores", "2", "--memory", "3g")
    daemons = TwoHosts(cluster, started, eventually)
    daemons.start_far()
    queries = _at_work(cluster, tables, tmp_path, eventually, which)
    began_s, before = time.monotonic(), queries.completed()

    _power_cut(daemons, queries, eventually)
    _rebooted_at_once(daemons, queries, eventually)
    _without_the_master(daemons, queries, eventually)
    _preempted(cluster, queries, tmp_path, eventually)

    if which == "all":
        last = queries.completed() + QUERIES_IN_ALL
        eventually(lambda: queries.completed() >= last, 400.0, "all queries have answered again")
    (tmp_path / "finish").touch()
    assert queries.submitted.wait(240.0) == 0, queries.submitted.output()[-4000:]
    shown = queries.shown()
    assert shown is not None
    assert shown["state"] == "APPLICATION_STATE_SUCCEEDED"
    causes = [c["end"]["cause"].removeprefix("END_CAUSE_") for c in shown["containers"]]
    preempted = {c["executor_id"] for c in shown["containers"] if "PREEMPTED" in c["end"]["cause"]}
    assert preempted
    slow = SLOW_ANSWERS.search(queries.submitted.output())
    assert slow is not None
    tasks = queries.lost_tasks()
    charged = [each for _, each in tasks]
    assert len(charged) >= KILLED_AT_WORK, "each of the executors that were killed had a task"
    assert preempted & {executor for executor, _ in tasks}, "a task was lost to the preemption"
    assert not any(charged)
    executors = sum(line.startswith("Lost executor") for line in queries.lost())
    print(
        f"\n{queries.completed() - before} right answers in {time.monotonic() - began_s:.0f} s, "
        f"{slow[1]} of the slow job; {executors} executors and {len(charged)} tasks lost, "
        f"{sum(charged)} charged; containers' ends: {dict(Counter(causes))}"
    )


def _power_cut(daemons: TwoHosts, queries: BusyQueries, eventually: Eventually) -> None:
    """The node is missed, and comes back after that."""
    queries.at_work(queries.on("far"), eventually)
    daemons.cut_power("far")
    cut_s = time.monotonic()
    eventually(lambda: daemons.nodes()["far"]["state"] == "NODE_STATE_LOST", 60.0, "it is lost")
    eventually(lambda: any("far is lost" in line for line in queries.lost()), 30.0, "Spark knows")
    print(f"\nSpark knew of the lost node after {time.monotonic() - cut_s:.1f} s", end="")
    ends = [c["end"] for c in queries.containers() if c["node"] == "far"]
    known = [(end["cause"], end.get("lost_host")) for end in ends]
    assert known == [("END_CAUSE_NODE_LOST", OTHER_HOST)] * 2
    queries.go_on(eventually, "on what is left")
    daemons.start_far()
    eventually(lambda: len(queries.running()) == 4, 60.0, "its executors are replaced there")
    queries.go_on(eventually, "on the node that is back")


def _rebooted_at_once(daemons: TwoHosts, queries: BusyQueries, eventually: Eventually) -> None:
    """The node is back before its time is up, without its executors."""
    before = set(queries.running())
    queries.at_work(queries.on("far"), eventually)
    daemons.cut_power("far")
    daemons.start_far()

    def replaced() -> bool:
        return len(queries.running()) == 4 and len(before & set(queries.running())) == 2

    eventually(replaced, 60.0, "two others run in place of those that were there")
    queries.go_on(eventually, "after a quick restart of the node")


def _at_work(
    cluster: Cluster, tables: Path, directory: Path, eventually: Eventually, which: str
) -> BusyQueries:
    """Four executors, on all cores."""
    begun, events = directory / "begun", directory / "events"
    begun.mkdir()
    events.mkdir()
    submitted = cluster.submit(
        *(*FRAGILE, "--conf", "spark.executor.instances=4", "--conf", "spark.hrm.class=batch"),
        *("--conf", "spark.scheduler.mode=FAIR", "--conf", "spark.eventLog.enabled=true"),
        *("--conf", f"spark.eventLog.dir={events.as_uri()}"),
        *("--conf", "spark.eventLog.compress=false"),
        *("--conf", "spark.sql.shuffle.partitions=8", str(APPS / "queries.py")),
        *(str(tables), str(REPOSITORY / "benchmarks" / "tpch"), str(SCALE)),
        *(str(directory / "finish"), which, str(begun)),
    )
    queries = BusyQueries("queries", cluster, submitted)
    queries.begun, queries.events = begun, events
    eventually(lambda: len(queries.running()) == 4, 120.0, "four executors run")
    eventually(lambda: queries.completed() > 0, 240.0, "the first answers")
    return queries


def _without_the_master(daemons: TwoHosts, queries: BusyQueries, eventually: Eventually) -> None:
    """It is away, and an executor dies on a node whose agent lives: its tasks do not wait for the
    master, which does not come back before they have run again."""
    known = set(queries.running())
    daemons.end("master", signal.SIGKILL)
    back_s = time.monotonic() + MASTER_AWAY_S
    queries.go_on(eventually, "without a master")
    queries.kill_at_work(known, eventually)
    queries.go_on(eventually, "without a master, with one executor less")
    while time.monotonic() < back_s:
        queries.go_on(eventually, "without a master for long")
    daemons.start_master()
    eventually(lambda: len(queries.running()) == 4, 60.0, "it is replaced")
    queries.go_on(eventually, "with another master")


def _preempted(
    cluster: Cluster, queries: BusyQueries, directory: Path, eventually: Eventually
) -> None:
    eventually(queries.all_at_work, 120.0, "each executor has had a slow task")
    stream = cluster.submit(
        "--conf", "spark.executor.instances=2", "--conf", "spark.hrm.class=stream",
        str(APPS / "stream.py"), "processing-time", str(directory / "stop"),
    )  # fmt: skip

    def runs() -> bool:
        app = cluster.application("stream-processing-time")
        return app is not None and app["containers_running"] == 2

    eventually(runs, 90.0, "the stream has taken two places")
    assert len(queries.running()) == 2
    queries.go_on(eventually, "on the two that are left")
    for name in ("stop", "stop.end"):
        (directory / name).touch()
    assert stream.wait() == 0, stream.output()


def test_what_a_lost_nodes_shuffle_service_kept_is_computed_again_before_it_is_missed(
    cluster: Cluster, tmp_path: Path, started: Started, eventually: Eventually
) -> None:
    """A stage that asked the service first would fail once, which ends this job."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        port = probe.getsockname()[1]
    cluster.environment |= {
        "HRM_AGENT_SHUFFLE_SERVICE": "true",
        "HRM_AGENT_SHUFFLE_SERVICE_PORT": str(port),
        "HRM_AGENT_SHUFFLE_SERVICE_MEMORY_MIB": "128",
    }
    cluster.up("--nodes", "1", "--cores", "2", "--memory", "3g")
    up = "the shuffle service is up"
    eventually(lambda: up in (cluster.state / "logs" / "node-1.log").read_text(), 200.0, "it is up")
    daemons = TwoHosts(cluster, started, eventually)
    app = cluster.submit(
        *("--conf", "spark.executor.instances=1"),
        *("--conf", "spark.stage.maxConsecutiveAttempts=1"),
        *("--conf", "spark.shuffle.service.enabled=true"),
        *("--conf", f"spark.shuffle.service.port={port}"),
        *(str(APPS / "keeper.py"), str(tmp_path)),
    )
    (tmp_path / "compute").touch()
    eventually((tmp_path / "ready").exists, 200.0, "the shuffle is written")
    keeper = Application("keeper", cluster, app)
    (first,) = keeper.running()
    keeper.executors().pop().kill()  # only the service has its files now
    eventually(lambda: set(keeper.running()) - {first}, 60.0, "another has its place")
    daemons.cut_power("node-1")
    eventually(lambda: "node-1 is lost" in app.output(), 60.0, "Spark knows")
    shutil.rmtree(cluster.state / "nodes" / "node-1" / "shuffle")
    daemons.run_agent("node-1", "127.0.0.1", cores=2)
    (tmp_path / "finish").touch()
    assert app.wait(300.0) == 0, app.output()[-4000:]
    assert f"SHUFFLED {SUM} COMPUTED 2000" in app.output()
    assert "FetchFailed" not in app.output()
