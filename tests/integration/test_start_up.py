"""Executors and drivers that start faster: archives of classes, and warm JVMs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.integration.conftest import APPS, Cluster, command_of
from tests.spark_tools import SparkTools

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

TRAINING_LIMIT_S = 400.0
RUN_LIMIT_S = 240.0
READY_LIMIT_S = 240.0
TAKEN = "shared objects file (top)"
SUM_OF_SQUARES = "TOTAL 332833500"


@pytest.fixture(scope="module")
def prepared(
    tmp_path_factory: pytest.TempPathFactory,
    _tools: SparkTools,
    eventually: Callable[..., Any],
) -> Iterator[Cluster]:
    """A cluster on a machine that has its archives."""
    subject = Cluster(tmp_path_factory.mktemp("prepared"), _tools)
    done = subject.run("env", "--archive", timeout_s=TRAINING_LIMIT_S)
    assert done.returncode == 0, done.stderr
    assert "driver.jsa" in done.stderr
    subject.environment["HRM_AGENT_CLASS_ARCHIVE"] = "true"
    subject.environment["HRM_AGENT_ARCHIVE_DIR"] = str(subject.directory / "home" / "archives")
    subject.environment["HRM_AGENT_WARM_EXECUTORS"] = "1"
    # Immediately, since a core may never be idle where tests run.
    subject.environment["HRM_AGENT_WARM_DELAY_S"] = "0"
    subject.up("--nodes", "1", "--cores", "2", "--memory", "4g")
    eventually(
        lambda: shortcut(subject, "executor-archive")["state"] == "ready",
        20.0,
        "the agent finds the archives",
    )
    yield subject
    assert waiting_jvms(subject), "one waits for whom its agent ends first"
    subject.down()
    assert not waiting_jvms(subject)


def waiting_jvms(cluster: Cluster) -> list[str]:
    """Command lines of warm JVMs that have not been taken."""
    commands = map(command_of, psutil.process_iter())
    return [c for c in commands if f"{cluster.state}/" in c and c.endswith("WarmExecutor")]


def shortcut(cluster: Cluster, name: str) -> dict[str, Any]:
    shown = cluster.ask("node", "show", "node-1")["shortcuts"]
    return next((each for each in shown if each["name"] == name), {"state": ""})


def run(cluster: Cluster, *arguments: str) -> str:
    app = cluster.submit(*arguments, str(APPS / "total.py"), "2", "0")
    assert app.wait(RUN_LIMIT_S) == 0, app.output()
    assert SUM_OF_SQUARES in app.output()
    return app.output()


def taken(log: Path) -> int:
    return log.read_text().count(TAKEN)


def test_drivers_and_executors_take_their_classes_from_the_archives(
    prepared: Cluster, tmp_path: Path, eventually: Callable[..., Any]
) -> None:
    used = shortcut(prepared, "executor-archive")["used"]
    logs = {role: tmp_path / f"{role}.classes" for role in ("driver", "executor")}
    output = run(
        prepared,
        *("--conf", f"spark.driver.extraJavaOptions=-Xlog:class+load:file={logs['driver']}"),
        *("--conf", f"spark.executor.extraJavaOptions=-Xlog:class+load:file={logs['executor']}"),
        *("--conf", "spark.executor.instances=1"),
    )
    assert taken(logs["driver"]) > 3000 and taken(logs["executor"]) > 2000
    assert "[cds" not in output
    eventually(lambda: shortcut(prepared, "executor-archive")["used"] == used + 1, 10.0)


def test_where_the_archive_does_not_fit_executors_start_without_it_and_the_node_states_why(
    prepared: Cluster, eventually: Callable[..., Any]
) -> None:
    missed = shortcut(prepared, "executor-archive")["missed"]
    run(
        prepared,
        *("--conf", "spark.executor.extraJavaOptions=-XX:+UseZGC"),
        *("--conf", "spark.executor.instances=1"),
    )
    eventually(lambda: shortcut(prepared, "executor-archive")["missed"] > missed, 10.0)
    assert "UseZGC" in shortcut(prepared, "executor-archive")["why_missed"]
    table = prepared.run("node", "show", "node-1", "--master", prepared.address).stdout
    assert "UseZGC" in table and "executor-archive" in table


def test_a_warm_jvm_becomes_the_executor_of_an_application_with_encryption(
    prepared: Cluster, eventually: Callable[..., Any]
) -> None:
    run(prepared, "--conf", "spark.executor.instances=1")
    before = eventually(
        lambda: (now := shortcut(prepared, "warm-executors"))["state"] == "ready" and now,
        READY_LIMIT_S,
        "a JVM of the kind that was wanted last is ready",
    )
    assert "none of its kind was ready" in before["why_missed"]
    output = run(
        prepared,
        *("--conf", "spark.network.crypto.enabled=true"),
        *("--conf", "spark.io.encryption.enabled=true"),
        *("--conf", "spark.executor.instances=1"),
        *("--conf", "spark.executorEnv.PYTHONPATH=/tmp/late"),
    )
    assert "WARN TaskSetManager" not in output
    eventually(lambda: shortcut(prepared, "warm-executors")["used"] == before["used"] + 1, 10.0)
    application = prepared.application("total")
    assert application is not None
    (container,) = application["containers"]
    assert container["end"]["cause"] == "END_CAUSE_RELEASED", "it was the only one"
    logs = prepared.run("app", "logs", application["application_id"], "--master", prepared.address)
    assert "Successfully registered with driver" in logs.stdout
    assert "rehearsal" not in logs.stdout, "what it did before belongs to nobody's log"


@pytest.mark.parametrize(
    ("setting", "why"),
    [
        ("spark.executor.extraJavaOptions=-Dlog4j2.configurationFile={file}", "-Dlog4j2"),
        ("spark.executor.userClassPathFirst=true", "userClassPathFirst"),
        ("spark.executor.extraClassPath={file}", "class path entries of its own"),
    ],
)
def test_unusual_executors_start_as_ever(
    prepared: Cluster, tmp_path: Path, eventually: Callable[..., Any], setting: str, why: str
) -> None:
    file = tmp_path / "log4j2.properties"
    file.write_text("rootLogger.level = error\n")
    used = shortcut(prepared, "warm-executors")["used"]
    setting = setting.replace("{file}", str(file))
    run(prepared, "--conf", setting, "--conf", "spark.executor.instances=1")
    eventually(lambda: why in shortcut(prepared, "warm-executors")["why_missed"], 10.0, why)
    assert shortcut(prepared, "warm-executors")["used"] == used


def test_another_warm_jvm_takes_the_place_of_the_one_that_was_taken(
    prepared: Cluster, eventually: Callable[..., Any]
) -> None:
    """It is made while the tests before this one run."""
    if shortcut(prepared, "warm-executors")["state"] == "waiting":  # where this one runs alone
        run(prepared, "--conf", "spark.executor.instances=1")
    eventually(
        lambda: shortcut(prepared, "warm-executors")["state"] == "ready",
        READY_LIMIT_S,
        "there is another",
    )
