"""Executors that fail as soon as they start: where the node is at fault, and where it is not."""

from __future__ import annotations

import itertools
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hrm.core.master.exclusion import CONFIRM_S
from tests.integration.conftest import APPS, Cluster
from tests.spark_tools import SparkTools

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

HERE = f"{sys.version_info.major}.{sys.version_info.minor}"
OTHERS = [f"3.{minor}" for minor in range(10, 15) if f"3.{minor}" != HERE]
BROKEN = "libjvm.so: cannot open shared object file"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, _tools: SparkTools) -> Iterator[Cluster]:
    """Two good nodes. One application is enough here to exclude a node for all of them."""
    subject = Cluster(tmp_path_factory.mktemp("cluster"), _tools)
    subject.environment["HRM_MASTER_NODE_FAILING_APPLICATIONS"] = "1"
    subject.environment["HRM_MASTER_NODE_EXCLUSION_S"] = "900"
    subject.up("--nodes", "2", "--cores", "1", "--memory", "1g")
    yield subject
    subject.down()


@pytest.fixture(scope="module")
def other_python() -> str:
    """A Python of another minor version: on the PATH, or pyenv's."""
    on_path = (shutil.which(f"python{version}") for version in OTHERS)
    versions = Path("~/.pyenv/versions").expanduser()
    of_pyenv = (str(p) for v in OTHERS for p in sorted(versions.glob(f"{v}.*/bin/python{v}")))
    for candidate in itertools.chain(filter(None, on_path), of_pyenv):
        done = subprocess.run([candidate, "-c", ""], check=False, timeout=60, capture_output=True)
        if done.returncode == 0:
            return candidate
    pytest.skip(f"there is no Python here but {HERE}; wanted one of {', '.join(OTHERS)}")


def of_nodes(cluster: Cluster) -> dict[str, dict[str, Any]]:
    return {node["name"]: node for node in cluster.ask("nodes")["nodes"]}


def no_node_is_excluded(
    cluster: Cluster, shown: dict[str, Any], eventually: Callable[..., Any]
) -> None:
    confirmed_at_s = shown["ended_at_s"] + 2 * CONFIRM_S
    eventually(lambda: time.time() > confirmed_at_s, 60.0, "nodes would be excluded by now")
    nodes = of_nodes(cluster).values()
    assert [(x["exclusion"], x["excluded_applications"]) for x in nodes] == [("", 0), ("", 0)]


def test_nodes_whose_python_is_not_the_drivers_get_nothing_and_are_not_blamed(
    cluster: Cluster, eventually: Callable[..., Any]
) -> None:
    """As reported by a driver on a node that runs the Python of its node."""
    app = cluster.submit(
        *("--conf", "spark.executor.instances=1", "--conf", "spark.hrm.executor.maxFailures=3"),
        *("--conf", "spark.executorEnv.HRM_DRIVER_PYTHON=3.7", str(APPS / "total.py"), "2", "0"),
    )
    assert app.wait() != 0
    shown = cluster.application("total")
    assert shown is not None
    assert shown["state"] == "APPLICATION_STATE_FAILED"
    assert re.search(r"Python 3\.7: node-\d has Spark", shown["message"]), shown["message"]
    for node in ("node-1", "node-2"):  # in the order in which they registered
        has = rf"{node} has Spark [^;]*Python {re.escape(HERE)}"
        assert re.search(has, shown["message"]), shown["message"]
    assert shown["message"] in app.output(), app.output()[-4000:]
    assert not shown["containers"], "none was begun in vain"
    assert shown["message"] in cluster.ask("app", "why", shown["application_id"])["summary"]
    no_node_is_excluded(cluster, shown, eventually)


