"""A batch application and a stream on one node that has no capacity for both."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import APPS, Cluster, executors_of
from tests.spark_tools import SparkTools

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

SUM_OF_SQUARES = 332833500
SUM = 499500


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory, _tools: SparkTools) -> Iterator[Cluster]:
    subject = Cluster(tmp_path_factory.mktemp("narrow"), _tools)
    subject.up("--nodes", "1", "--cores", "3", "--memory", "4g")
    yield subject
    subject.down()


def test_a_stream_takes_the_capacity_of_batch_which_loses_no_data(
    narrow: Cluster, tmp_path: Path, eventually: Callable[..., Any]
) -> None:
    batch = narrow.submit(
        "--conf", "spark.executor.instances=4", "--conf", "spark.hrm.class=batch",
        str(APPS / "keeper.py"), str(tmp_path),
    )  # fmt: skip
    app = eventually(lambda: full(narrow, "keeper", 3, 1), 90.0, "three run, the fourth waits")
    _without_the_master(narrow, app, eventually)
    eventually(lambda: full(narrow, "keeper", 3, 1), 60.0, "a replacement waits at the node")

    (tmp_path / "compute").touch()
    eventually((tmp_path / "ready").exists, 60.0, "the data is there")
    stream = narrow.submit(
        "--conf", "spark.executor.instances=1", "--conf", "spark.hrm.class=stream",
        str(APPS / "stream.py"), "processing-time", str(tmp_path / "stop"),
    )  # fmt: skip
    eventually(lambda: full(narrow, "stream-processing-time", 1, 0), 60.0, "the stream runs")
    app = narrow.application("keeper")
    assert app is not None
    assert app["containers_running"] == 2
    preempted = [c for c in app["containers"] if cause_of(c) == "END_CAUSE_PREEMPTED"]
    assert [c["end"].get("exit_code", 0) for c in preempted] == [0], "it ended by itself, in time"
    assert "preempted for the stream container" in preempted[0]["end"]["message"]
    latest = max(c["started_at_s"] for c in app["containers"] if c.get("started_at_s"))
    assert preempted[0]["started_at_s"] == latest, "who started last had done the least"

    (tmp_path / "finish").touch()
    assert batch.wait() == 0, batch.output()
    assert f"CACHED {SUM_OF_SQUARES} COMPUTED 1000" in batch.output()
    assert f"SHUFFLED {SUM} COMPUTED 1000" in batch.output()
    (tmp_path / "stop").touch()
    (tmp_path / "stop.end").touch()
    assert stream.wait() == 0, stream.output()


def full(cluster: Cluster, name: str, running: int, waiting: int) -> dict[str, Any] | None:
    """The application, if it has that many containers running and waiting at nodes."""
    app = cluster.application(name)
    if app is None:
        return None
    found = (app["containers_running"], app.get("containers_waiting", 0))
    return app if found == (running, waiting) else None


def cause_of(container: dict[str, Any]) -> str:
    return str(container.get("end", {}).get("cause", ""))


def _without_the_master(
    cluster: Cluster, app: dict[str, Any], eventually: Callable[..., Any]
) -> None:
    """While the master is stopped an executor dies, and the one that waits starts."""
    application_id = app["application_id"]
    executors = eventually(lambda: executors_of(application_id), 30.0, "executors are processes")
    victim = executors[0]
    number = re.search(r"--executor-id (\d+)", " ".join(victim.cmdline()))
    assert number is not None
    (master,) = [p["pid"] for p in cluster.cluster["processes"] if p["name"] == "master"]
    log = cluster.state / "logs" / "node-1.log"
    os.kill(master, signal.SIGSTOP)
    try:
        victim.kill()
        eventually(
            lambda: _in_order(
                log.read_text(), f"{application_id}-x{number[1]}", f"{application_id}-x4"
            ),
            10.0,
            "the node starts the fourth, right after the end",
        )
    finally:
        os.kill(master, signal.SIGCONT)


def _in_order(log: str, ended: str, started: str) -> bool:
    """Does the agent's log have this end, and later this start?"""
    lines = log.splitlines()
    ends = [i for i, line in enumerate(lines) if "ended" in line and ended in line]
    starts = [i for i, line in enumerate(lines) if "started" in line and started in line]
    return bool(ends and starts and ends[0] < starts[-1])
