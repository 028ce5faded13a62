"""Executors on the host that has the data, on a real Spark with dynamic allocation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import PATIENCE
from tests.integration.conftest import APPS, Cluster, Submitted
from tests.spark_tools import SparkTools

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

HOSTS = {"127.0.0.1": "node-1", "127.0.0.2": "far"}
WAIT_S = 8.0
START_LIMIT_S = 5.0
"""Start of an executor, from when it may be anywhere."""


@pytest.fixture(scope="module")
def two_hosts(
    tmp_path_factory: pytest.TempPathFactory, _tools: SparkTools, eventually: Callable[..., Any]
) -> Iterator[Cluster]:
    """A cluster whose second node has another address."""
    subject = Cluster(tmp_path_factory.mktemp("hosts"), _tools)
    subject.up("--nodes", "1", "--cores", "2", "--memory", "3g")
    far = subject.start(
        subject.directory / "far.log",
        *("agent", "--name", "far", "--host", "127.0.0.2"),
        *("--master", subject.address, "--cores", "2", "--memory-mib", "3072"),
        *("--work-dir", str(subject.directory / "far"), "--run-as", "off"),
    )
    try:
        eventually(lambda: len(subject.ask("nodes")["nodes"]) == 2, 30.0, "both are there")
        yield subject
    finally:
        far.terminate()
        far.wait(30)
        subject.down()


def submit_near(cluster: Cluster, *wanted: str) -> Submitted:
    """``near.py`` with one executor at a time, which leaves when it has nothing to do."""
    return cluster.submit(
        "--conf", "spark.dynamicAllocation.enabled=true",
        "--conf", "spark.dynamicAllocation.shuffleTracking.enabled=true",
        "--conf", "spark.dynamicAllocation.minExecutors=0",
        "--conf", "spark.dynamicAllocation.maxExecutors=1",
        "--conf", "spark.dynamicAllocation.executorIdleTimeout=1s",
        "--conf", f"spark.hrm.locality.wait={WAIT_S:.0f}s",
        str(APPS / "near.py"), *wanted,
    )  # fmt: skip


def test_executors_start_where_the_data_of_waiting_tasks_is(two_hosts: Cluster) -> None:
    """Without a preference containers alternate; an executor of a node with capacity stays."""
    wanted = ["127.0.0.2", "127.0.0.1", "127.0.0.1", "127.0.0.2", "127.0.0.2"]
    app = submit_near(two_hosts, *wanted)
    assert app.wait() == 0, app.output()
    assert app.output().count("COUNTED 2") == len(wanted)
    shown = two_hosts.application("near")
    assert shown is not None
    nodes = [x["node"] for x in sorted(shown["containers"], key=lambda x: int(x["executor_id"]))]
    assert nodes == [HOSTS[host] for host in wanted]


def test_a_full_host_is_waited_for_as_long_as_configured(
    two_hosts: Cluster, go: Path, eventually: Callable[..., Any]
) -> None:
    holder = two_hosts.submit(
        *("--conf", "spark.executor.instances=1", "--conf", "spark.executor.cores=2"),
        *(str(APPS / "shuffled.py"), str(go)),
    )
    eventually(lambda: "COUNT 100000" in holder.output(), 120.0, "a host is full")
    holding = two_hosts.application("shuffled")
    assert holding is not None
    (held,) = holding["containers"]
    known = {app["application_id"] for app in two_hosts.ask("apps", "--all")["applications"]}

    app = submit_near(two_hosts, next(host for host, node in HOSTS.items() if node == held["node"]))

    def waits() -> bool:
        new = [x["application_id"] for x in two_hosts.ask("apps")["applications"]]
        summaries = [two_hosts.ask("app", "why", x)["summary"] for x in new if x not in known]
        near = f"could start at once on {held['node']}, near its data (spark.hrm.locality.wait)"
        return any(near in summary for summary in summaries)

    eventually(waits, 120.0, "its user reads what the executor waits for")
    assert app.wait() == 0, app.output()
    assert app.output().count("COUNTED 2") == 1
    shown = two_hosts.application("near")
    assert shown is not None
    (container,) = shown["containers"]
    assert {held["node"], container["node"]} == set(HOSTS.values())
    waited_s = container["started_at_s"] - container["requested_at_s"]
    assert WAIT_S <= waited_s <= WAIT_S + PATIENCE * START_LIMIT_S
    still = two_hosts.application("shuffled")
    assert still is not None
    assert still["containers_running"] == 1, "the host was full all the time"
    go.touch()
    assert holder.wait() == 0, holder.output()
