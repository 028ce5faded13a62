"""Labels, versions and hosts that Spark excludes decide where executors of a real Spark go."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hrm.spark.launch import find_spark
from tests.integration.conftest import APPS, Cluster, Submitted
from tests.spark_tools import SparkTools

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

FAR = "127.0.0.2"
OTHER_SPARK = os.environ.get("HRM_TEST_OTHER_SPARK", "")
"""The directory of a Spark of another version than that of this environment."""


def agent(cluster: Cluster, name: str, *more: str) -> subprocess.Popen[bytes]:
    return cluster.start(
        cluster.directory / f"{name}.log",
        *("agent", "--name", name, "--master", cluster.address, "--run-as", "off"),
        *("--cores", "2", "--memory-mib", "3072", "--work-dir", str(cluster.directory / name)),
        *more,
    )


@pytest.fixture(scope="module")
def two_hosts(
    tmp_path_factory: pytest.TempPathFactory, _tools: SparkTools, eventually: Callable[..., Any]
) -> Iterator[Cluster]:
    """Two nodes with labels, each on a host of its own."""
    subject = Cluster(tmp_path_factory.mktemp("labels"), _tools)
    subject.environment["HRM_AGENT_LABELS"] = "zone=a"
    subject.environment["HRM_MASTER_DRIVER_SHARE"] = "1"
    subject.up("--nodes", "1", "--cores", "2", "--memory", "3g")
    more = ("--spark-homes", OTHER_SPARK) if OTHER_SPARK else ()
    far = agent(subject, "far", "--host", FAR, "--labels", "zone=b,ssd", *more)
    try:
        eventually(lambda: len(subject.ask("nodes")["nodes"]) == 2, 30.0, "both are there")
        yield subject
    finally:
        far.terminate()
        far.wait(30)
        subject.down()


def places(cluster: Cluster, name: str) -> list[str]:
    shown = cluster.application(name)
    assert shown is not None
    return [container["node"] for container in shown["containers"]]


def total(cluster: Cluster, *conf: str) -> Submitted:
    words = [word for each in conf for word in ("--conf", each)]
    return cluster.submit(*words, str(APPS / "total.py"), "4", "0.2")


def test_executors_go_to_nodes_with_the_labels(two_hosts: Cluster) -> None:
    labels = "spark.hrm.node.label=ssd, zone=b"
    app = total(two_hosts, labels, "spark.executor.instances=2")
    assert app.wait() == 0, app.output()
    assert places(two_hosts, "total") == ["far", "far"]
    shown = two_hosts.run("node", "show", "far", "--master", two_hosts.address)
    assert "ssd, zone=b" in shown.stdout, shown
    assert f"Spark {find_spark().version}, Scala" in shown.stdout, shown


@pytest.mark.parametrize(
    ("conf", "why"),
    [
        ("spark.hrm.node.label=zone=c", "no node has the label zone=c and Spark"),
        ("spark.hrm.node.java=99", "Java 99: "),
        ("spark.hrm.node.label=a b", "spark.hrm.node.label is 'a b'"),
        ("spark.hrm.node.python=3", "spark.hrm.node.python is '3'; it must be two numbers"),
    ],
)
def test_what_no_node_has_is_refused_with_what_there_is(
    two_hosts: Cluster, conf: str, why: str
) -> None:
    app = total(two_hosts, conf)
    assert app.wait() != 0
    assert why in app.output(), app.output()[-4000:]


def test_a_driver_on_a_node_has_labels_of_its_own(two_hosts: Cluster) -> None:
    app = two_hosts.submit(
        *("--deploy-mode", "cluster", "--conf", "spark.hrm.driver.node.label=zone=b"),
        *("--conf", "spark.hrm.node.label=zone=a", "--conf", "spark.executor.instances=1"),
        *("--driver-memory", "512m", str(APPS / "total.py"), "2", "0"),
    )
    assert app.wait() == 0, app.output()
    submission = two_hosts.ask("submissions", "--all")["submissions"][-1]
    assert submission["node"] == "far"
    assert set(places(two_hosts, "total")) == {"node-1"}


def test_a_host_that_spark_excludes_gets_no_executor_until_it_is_admitted(
    two_hosts: Cluster, go: Path, eventually: Callable[..., Any]
) -> None:
    """Its executor there is killed by Spark; nothing of that counts against the application."""
    app = two_hosts.submit(
        *("--conf", "spark.executor.instances=2", "--conf", "spark.executor.cores=2"),
        *("--conf", "spark.excludeOnFailure.enabled=true"),
        *("--conf", "spark.excludeOnFailure.application.maxFailedTasksPerExecutor=1"),
        *("--conf", "spark.excludeOnFailure.application.maxFailedExecutorsPerNode=1"),
        *("--conf", "spark.excludeOnFailure.killExcludedExecutors=true"),
        *("--conf", "spark.excludeOnFailure.timeout=20s"),
        *("--conf", "spark.scheduler.minRegisteredResourcesRatio=1.0"),
        *("--conf", "spark.hrm.executor.maxFailures=1"),
        *(str(APPS / "fails_there.py"), FAR, str(go)),
    )
    eventually(lambda: "COUNT 100" in app.output(), 120.0, "the first job is done")
    shown = two_hosts.application("fails-there")
    assert shown is not None

    def excluded() -> bool:
        why = two_hosts.ask("app", "why", shown["application_id"])
        return f"far is on {FAR}, which Spark excludes" in "\n".join(why["details"])

    def of_far() -> list[str]:
        found = two_hosts.application("fails-there")
        assert found is not None
        return [x["state"] for x in found["containers"] if x["node"] == "far"]

    eventually(excluded, 15.0, "the master has heard of it")
    gone = (["CONTAINER_STATE_ENDED"], ["CONTAINER_STATE_STOPPING"])
    eventually(lambda: of_far() in gone, 15.0, "Spark has its executor there ended")
    eventually(lambda: len(of_far()) == 2, 60.0, "the host is admitted again")
    assert not excluded()
    go.touch()
    assert app.wait() == 0, app.output()[-4000:]


@pytest.mark.skipif(not OTHER_SPARK, reason="HRM_TEST_OTHER_SPARK names no other Spark")
def test_an_agent_runs_executors_of_two_sparks_side_by_side(two_hosts: Cluster) -> None:
    """The first node has one Spark only, so the other's executors are all at the second."""
    homes = {x.version: x.home for x in (find_spark(), find_spark(Path(OTHER_SPARK)))}
    assert len(homes) == 2
    running = [
        two_hosts.submit(
            *("--conf", "spark.hrm.node.label=ssd", "--conf", "spark.executor.instances=1"),
            *(str(APPS / "total.py"), "4", "2"),
            program=str(home / "bin" / "spark-submit"),
            environment={"SPARK_HOME": str(home)},
        )
        for home in homes.values()
    ]
    for app in running:
        assert app.wait() == 0, app.output()[-4000:]
        assert "TOTAL 332833500" in app.output()
    latest = [x for x in two_hosts.ask("apps", "--all")["applications"] if x["name"] == "total"]
    assert {x["spark_version"] for x in latest[-2:]} == set(homes)
    for app in latest[-2:]:
        shown = two_hosts.ask("app", "show", app["application_id"])
        assert [(x["node"], x["end"]["cause"]) for x in shown["containers"]] == [
            ("far", "END_CAUSE_RELEASED")
        ]


@pytest.mark.skipif(not OTHER_SPARK, reason="HRM_TEST_OTHER_SPARK names no other Spark")
def test_a_driver_on_a_node_runs_the_spark_that_it_names(two_hosts: Cluster) -> None:
    version = find_spark(Path(OTHER_SPARK)).version
    app = two_hosts.submit(
        *("--deploy-mode", "cluster", "--conf", f"spark.hrm.submit.spark.version={version}"),
        *("--conf", "spark.executor.instances=1", "--driver-memory", "512m"),
        *(str(APPS / "total.py"), "2", "0"),
    )
    assert app.wait() == 0, app.output()
    latest = [x for x in two_hosts.ask("apps", "--all")["applications"] if x["name"] == "total"]
    assert latest[-1]["spark_version"] == version
    assert set(places(two_hosts, "total")) == {"far"}
