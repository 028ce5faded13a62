"""spark-submit --master hrm://… on a real cluster: what runs, and what survives which failure."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.conftest import PATIENCE
from tests.integration.conftest import APPS, Cluster, Submitted, command_of, executors_of

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

SUM_OF_SQUARES = "TOTAL 332833500"
ONE_EXECUTOR = ("--conf", "spark.executor.instances=1")
CLEAN_UP_S = 10.0


@pytest.mark.core
def test_a_python_application_runs_and_returns_everything(
    cluster: Cluster, eventually: Callable[..., Any]
) -> None:
    app = cluster.submit(str(APPS / "total.py"), "4", "0")
    assert app.wait() == 0, app.output()
    assert SUM_OF_SQUARES in app.output()
    shown = cluster.application("total")
    assert shown is not None
    assert shown["state"] == "APPLICATION_STATE_SUCCEEDED"
    assert shown["workload_class"] == "WORKLOAD_CLASS_BATCH"
    assert {c["node"] for c in shown["containers"]} == {"node-1", "node-2"}
    assert {c["executor_id"] for c in shown["containers"]} == {"1", "2"}, (
        "none is replaced at the end"
    )
    eventually(lambda: cluster.free_vcores() == 4, CLEAN_UP_S, "all vcores are free again")
    logs = cluster.run(
        "app", "logs", shown["application_id"], "--executor", "1", "--master", cluster.address
    )
    assert "CoarseGrainedExecutorBackend" in logs.stdout


def test_a_jvm_application_runs(cluster: Cluster) -> None:
    query = "select sum(id * id) from range(1000)"
    app = cluster.submit(*ONE_EXECUTOR, "-e", query, program="spark-sql")
    assert app.wait() == 0, app.output()
    assert "332833500" in app.output()


def test_a_session_built_in_plain_python_runs(cluster: Cluster) -> None:
    code = (
        "from pyspark.sql import SparkSession\n"
        f"s = SparkSession.builder.master('hrm://{cluster.address}')"
        ".config('spark.executor.memory', '512m').config('spark.ui.port', '0')"
        ".config('spark.executor.instances', '1')"
        ".appName('plain').getOrCreate()\n"
        "print('COUNT', s.range(1000).count())\n"
        "print('AUTH', s.sparkContext.getConf().get('spark.authenticate'))\n"
        "import json\n"
        "from urllib.request import urlopen\n"
        "context = s.sparkContext\n"
        "page = f'{context.uiWebUrl}/api/v1/applications/{context.applicationId}/executors'\n"
        f"executors = json.load(urlopen(page, timeout={PATIENCE * 20}))\n"
        "links = [e['executorLogs']['stderr'] for e in executors if e['id'] != 'driver']\n"
        f"print('LOG', urlopen(links[0], timeout={PATIENCE * 20}).read().decode())\n"
        "s.stop()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=cluster.environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE * 120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "COUNT 1000" in done.stdout
    assert "AUTH true" in done.stdout, "Spark's own RPC authentication is on by default"
    log = done.stdout.partition("LOG ")[2]
    assert "CoarseGrainedExecutorBackend" in log, "the link in Spark's UI shows the executor's log"


@pytest.mark.core
def test_dynamic_allocation_grows_and_shrinks(
    cluster: Cluster, tmp_path: Path, eventually: Callable[..., Any]
) -> None:
    stop = tmp_path / "stop"
    conf = {
        "spark.dynamicAllocation.enabled": "true",
        "spark.dynamicAllocation.shuffleTracking.enabled": "true",
        "spark.dynamicAllocation.minExecutors": "0",
        "spark.dynamicAllocation.maxExecutors": "3",
        "spark.dynamicAllocation.executorIdleTimeout": "2s",
        "spark.dynamicAllocation.schedulerBacklogTimeout": "1s",
    }
    flags = [part for k, v in conf.items() for part in ("--conf", f"{k}={v}")]
    app = cluster.submit(*flags, str(APPS / "elastic.py"), str(stop))

    def running() -> int:
        shown = cluster.application("elastic")
        return -1 if shown is None else int(shown["containers_running"])

    eventually(lambda: running() >= 2, 60.0, "executors come with the backlog")
    eventually(lambda: running() == 0, 60.0, "idle executors go")
    stop.touch()
    assert app.wait() == 0, app.output()
    assert "TOTAL 4950" in app.output()


def submit_total(cluster: Cluster, tmp_path: Path, *arguments: str) -> Submitted:
    """On two executors; ``arguments`` are for ``total.py``."""
    script = (str(APPS / "total.py"), *arguments, str(tmp_path / "tasks-run"))
    return cluster.submit("--conf", "spark.executor.instances=2", *script)


def test_a_dead_executor_is_replaced_and_the_result_is_right(
    cluster: Cluster,
    tmp_path: Path,
    running_app: Callable[..., Any],
    eventually: Callable[..., Any],
) -> None:
    app = submit_total(cluster, tmp_path, "6", "2")
    shown = running_app("total", 2)
    application_id = shown["application_id"]
    executors = eventually(lambda: executors_of(application_id), 30.0, "executors are processes")
    executors[0].send_signal(signal.SIGKILL)
    assert app.wait() == 0, app.output()
    assert SUM_OF_SQUARES in app.output()
    after = cluster.ask("app", "show", shown["application_id"])
    # The others end with the application, by themselves (status 0) or stopped.
    ends = [c["end"] for c in after["containers"] if c["end"]["cause"] == "END_CAUSE_EXITED"]
    assert [end["exit_code"] for end in ends].count(137) == 1, ends
    assert len(after["containers"]) == 3


def test_a_killed_driver_leaves_nothing_behind(
    cluster: Cluster,
    tmp_path: Path,
    running_app: Callable[..., Any],
    eventually: Callable[..., Any],
) -> None:
    app = submit_total(cluster, tmp_path, "2", "200")
    shown = running_app("total", 2)
    drivers = [psutil.Process(app.process.pid), *psutil.Process(app.process.pid).children(True)]
    java = [p for p in drivers if "java" in p.name()]
    assert java, drivers
    os.kill(java[0].pid, signal.SIGKILL)
    application_id = shown["application_id"]
    eventually(lambda: not executors_of(application_id), CLEAN_UP_S, "its executors are gone")
    eventually(lambda: cluster.free_vcores() == 4, CLEAN_UP_S, "its resources are free")
    ended = cluster.ask("app", "show", application_id)
    assert ended["state"] == "APPLICATION_STATE_FAILED"
    assert "driver" in ended["message"]


def test_a_killed_appmaster_comes_back_to_its_executors(
    cluster: Cluster,
    tmp_path: Path,
    running_app: Callable[..., Any],
    eventually: Callable[..., Any],
) -> None:
    app = submit_total(cluster, tmp_path, "4", "6")
    shown = running_app("total", 2)
    before = {c["container_id"] for c in shown["containers"]}

    def masters() -> list[psutil.Process]:
        family = psutil.Process(app.process.pid).children(recursive=True)
        return [p for p in family if "hrm.spark.appmaster" in command_of(p)]

    (first,) = masters()
    first.send_signal(signal.SIGKILL)
    eventually(lambda: any(p.pid != first.pid for p in masters()), 20.0, "another AppMaster starts")
    assert app.wait() == 0, app.output()
    assert SUM_OF_SQUARES in app.output()
    after = cluster.ask("app", "show", shown["application_id"])
    assert after["state"] == "APPLICATION_STATE_SUCCEEDED"
    assert {c["container_id"] for c in after["containers"]} == before, "no executor was lost"


def test_a_container_over_its_memory_is_killed_with_the_limit_named(
    cluster: Cluster, eventually: Callable[..., Any]
) -> None:
    app = cluster.submit(
        "--conf",
        "spark.executor.instances=1",
        "--conf",
        "spark.hrm.executor.maxFailures=1",
        "--conf",
        "spark.task.maxFailures=1",
        str(APPS / "glutton.py"),
    )
    assert app.wait() != 0

    def killed_ends() -> list[dict[str, Any]]:
        shown = cluster.application("glutton")
        ends = [c["end"] for c in (shown or {})["containers"] if c.get("end")]
        return [end for end in ends if end["cause"] == "END_CAUSE_MEMORY_LIMIT"]

    killed = eventually(killed_ends, CLEAN_UP_S, "a container ended for its memory")
    assert "896 MiB" in killed[0]["message"], killed[0]
    assert "memoryOverhead" in killed[0]["message"]


CLASSES = {
    "available-now": "BATCH",
    "processing-time": "STREAM",
    "default": "STREAM",
    "dstream": "STREAM",
}
"""Of applications with a query of each trigger."""


@pytest.mark.core
def test_the_class_is_found_not_declared(
    cluster: Cluster, tmp_path: Path, eventually: Callable[..., Any]
) -> None:
    """One application has queries of all kinds, one after the other."""
    stops = {trigger: tmp_path / f"{trigger}.stop" for trigger in CLASSES}
    pairs = (word for trigger, path in stops.items() for word in (trigger, str(path)))
    app = cluster.submit(*ONE_EXECUTOR, str(APPS / "stream.py"), *pairs)

    def shown() -> dict[str, Any]:
        return cluster.application("stream-available-now") or {}

    def progressed() -> bool:
        return bool(shown().get("progress", {}).get("tasks_completed", "0") != "0")

    def is_a(name: str) -> bool:
        return str(shown().get("workload_class")).endswith(name)

    for trigger, stop in stops.items():
        if CLASSES[trigger] == "STREAM":
            eventually(lambda: is_a("STREAM"), 60.0, f"{trigger} is seen as a stream")
            seen = "DStreams" if trigger == "dstream" else "ticks"
            assert seen in shown()["class_evidence"], trigger
        else:
            eventually(progressed, 60.0, f"the query works: {trigger}")
            assert is_a("BATCH"), trigger
        stop.touch()
        eventually(stop.with_suffix(".stopped").exists, 30.0, f"{trigger} has stopped")
        if trigger != "dstream":  # their end emits no event
            eventually(lambda: is_a("BATCH"), 5.0, f"without {trigger} it is batch")
        stop.with_suffix(".end").touch()
    assert app.wait() == 0, app.output()


def test_a_declared_class_overrides_and_kill_ends_the_application_and_states_why(
    cluster: Cluster, tmp_path: Path, running_app: Callable[..., Any]
) -> None:
    declared = ("--conf", "spark.hrm.class=stream")
    app = cluster.submit(*declared, str(APPS / "total.py"), "2", "200", str(tmp_path / "tasks-run"))
    shown = running_app("total", 2)
    assert shown["workload_class"] == "WORKLOAD_CLASS_STREAM"
    assert "spark.hrm.class" in shown["class_evidence"]
    done = cluster.run(
        "app", "kill", shown["application_id"], "--reason", "enough", "--master", cluster.address
    )
    assert done.returncode == 0, done.stderr
    assert app.wait(60.0) != 0
    assert "enough" in app.output()
    why = cluster.ask("app", "why", shown["application_id"])
    assert "enough" in why["summary"]


def _one_clear_line(output: str, *parts: str) -> None:
    lines = [x for x in output.splitlines() if all(p in x for p in parts)]
    assert lines, output[-3000:]


def test_an_unreachable_master_is_one_clear_line(cluster: Cluster) -> None:
    app = cluster.submit(str(APPS / "total.py"), "2", "0", master="hrm://127.0.0.1:1")
    assert app.wait(90.0) != 0
    _one_clear_line(app.output(), "127.0.0.1:1", "hrm up")


def test_an_unknown_host_is_one_clear_line(cluster: Cluster) -> None:
    app = cluster.submit(str(APPS / "total.py"), "2", "0", master="hrm://no.such.host.invalid:7480")
    assert app.wait(90.0) != 0
    _one_clear_line(app.output(), "no.such.host.invalid:7480")


def test_a_malformed_master_is_one_clear_line(cluster: Cluster) -> None:
    app = cluster.submit(str(APPS / "total.py"), "2", "0", master="hrm://127.0.0.1")
    assert app.wait(30.0) != 0
    _one_clear_line(app.output(), "hrm://HOST:PORT")


@pytest.mark.parametrize("content", [None, "not-the-token-of-this-cluster\n"])
def test_a_missing_or_wrong_token_is_one_clear_line(
    cluster: Cluster, tmp_path: Path, content: str | None
) -> None:
    path = tmp_path / "token"
    if content is not None:
        path.write_text(content)
        path.chmod(0o600)
    app = cluster.submit(
        str(APPS / "total.py"), "2", "0", environment={"HRM_TOKEN_FILE": str(path)}
    )
    assert app.wait(60.0) != 0
    _one_clear_line(app.output(), "token", "HRM_TOKEN_FILE")


def test_more_cores_than_any_node_has_is_refused_at_once(cluster: Cluster) -> None:
    app = cluster.submit("--conf", "spark.executor.cores=64", str(APPS / "total.py"), "2", "0")
    assert app.wait(60.0) != 0
    _one_clear_line(app.output(), "64 vcores", "the largest node", "2 vcores")


def test_other_masters_are_left_alone(cluster: Cluster) -> None:
    app = cluster.submit(str(APPS / "total.py"), "2", "0", master="local[1]")
    assert app.wait() == 0, app.output()
    assert SUM_OF_SQUARES in app.output()


def test_nothing_runs_when_all_is_done(cluster: Cluster, eventually: Callable[..., Any]) -> None:
    """The last test of this module: all of the above left no container and no AppMaster."""
    eventually(lambda: cluster.free_vcores() == 4, CLEAN_UP_S, "all vcores are free")
    status = cluster.ask("status")
    assert status["applications_live"] == 0
    assert status["containers_running"] == 0
    ids = {a["application_id"] for a in cluster.ask("apps", "--all")["applications"]}
    left = [p for x in ids for p in executors_of(x)]
    assert not left
