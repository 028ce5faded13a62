"""Executors and drivers that start faster: archives of classes, and warm JVMs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import APPS, Cluster

pytestmark = [pytest.mark.spark, pytest.mark.timeout(500)]

TRAINING_LIMIT_S = 400.0
TAKEN = "shared objects file (top)"
SUM_OF_SQUARES = "TOTAL 332833500"


@pytest.fixture(scope="module")
def prepared(
    tmp_path_factory: pytest.TempPathFactory,
    _plugins: Path,
    _archives: Path,
    eventually: Callable[..., Any],
) -> Iterator[Cluster]:
    """A cluster on a machine that has its archives."""
    subject = Cluster(tmp_path_factory.mktemp("prepared"), _plugins)
    (subject.directory / "home" / "archives").symlink_to(_archives)
    done = subject.run("env", "--archive", timeout_s=TRAINING_LIMIT_S)
    assert done.returncode == 0, done.stderr
    assert "driver.jsa" in done.stderr
    subject.environment["HRM_AGENT_CLASS_ARCHIVE"] = "true"
    subject.environment["HRM_AGENT_ARCHIVE_DIR"] = str(_archives)
    subject.up("--nodes", "1", "--cores", "2", "--memory", "4g")
    eventually(
        lambda: shortcut(subject, "executor-archive")["state"] == "ready",
        20.0,
        "the agent finds the archives",
    )
    yield subject
    subject.down()


def shortcut(cluster: Cluster, name: str) -> dict[str, Any]:
    shown = cluster.ask("node", "show", "node-1")["shortcuts"]
    return next((each for each in shown if each["name"] == name), {"state": ""})


def run(cluster: Cluster, *arguments: str) -> str:
    app = cluster.submit(*arguments, str(APPS / "total.py"), "2", "0")
    assert app.wait() == 0, app.output()
    assert SUM_OF_SQUARES in app.output()
    return app.output()


def taken(log: Path) -> int:
    return log.read_text().count(TAKEN)


def test_drivers_and_executors_take_their_classes_from_the_archives(
    prepared: Cluster, tmp_path: Path, eventually: Callable[..., Any]
) -> None:
    logs = {who: tmp_path / f"{who}.classes" for who in ("driver", "executor")}
    output = run(
        prepared,
        *("--conf", f"spark.driver.extraJavaOptions=-Xlog:class+load:file={logs['driver']}"),
        *("--conf", f"spark.executor.extraJavaOptions=-Xlog:class+load:file={logs['executor']}"),
        *("--conf", "spark.executor.instances=1"),
    )
    assert taken(logs["driver"]) > 3000 and taken(logs["executor"]) > 2000
    assert "[cds" not in output
    eventually(lambda: shortcut(prepared, "executor-archive")["used"] == 1, 10.0)


def test_where_the_archive_does_not_fit_executors_start_without_it_and_the_node_says_why(
    prepared: Cluster, eventually: Callable[..., Any]
) -> None:
    run(
        prepared,
        *("--conf", "spark.executor.extraJavaOptions=-XX:+UseZGC"),
        *("--conf", "spark.executor.instances=1"),
    )
    eventually(lambda: shortcut(prepared, "executor-archive")["missed"] == 1, 10.0)
    assert "UseZGC" in shortcut(prepared, "executor-archive")["why_missed"]
    table = prepared.run("node", "show", "node-1", "--master", prepared.address).stdout
    assert "UseZGC" in table and "executor-archive" in table
