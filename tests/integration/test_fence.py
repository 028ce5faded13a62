"""A whole node freezes, and its driver with it, until another has replaced it; then it wakes.

To the master the node is lost. On the node nothing runs: neither the agent, nor the driver's
runner, nor the driver. The runner cannot kill a driver that has outlived its lease before it runs
again itself; but the driver does not run either, and once they wake, the runner is first.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.conftest import PATIENCE
from tests.integration.conftest import APPS, Cluster
from tests.integration.test_submissions import driver_log, drivers_of, submission, submit
from tests.spark_tools import SparkTools

pytestmark = [pytest.mark.spark, pytest.mark.timeout(500)]

NODE_TIMEOUT_S = 8.0 * PATIENCE
LEASE_S = 10.0 * PATIENCE


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory, _tools: SparkTools) -> Iterator[Cluster]:
    subject = Cluster(tmp_path_factory.mktemp("cluster"), _tools)
    subject.environment["HRM_MASTER_NODE_TIMEOUT_S"] = str(NODE_TIMEOUT_S)
    subject.environment["HRM_MASTER_DRIVER_LEASE_S"] = str(LEASE_S)
    subject.up("--nodes", "2", "--cores", "3", "--memory", "4g")
    yield subject
    subject.down()


@pytest.fixture
def frozen(cluster: Cluster) -> Iterator[Callable[[str], list[psutil.Process]]]:
    """``frozen(node)``: its agent and all below it, stopped; they wake at the end at the latest."""
    stopped: list[psutil.Process] = []

    def freeze(node: str) -> list[psutil.Process]:
        (pid,) = [p["pid"] for p in cluster.cluster["processes"] if p["name"] == node]
        agent = psutil.Process(pid)
        # Until there is no process that was created meanwhile.
        while new := [p for p in (agent, *agent.children(recursive=True)) if p not in stopped]:
            for process in new:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.suspend()
            stopped.extend(new)
        return stopped

    yield freeze
    wake(stopped)


def wake(processes: list[psutil.Process]) -> None:
    for process in processes:
        if process.is_running():
            process.resume()


def noted(batches: Path) -> list[tuple[int, int]]:
    """Driver's number and batch's, in the order in which batches ended."""
    lines = batches.read_text().splitlines() if batches.exists() else []
    return [(int(attempt), int(batch)) for attempt, batch in map(str.split, lines)]


def written(output: Path, last: int) -> list[int]:
    """What the batches up to ``last`` have written; the source numbers its rows from 0."""
    files = [f for batch in range(last + 1) for f in (output / str(batch)).glob("part-*.json")]
    return sorted(json.loads(line)["value"] for f in files for line in f.read_text().splitlines())


def test_a_frozen_driver_is_replaced_and_does_no_harm_when_it_wakes(
    cluster: Cluster,
    tmp_path: Path,
    frozen: Callable[[str], list[psutil.Process]],
    eventually: Callable[..., Any],
) -> None:
    batches, checkpoint, output = (tmp_path / x for x in ("batches", "checkpoint", "output"))
    app = submit(
        cluster,
        *("counting", "--supervise", str(APPS / "counting_stream.py")),
        *(str(checkpoint), str(batches), str(output)),
    )
    eventually(lambda: len(noted(batches)) >= 3, 180.0, "the query makes progress")
    found = submission(cluster, "counting")
    assert found is not None
    submission_id, node = found["submission_id"], found["node"]
    (first,) = drivers_of(cluster, submission_id)

    processes = frozen(node)
    frozen_at_s = time.time()
    assert first in processes
    by_first = noted(batches)
    eventually(lambda: len(noted(batches)) >= len(by_first) + 2, 240.0, "another driver goes on")
    assert first.status() == psutil.STATUS_STOPPED, "the first is still there"
    (second,) = set(drivers_of(cluster, submission_id)) - {first}
    assert second.create_time() - frozen_at_s > LEASE_S, "not before the first's lease was over"
    found = submission(cluster, "counting")
    assert found is not None
    assert (found["attempt"], found["node"] != node) == (2, True)

    known = len(noted(batches))
    wake(processes)
    eventually(lambda: not first.is_running(), 30.0, "the first driver ends")
    eventually(lambda: len(noted(batches)) >= known + 3, 120.0, "the second goes on")
    assert drivers_of(cluster, submission_id) == [second]
    printed = driver_log(cluster, "counting", "stderr", "--attempt", "1")
    assert "the driver is killed: no master has renewed the driver's lease in time" in printed
    record = cluster.state / "nodes" / node / "containers" / f"{submission_id}-x1" / "exit.json"
    eventually(record.exists, 30.0, "its container ends")
    ended = json.loads(record.read_text())
    assert (ended["exit_code"], ended["signal"]) == (137, 0), (
        "by its runner, which said so itself; the agent, told later, would have begun with SIGTERM"
    )

    assert cluster.run(
        "submission", "kill", submission_id, "--master", cluster.address
    ).returncode == 0  # fmt: skip
    assert app.wait(60) != 0
    lines = noted(batches)
    assert [x for x in lines if x[0] == 1] == by_first == lines[: len(by_first)], (
        "the first ended no batch after it had been frozen"
    )
    numbers = [batch for attempt, batch in lines if attempt == 2]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers))), "each batch once"
    assert numbers[0] in (by_first[-1][1], by_first[-1][1] + 1), "from where the checkpoint was"
    rows = written(output, numbers[-1])
    assert rows == list(range(len(rows))), "each row is there once"
    eventually(lambda: cluster.free_vcores() == 6, 60.0, "the woken node is back, and empty")
