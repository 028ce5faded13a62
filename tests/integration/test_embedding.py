"""Spark that other programs start, or have inside: SparkLauncher, masters in code, Spark's UI."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hrm.spark import build
from hrm.spark.launch import find_java, find_spark
from tests.conftest import PATIENCE
from tests.integration.conftest import APPS, BIN, Cluster
from tests.spark.test_plugin_locks import OPENED

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

SECRET = "a secret of the tests, long enough"
SQUARES = "338350"
PLUGIN = "HRM: this driver has no secret for its connections"


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``Embedding.scala`` as a jar."""
    directory = tmp_path_factory.mktemp("program")
    jars = find_spark().home / "jars"
    compiler = build._compiler_jars(str(jars), [jar.name for jar in jars.iterdir()])
    jar = directory / "embedding.jar"
    command = [
        str(find_java().command), "-Xss8m", "-cp", os.pathsep.join(compiler),
        "scala.tools.nsc.Main", "-cp", f"{jars}/*", "-nowarn", "-d", str(jar),
        str(APPS / "Embedding.scala"),
    ]  # fmt: skip
    subprocess.run(command, check=True, timeout=PATIENCE * 180, stdin=subprocess.DEVNULL)
    assert zipfile.is_zipfile(jar)
    return jar


@pytest.fixture
def embedding(cluster: Cluster, program: Path) -> Callable[..., str]:
    """``embedding(way, *arguments)``: runs the program with the plugin; its output."""
    plugin = cluster.run("plugin-jar")
    assert plugin.returncode == 0, plugin.stderr

    def run(*arguments: str, exit_status: int = 0) -> str:
        opened = (f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in OPENED)
        class_path = f"{program}:{plugin.stdout.strip()}:{find_spark().home}/jars/*"
        done = subprocess.run(
            [
                str(find_java().command), "-Xmx700m", *opened, "-cp", class_path,
                "org.example.Embedding", *arguments,
            ],
            env=cluster.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            timeout=PATIENCE * 280, check=False, stdin=subprocess.DEVNULL, cwd=cluster.directory,
        )  # fmt: skip
        assert done.returncode == exit_status, done.stdout[-8000:]
        return done.stdout

    return run


def launched(output: str) -> tuple[list[str], str]:
    """States without repetitions, and the application's id."""
    lines = dict(line.split(" ", 1) for line in output.splitlines() if line[:3] in ("STA", "ID "))
    return list(dict.fromkeys(lines["STATES"].split())), lines["ID"]


@pytest.mark.core
def test_a_launcher_follows_its_application(
    cluster: Cluster, embedding: Callable[..., str]
) -> None:
    home, master = str(find_spark().home), f"hrm://{cluster.address}"
    output = embedding("launch", home, master, "client", "never", str(APPS / "total.py"), "2", "0")
    states, application_id = launched(output)
    assert states == ["CONNECTED", "SUBMITTED", "RUNNING", "FINISHED"], output
    shown = cluster.ask("app", "show", application_id)
    assert shown["state"] == "APPLICATION_STATE_SUCCEEDED"


@pytest.mark.parametrize("at_work", [False, True])
def test_a_launcher_stops_its_application(
    cluster: Cluster, embedding: Callable[..., str], tmp_path: Path, at_work: bool
) -> None:
    """As soon as it has the application's id, and when tasks run."""
    home, master, marker = str(find_spark().home), f"hrm://{cluster.address}", tmp_path / "runs"
    stop_on = str(marker) if at_work else "RUNNING"
    app = (str(APPS / "total.py"), "40", "30", str(marker))
    output = embedding("launch", home, master, "client", stop_on, *app)
    states, application_id = launched(output)
    assert states == ["CONNECTED", "SUBMITTED", "RUNNING", "KILLED"], output
    shown = cluster.ask("app", "show", application_id)
    assert shown["state"] == "APPLICATION_STATE_KILLED"
    assert "the program that launched the driver has stopped it" in shown["message"]