def test_workers_whose_python_is_not_the_drivers_end_the_application(
    cluster: Cluster, other_python: str, eventually: Callable[..., Any]
) -> None:
    """If a Python is named for the nodes, it is used there, and Spark itself compares."""
    app = cluster.submit(
        *("--conf", "spark.executor.instances=1", "--conf", "spark.task.maxFailures=2"),
        *("--conf", f"spark.pyspark.python={other_python}"),
        *("--conf", f"spark.pyspark.driver.python={sys.executable}"),
        *(str(APPS / "total.py"), "2", "0"),
    )
    assert app.wait() != 0
    shown = cluster.application("total")
    assert shown is not None
    assert shown["state"] == "APPLICATION_STATE_FAILED"
    mismatch_line = next(x for x in app.output().splitlines() if "PYTHON_VERSION_MISMATCH" in x)
    for reason_text in (mismatch_line, shown["message"]):
        assert "PYTHON_VERSION_MISMATCH" in reason_text
        assert HERE in reason_text
        # Spark 3.5 writes (3, 10).
        assert other_python.rpartition("python")[2] in re.sub(
            r"\((\d), (\d+)\)", r"\1.\2", reason_text
        )
    assert len(shown["containers"]) == 1, "its executor was in order"
    no_node_is_excluded(cluster, shown, eventually)


def broken_java(directory: Path) -> Path:
    """A Java that prints its version, and cannot run."""
    home = directory / "jdk"
    command = home / "bin" / "java"
    command.parent.mkdir(parents=True)
    (home / "release").write_text('JAVA_VERSION="17.0.1"\n')
    command.write_text(f"#!/bin/sh\necho '{BROKEN}' >&2\nexit 1\n")
    command.chmod(0o755)
    return home


def test_a_node_that_cannot_start_executors_is_left_alone(
    cluster: Cluster,
    tmp_path: Path,
    go: Path,
    started: Callable[..., subprocess.Popen[bytes]],
    eventually: Callable[..., Any],
) -> None:
    started(
        *("agent", "--name", "bad", "--master", cluster.address, "--run-as", "off"),
        *("--cores", "4", "--memory-mib", "4096", "--work-dir", str(tmp_path / "bad")),
        *("--java-home", str(broken_java(tmp_path))),
    )
    eventually(lambda: "bad" in of_nodes(cluster), 60.0, "the bad node is there")
    app = cluster.submit(
        *("--conf", "spark.executor.instances=4"),  # for two of them there is no other place
        *("--conf", "spark.scheduler.minRegisteredResourcesRatio=0"),
        *(str(APPS / "shuffled.py"), str(go)),
    )
    eventually(lambda: "COUNT 100000" in app.output(), 120.0, "the others do its work")
    first = cluster.application("shuffled")
    assert first is not None

    def blamed() -> dict[str, Any] | None:
        node = of_nodes(cluster)["bad"]
        return node if node["exclusion"] else None

    bad = eventually(blamed, 60.0, "the node is excluded for all")
    assert first["application_id"] in bad["exclusion"]
    assert "failed there at once" in bad["exclusion"]
    assert bad["excluded_applications"] == 1
    listed = cluster.run("nodes", "--master", cluster.address).stdout
    assert [row.split()[0] for row in listed.splitlines() if "excluded" in row] == ["bad"]
    assert "excluded" in cluster.run("node", "show", "bad", "--master", cluster.address).stdout
    why = "\n".join(cluster.ask("app", "why", first["application_id"])["details"])
    assert "bad is excluded for every application" in why
    assert "bad is excluded for this application" in why
    assert f"containers failed there at once, the last: exited with code 1: {BROKEN}" in (
        why.replace("the last line of its stderr: ", "")
    )

    newcomer = cluster.submit(
        *("--conf", "spark.executor.instances=1", str(APPS / "total.py"), "2", "0")
    )
    go.touch()
    assert app.wait() == 0, app.output()
    assert newcomer.wait() == 0, newcomer.output()
    assert "TOTAL 332833500" in newcomer.output()
    second = cluster.application("total")
    assert second is not None
    assert {c["node"] for c in second["containers"]} <= {"node-1", "node-2"}
    after = cluster.ask("app", "show", first["application_id"])
    tried = [c["end"]["exit_code"] for c in after["containers"] if c["node"] == "bad"]
    assert tried and set(tried) == {1}
    assert len(tried) <= 4, "none after the first four"
