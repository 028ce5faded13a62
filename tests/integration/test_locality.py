"""Executors on the host that has the data, on a real Spark with dynamic allocation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.integration.conftest import APPS, Cluster

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

HOSTS = {"127.0.0.1": "node-1", "127.0.0.2": "far"}


@pytest.fixture(scope="module")
def two_hosts(
    tmp_path_factory: pytest.TempPathFactory, _plugins: Any, eventually: Callable[..., Any]
) -> Iterator[Cluster]:
    """A cluster whose second node has another address."""
    subject = Cluster(tmp_path_factory.mktemp("hosts"), _plugins)
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


def test_executors_start_where_the_data_of_waiting_tasks_is(two_hosts: Cluster) -> None:
    """Without a preference containers take turns; an executor of a node with room is not moved."""
    wanted = ["127.0.0.2", "127.0.0.1", "127.0.0.1", "127.0.0.2", "127.0.0.2"]
    app = two_hosts.submit(
        "--conf", "spark.dynamicAllocation.enabled=true",
        "--conf", "spark.dynamicAllocation.shuffleTracking.enabled=true",
        "--conf", "spark.dynamicAllocation.minExecutors=0",
        "--conf", "spark.dynamicAllocation.maxExecutors=1",
        "--conf", "spark.dynamicAllocation.executorIdleTimeout=1s",
        str(APPS / "near.py"), *wanted,
    )  # fmt: skip
    assert app.wait() == 0, app.output()
    assert app.output().count("COUNTED 2") == len(wanted)
    shown = two_hosts.application("near")
    assert shown is not None
    nodes = [x["node"] for x in sorted(shown["containers"], key=lambda x: int(x["executor_id"]))]
    assert nodes == [HOSTS[host] for host in wanted]