def test_a_launcher_follows_a_driver_on_a_node(
    cluster: Cluster, embedding: Callable[..., str], tmp_path: Path
) -> None:
    home, master, marker = str(find_spark().home), f"hrm://{cluster.address}", tmp_path / "runs"
    app = str(APPS / "total.py")
    output = embedding("launch", home, master, "cluster", "never", app, "2", "0")
    states, application_id = launched(output)
    assert states == ["CONNECTED", "SUBMITTED", "RUNNING", "FINISHED"], output
    assert cluster.ask("app", "show", application_id)["submission_id"]
    output = embedding("launch", home, master, "cluster", str(marker), app, "40", "30", str(marker))
    states, application_id = launched(output)
    assert states == ["CONNECTED", "SUBMITTED", "RUNNING", "KILLED"], output
    assert cluster.ask("app", "show", application_id)["state"] == "APPLICATION_STATE_KILLED"


def test_a_launcher_sees_that_an_application_fails(
    cluster: Cluster, embedding: Callable[..., str]
) -> None:
    home = str(find_spark().home)
    app = str(APPS / "total.py")
    output = embedding("launch", home, "hrm://127.0.0.1:1", "client", "never", app, "1", "0")
    states, _ = launched(output)
    assert states == ["CONNECTED", "SUBMITTED", "FAILED"], output
    assert "no HRM master answers at 127.0.0.1:1" in output


def test_a_launcher_in_the_same_jvm(
    cluster: Cluster, embedding: Callable[..., str], program: Path
) -> None:
    output = embedding("in-process", f"spark+hrm://{cluster.address}", SECRET, str(program))
    states, application_id = launched(output)
    assert states == ["CONNECTED", "SUBMITTED", "RUNNING", "FINISHED"], output
    assert f"SUM spark+hrm://{cluster.address} {SQUARES}" in output
    assert cluster.ask("app", "show", application_id)["state"] == "APPLICATION_STATE_SUCCEEDED"


def test_a_second_context_of_a_jvm_that_was_local_before(
    cluster: Cluster, embedding: Callable[..., str]
) -> None:
    master = f"hrm://{cluster.address}"
    output = embedding("second", master, SECRET)
    assert f"SUM local[1] {SQUARES}" in output
    assert f"SUM {master} {SQUARES}" in output
    output = embedding("second", master, "none", exit_status=1)
    assert f"SUM local[1] {SQUARES}" in output
    assert PLUGIN in output


def submitted(cluster: Cluster, *arguments: str, **environment: str) -> tuple[int, str]:
    """The stock spark-submit, without a master on its command line."""
    submit = (str(BIN / "spark-submit"), "--conf", "spark.ui.enabled=false")
    return started(cluster, *submit, *arguments, **environment)


def started(cluster: Cluster, *command: str, **environment: str) -> tuple[int, str]:
    done = subprocess.run(
        command, env={**cluster.environment, **environment}, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, timeout=PATIENCE * 120, check=False,
        stdin=subprocess.DEVNULL, cwd=cluster.directory,
    )  # fmt: skip
    return done.returncode, done.stdout


def test_a_master_in_code_under_a_bare_spark_submit(cluster: Cluster) -> None:
    assert cluster.run("plugin-jar").returncode == 0
    application = (str(APPS / "code_master.py"), f"hrm://{cluster.address}")
    status, output = submitted(cluster, *application)
    assert status != 0
    assert PLUGIN in output, "what is missing, and what to add"
    with_secret = ("spark.authenticate=true", f"spark.authenticate.secret={SECRET}")
    for added, variables in (
        (with_secret, {}),
        ((), {"MASTER": f"hrm://{cluster.address}"}),
    ):
        status, output = submitted(cluster, *application, *added, **variables)
        assert (status, "SUM 45" in output) == (0, True), output


