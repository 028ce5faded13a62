"""Drivers of `hrm warm` with a real Spark: what applications find, and how they start and end."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from hrm.cli.spark_setup import spark_submit
from tests.integration.conftest import APPS, Cluster, command_of
from tests.spark_tools import SparkTools

pytestmark = [pytest.mark.spark, pytest.mark.extra, pytest.mark.timeout(1800)]

RUN_LIMIT_S = 240.0
READY_LIMIT_S = 600.0
NAMES_OF_A_START = {
    # What spark-env.sh prepares for a JVM that it starts; a warm one has had it from the beginning.
    "HRM_APPMASTER_FD", "HRM_APPMASTER_PID", "HRM_ARGUMENT_FILE", "HRM_PLUGIN_JAR",
    "SPARK_DIST_CLASSPATH", "SPARK_SUBMIT_OPTS", "SPARK_SCALA_VERSION", "HRM_WARM",
    "_PYSPARK_DRIVER_CONN_INFO_PATH",
    # Of each application its own.
    "spark.app.id", "spark.app.startTime", "spark.app.submitTime", "spark.authenticate.secret",
    "spark.driver.port", "spark.hrm.start", "sun.java.command", "spark.repl.class.outputDir", "pid",
}  # fmt: skip
THREADS_OF_JAVA = ("Cleaner", "process reaper", "SparkUI", "org.apache.hadoop.fs.FileSystem$")


@pytest.fixture(scope="module")
def warmed(tmp_path_factory: pytest.TempPathFactory, _tools: SparkTools) -> Iterator[Cluster]:
    """A cluster, and a user that keeps one driver ready for where applications are submitted."""
    subject = Cluster(tmp_path_factory.mktemp("warmed"), _tools)
    subject.up("--nodes", "1", "--cores", "2", "--memory", "4g")
    subject.environment["HRM_MASTER"] = subject.address
    log = subject.directory / "warm.log"
    assert subject.start(log, "warm", cwd=subject.directory).wait(60) == 0, log.read_text()
    yield subject
    done = subject.run("warm", "--stop")
    assert done.returncode == 0, done.stderr
    home = subject.environment["HRM_HOME"]
    assert not [p.pid for p in psutil.process_iter() if is_warm(p, home)], "nothing is left"
    subject.down()


def is_warm(process: psutil.Process, home: str) -> bool:
    try:
        return (
            command_of(process).endswith("WarmDriver") and process.environ().get("HRM_HOME") == home
        )
    except psutil.Error:
        return False


def kind(cluster: Cluster) -> dict[str, Any]:
    shown = json.loads(cluster.run("warm", "--status", "--output", "json").stdout)
    kept: dict[str, Any] = shown["kinds"][-1]
    return kept


def ready(cluster: Cluster, eventually: Callable[..., Any]) -> int:
    """Wait until a driver is; returns how many have been used."""
    found = eventually(
        lambda: (now := kind(cluster))["ready"] == 1 and now,
        READY_LIMIT_S,
        lambda: str(kind(cluster)),
    )
    return int(found["used"])


def differences(path: str, cold: Any, warm: Any) -> list[str]:
    if isinstance(cold, dict) and isinstance(warm, dict):
        names = sorted({*cold, *warm} - NAMES_OF_A_START)
        return [x for n in names for x in differences(f"{path}/{n}", cold.get(n), warm.get(n))]
    thread = path.rpartition("threads/")[2] if "threads/" in path else ""
    if cold == warm or (thread and thread.startswith(THREADS_OF_JAVA)):
        return []
    if thread and path.startswith("/late") and None in (cold, warm):
        return []  # pools have more or fewer threads from moment to moment
    return [f"{path}: cold {cold!r}, warm {warm!r}"]


def test_an_application_finds_the_jvm_that_a_cold_start_would_have_given_it(
    warmed: Cluster, tmp_path: Path, eventually: Callable[..., Any]
) -> None:
    used = ready(warmed, eventually)
    found = {}
    for start, environment in (("cold", {"HRM_WARM": "off"}), ("warm", {})):
        result = tmp_path / f"{start}.json"
        app = warmed.start(
            tmp_path / f"{start}.log", str(APPS / "jvm_state.py"), str(result),
            f"hrm://{warmed.address}", program=(sys.executable,), environment=environment,
            cwd=warmed.directory,
        )  # fmt: skip
        assert app.wait(RUN_LIMIT_S) == 0, (tmp_path / f"{start}.log").read_text()
        found[start] = json.loads(result.read_text())
    assert found["warm"]["late"]["settings"]["spark.hrm.start"] == "warm"
    assert kind(warmed)["used"] == used + 1
    assert differences("", found["cold"], found["warm"]) == []
    assert found["warm"]["late"]["first_execution"] == 0
    assert found["warm"]["early"]["secrets"] == 0


def test_python_and_jvm_applications_of_spark_submit_take_one(
    warmed: Cluster, eventually: Callable[..., Any]
) -> None:
    used = ready(warmed, eventually)
    app = warmed.submit("--conf", "spark.executor.instances=1", str(APPS / "total.py"), "2", "0")
    assert app.wait(RUN_LIMIT_S) == 0, app.output()
    assert "TOTAL 332833500" in app.output()
    assert ready(warmed, eventually) == used + 1
    jars = spark_submit().resolve().parent.parent / "examples" / "jars"
    (jar,) = jars.glob("spark-examples_*.jar")
    app = warmed.submit(
        *("--conf", "spark.executor.instances=1"),
        *("--class", "org.apache.spark.examples.SparkPi", str(jar), "2"),
    )
    assert app.wait(RUN_LIMIT_S) == 0, app.output()
    assert "Pi is roughly 3.1" in app.output()
    assert kind(warmed)["used"] == used + 2


def test_one_that_fails_ends_as_it_would_have(
    warmed: Cluster, eventually: Callable[..., Any], tmp_path: Path
) -> None:
    ready(warmed, eventually)
    wrong = tmp_path / "wrong.py"
    wrong.write_text("import sys\nprint('SAID')\nsys.exit(3)\n")
    app = warmed.submit(str(wrong))
    assert app.wait(RUN_LIMIT_S) == 1, "spark-submit says 1, whatever Python said"
    assert "SAID" in app.output()
    assert "exited with 3" in app.output()


def test_the_jvm_of_a_program_that_is_killed_ends_and_with_it_the_application(
    warmed: Cluster, eventually: Callable[..., Any]
) -> None:
    ready(warmed, eventually)
    app = warmed.submit("--conf", "spark.executor.instances=1", str(APPS / "total.py"), "2", "600")
    live = eventually(
        lambda: (
            (found := warmed.application("total")) is not None
            and found["state"] == "APPLICATION_STATE_RUNNING"
            and found
        ),
        RUN_LIMIT_S,
    )
    os.kill(app.process.pid, signal.SIGKILL)
    app.process.wait(10)
    shown = ("app", "show", live["application_id"])
    eventually(
        lambda: warmed.ask(*shown)["application"]["state"] != "APPLICATION_STATE_RUNNING",
        60.0,
        "the application has ended",
    )
