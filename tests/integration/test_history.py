"""After the end: events, logs and Spark's own history, and a master that dies in between."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import psutil
import pytest

from tests.integration.conftest import APPS, BIN, Cluster
from tests.spark_tools import SparkTools

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

LIMIT_S = 240.0


@pytest.fixture
def cluster(tmp_path: Path, _tools: SparkTools) -> Iterator[Cluster]:
    """One for each test: the first one's master ends with the test."""
    directory = tmp_path / "cluster"
    directory.mkdir()
    subject = Cluster(directory, _tools)
    subject.up("--nodes", "2", "--cores", "2", "--memory", "3g")
    yield subject
    subject.down()


@pytest.fixture
def spawned(cluster: Cluster) -> Iterator[Callable[..., Any]]:
    """``spawned("events", …)``: an hrm command that stays, and the file of its output."""
    made: list[subprocess.Popen[bytes]] = []

    def spawn(*arguments: str) -> tuple[subprocess.Popen[bytes], Path]:
        log = cluster.directory / f"{arguments[0]}-{len(made)}.out"
        made.append(cluster.start(log, *arguments, preexec_fn=_restore_sigint))
        return made[-1], log

    yield spawn
    for process in reversed(made):
        if process.poll() is None:
            process.terminate()
            process.wait(30)


def _restore_sigint() -> None:
    """Like in a terminal: a shell makes its background processes ignore SIGINT."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _rest(url: str) -> Any:
    try:
        with urlopen(url, timeout=10) as response:
            return json.loads(response.read())
    except OSError:
        return None


def _listeners(port: int) -> list[int]:
    return [
        x.pid or 0
        for x in psutil.net_connections("tcp")
        if x.laddr and x.laddr.port == port and x.status == psutil.CONN_LISTEN
    ]


def _event_logs(cluster: Cluster) -> Path:
    """Where event logs go according to `hrm env`."""
    given = {**cluster.environment, "HRM_HOME": str(cluster.state)}
    env = subprocess.run(
        [str(BIN / "hrm"), "env", "--output", "json"],
        env={k: v for k, v in given.items() if k != "SPARK_CONF_DIR"},
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    return Path(json.loads(env.stdout)["HRM_EVENT_LOG_DIR"])


def _replace_master(cluster: Cluster, spawned: Callable[..., Any]) -> None:
    """By kill -9; the new one keeps no ended application in its state."""
    port = cluster.address.rpartition(":")[2]
    (pid,) = [p["pid"] for p in cluster.cluster["processes"] if p["name"] == "master"]
    os.kill(pid, signal.SIGKILL)
    spawned(
        "master", "--port", port, "--state-dir", str(cluster.state / "master"),
        "--token-file", str(cluster.state / "token"), "--ended-applications-kept", "0",
    )  # fmt: skip


def test_all_is_reported_after_the_end(
    cluster: Cluster, spawned: Callable[..., Any], eventually: Callable[..., Any]
) -> None:
    logs = _event_logs(cluster)
    assert logs == cluster.state / "event-logs"
    address = cluster.address
    _, followed = spawned("events", "--follow", "--output", "json", "--master", address)
    on = cluster.submit(
        "--conf", "spark.executor.instances=1", str(APPS / "total.py"), "2", "0",
        environment={"HRM_EVENT_LOG_DIR": str(logs)},
    )  # fmt: skip
    assert on.wait(LIMIT_S) == 0, on.output()
    app = cluster.application("total")
    assert app is not None
    app_id = app["application_id"]
    events = cluster.ask("events", "--app", app_id)["events"]
    mine = [x["to_state"] for x in events if x["kind"] == "application"]
    assert mine == ["submitted", "running", "succeeded"]
    executor = [x["to_state"] for x in events if x["container_id"] == f"{app_id}-x1"]
    assert executor[:3] == ["pending", "assigned", "running"]

    _replace_master(cluster, spawned)

    def forgotten() -> bool:
        done = cluster.run("app", "show", app_id, "--master", address)
        return done.returncode == 1 and "no such application" in done.stderr

    eventually(forgotten, 60.0, "the new master has forgotten the application")
    assert cluster.ask("app", "why", app_id)["summary"].startswith("succeeded after ")
    eventually(lambda: cluster.ask("status")["nodes_alive"] == 2, 60.0, "its nodes are back")
    log = cluster.run("app", "logs", app_id, "--master", address)
    assert log.returncode == 0, log.stderr
    assert "CoarseGrainedExecutorBackend" in log.stdout

    def served() -> list[int]:
        lines = [x for x in followed.read_text().splitlines() if x.startswith("{")]
        return [int(json.loads(x)["event_id"]) for x in lines]

    def complete() -> bool:
        known = cluster.ask("events", "--limit", "1000")["events"]
        return served() == [int(x["event_id"]) for x in known]

    eventually(complete, 60.0, "the follower has all events of both masters, each once")
    assert {x >> 32 for x in served()} == {1, 2}, "of two epochs"
    _the_history_server_lists(app_id, logs, spawned, eventually)


def _the_history_server_lists(
    app_id: str, logs: Path, spawned: Callable[..., Any], eventually: Callable[..., Any]
) -> None:
    server, printed = spawned("history", "--dir", str(logs), "--port", "0")
    eventually(lambda: printed.read_text().count("http://"), 30.0, "it says where")
    (url,) = [x for x in printed.read_text().splitlines() if x.startswith("http://")]
    listed = eventually(
        lambda: [x for x in _rest(f"{url}/api/v1/applications") or [] if x["id"] == app_id],
        LIMIT_S,
        "the history server lists the application",
    )
    assert listed[0]["name"] == "total"
    assert listed[0]["attempts"][0]["completed"] is True
    port = int(url.rpartition(":")[2])
    assert _listeners(port) == [server.pid], "the command itself is the server"
    server.send_signal(signal.SIGINT)
    server.wait(30)
    assert _listeners(port) == []


def test_the_applications_own_word_wins(cluster: Cluster, tmp_path: Path) -> None:
    logs = tmp_path / "event-logs"
    logs.mkdir()
    off = cluster.submit(
        "--conf", "spark.eventLog.enabled=false", "--conf", "spark.executor.instances=1",
        str(APPS / "total.py"), "1", "0",
        environment={"HRM_EVENT_LOG_DIR": str(logs)},
    )  # fmt: skip
    assert off.wait(LIMIT_S) == 0, off.output()
    assert list(logs.iterdir()) == []