def test_a_later_context_of_a_local_program_is_answered_by_the_plugin(cluster: Cluster) -> None:
    """In a shell of `hrm env`, Spark itself could say only that it cannot parse the master."""
    assert cluster.run("plugin-jar").returncode == 0
    program = (str(APPS / "second_master.py"), "local[1]", f"hrm://{cluster.address}")
    status, output = started(cluster, sys.executable, *program)
    assert status != 0
    assert "FIRST local[1] 45" in output
    assert PLUGIN in output
    with_secret = ("spark.authenticate=true", f"spark.authenticate.secret={SECRET}")
    status, output = started(cluster, sys.executable, *program, *with_secret)
    assert (status, "SECOND 45" in output) == (0, True), output


def test_the_variable_of_a_master_counts_in_cluster_mode(cluster: Cluster) -> None:
    app = (
        *("--deploy-mode", "cluster", "--name", "by-variable", "--driver-memory", "600m"),
        *("--conf", "spark.executor.memory=512m", "--conf", "spark.executor.instances=1"),
        *(str(APPS / "total.py"), "2", "0"),
    )
    status, output = submitted(cluster, *app, MASTER=f"hrm://{cluster.address}")
    assert status == 0, output


def shown_in_ui(cluster: Cluster, *options: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """What Spark's UI has of a driver on a node and its executor; the application."""
    app = cluster.submit(
        *("--deploy-mode", "cluster", "--driver-memory", "600m", *options),
        *("--conf", "spark.ui.enabled=true", "--conf", "spark.executor.instances=1"),
        str(APPS / "ui.py"),
    )
    assert app.wait(240) == 0, app.output()
    shown = cluster.application("ui")
    assert shown is not None
    log = cluster.run(
        *("app", "logs", shown["application_id"], "--executor", "driver", "--stream", "stdout"),
        *("--master", cluster.address),
    )
    (line,) = [line for line in log.stdout.splitlines() if line.startswith("UI ")]
    return json.loads(line.removeprefix("UI ")), shown


def test_the_ui_shows_a_drivers_logs_and_what_identifies_a_container(cluster: Cluster) -> None:
    found, shown = shown_in_ui(cluster)
    (container,) = shown["containers"]
    executor, driver = found["1"]["attributes"], found["driver"]["attributes"]
    assert executor["APP_ID"] == driver["APP_ID"] == shown["application_id"]
    assert (executor["EXECUTOR_ID"], driver["EXECUTOR_ID"]) == ("1", "driver")
    assert executor["CONTAINER_ID"] == container["container_id"]
    assert executor["NODE"] == container["node"]
    assert driver["SUBMISSION_ID"] == shown["submission_id"]
    assert driver["CONTAINER_ID"].startswith(shown["submission_id"])
    assert executor["USER"] == driver["USER"] == shown["user"]
    for each in found.values():
        assert set(each["links"]) == {"stdout", "stderr"}
        assert each["status"] == 200, "a link that opens the log"


def test_a_pattern_of_the_users_takes_the_place_of_links_to_logs(cluster: Cluster) -> None:
    pattern = "http://logs.example/{{APP_ID}}/{{NODE}}/{{EXECUTOR_ID}}/{{FILE_NAME}}"
    found, shown = shown_in_ui(cluster, "--conf", f"spark.ui.custom.executor.log.url={pattern}")
    for executor_id, each in found.items():
        node = each["attributes"]["NODE"]
        place = f"http://logs.example/{shown['application_id']}/{node}/{executor_id}"
        assert each["links"] == {"stdout": f"{place}/stdout", "stderr": f"{place}/stderr"}


def test_the_plugins_jar_is_printed_for_a_spark(cluster: Cluster, tmp_path: Path) -> None:
    home = find_spark().home
    version = find_spark().version
    by_version = cluster.run("plugin-jar", "--spark", version.rpartition(".")[0])
    by_home = cluster.run("plugin-jar", "--spark-home", str(home))
    assert by_version.returncode == by_home.returncode == 0, by_version.stderr + by_home.stderr
    assert by_version.stdout == by_home.stdout
    assert zipfile.is_zipfile(by_home.stdout.strip())
    none = cluster.run("plugin-jar", "--spark", "2.4")
    assert none.returncode == 1
    assert f"no Spark 2.4 is known here ({version} at {home}" in none.stderr
    assert "--spark-home" in none.stderr
