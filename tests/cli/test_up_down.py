"""``hrm up`` and ``hrm down`` with real daemons: all or nothing, twice, at once, after a crash."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hrm.agent.containers.shim import boot_id, descendants, start_ticks
from hrm.cli import embedded

SMALL = ("--nodes", "2", "--cores", "1", "--memory", "1g", "--port", "0")


def _hrm(*arguments: str, timeout_s: float = 100.0) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "hrm.cli", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout_s,
    )


def _processes(directory: Path) -> list[dict[str, Any]]:
    document = json.loads((directory / "cluster.json").read_text())
    processes: list[dict[str, Any]] = document["processes"]
    return processes


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """A state directory whose cluster is certainly gone at the end."""
    path = tmp_path / "state of mine"
    yield path
    known = _processes(path) if (path / "cluster.json").exists() else []
    _hrm("down", "--state-dir", str(path))
    for process in known:
        if start_ticks(process["pid"]) == process["start_ticks"]:
            os.kill(process["pid"], signal.SIGKILL)
            pytest.fail(f"hrm down left {process['name']} alive")


def _one_error(result: subprocess.CompletedProcess[str]) -> str:
    assert result.returncode == 1, result
    errors = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, result.stderr
    assert result.stderr.rstrip().endswith(errors[0])
    return errors[0]


def test_up_then_everything_is_there_then_down_and_nothing_is(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HRM_MASTER", "elsewhere:7480")
    monkeypatch.setenv("HRM_AGENT_KEEP_CONTAINERS", "true")
    up = _hrm("up", *SMALL, "--state-dir", str(directory))
    assert up.returncode == 0, up.stderr
    assert "export HRM_MASTER=127.0.0.1:" in up.stdout
    monkeypatch.delenv("HRM_MASTER")
    assert "spark-submit" in up.stdout
    assert f"export HRM_HOME='{directory}'" in up.stdout
    assert stat.S_IMODE((directory / "token").stat().st_mode) == 0o600
    processes = _processes(directory)
    assert [p["name"] for p in processes] == ["master", "node-1", "node-2"]
    assert len({os.getsid(p["pid"]) for p in processes}) == 3

    monkeypatch.setenv("HRM_HOME", str(directory))
    nodes = json.loads(_hrm("nodes", "--output", "json").stdout)["nodes"]
    assert sorted(node["name"] for node in nodes) == ["node-1", "node-2"]
    assert {node["state"] for node in nodes} == {"NODE_STATE_ALIVE"}
    capacity = nodes[0]["resource_units"][0]["unit"]["capacity"]
    assert (capacity["vcores"], capacity["memory_mib"]) == ("1", "1024")

    second = _hrm("up", *SMALL)
    assert "already running" in _one_error(second)
    assert [p["pid"] for p in _processes(directory)] == [p["pid"] for p in processes]

    down = _hrm("down")
    assert down.returncode == 0, down.stderr
    assert "ended node-2" in down.stderr
    assert "ended master" in down.stderr
    assert "killed" not in down.stderr
    assert [p for p in processes if start_ticks(p["pid"]) == p["start_ticks"]] == []
    assert not (directory / "cluster.json").exists()
    log = (directory / "logs" / "node-1.log").read_text()
    assert "leaving containers" not in log, "none are kept for an agent that does not come"
    again = _hrm("down")
    assert (again.returncode, again.stderr) == (0, "nothing was running\n")


def test_what_is_not_typed_is_as_it_is_set(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory.mkdir()
    (directory / "hrm.toml").write_text(
        "[master]\nschedulers = 3\nport = 0\n[agent]\ncores = 1\nmemory_mib = 700\n"
    )
    up = _hrm("up", "--nodes", "1", "--state-dir", str(directory))
    assert up.returncode == 0, up.stderr
    port = json.loads((directory / "cluster.json").read_text())["port"]
    assert port != 7480
    master = ("--master", f"127.0.0.1:{port}")
    monkeypatch.setenv("HRM_TOKEN_FILE", str(directory / "token"))
    status = json.loads(_hrm("status", *master, "-o", "json").stdout)
    assert len(status["schedulers"]) == 3
    capacity = status["capacity"]
    assert (capacity["vcores"], capacity["memory_mib"]) == ("1", "700")


def test_a_misspelt_setting_is_found_before_anything_starts(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HRM_AGENT_CROES", "2")
    up = _hrm("up", *SMALL, "--state-dir", str(directory))
    assert up.returncode == 2
    assert "error: HRM_AGENT_CROES is no setting of hrm agent (did you mean HRM_AGENT_CORES?)" in (
        up.stderr
    )
    assert not directory.exists()


def test_a_port_in_use_is_named_and_nothing_stays(directory: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        result = _hrm("up", "--port", port, "--state-dir", str(directory))
    output = _one_error(result)
    assert f"port {port}" in output
    assert "hrm up --port" in output
    assert not (directory / "cluster.json").exists()


def test_a_daemon_that_cannot_start_is_quoted_and_the_rest_is_ended(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HRM_AGENT_SPARK_HOME", "/nowhere")  # agents fail, after the master is up
    output = _one_error(_hrm("up", *SMALL, "--state-dir", str(directory)))
    assert "ended at its start (exit status 2)" in output
    assert "/nowhere is no Spark" in output
    assert str(directory / "logs") in output
    assert not (directory / "cluster.json").exists()
    assert _of(directory) == []


@pytest.mark.parametrize(
    ("arguments", "cause"),
    [(["--memory", "lots"], "--memory lots"), (["--memory", "10m"], "at least")],
)
def test_bad_sizes_start_nothing(directory: Path, arguments: list[str], cause: str) -> None:
    assert cause in _one_error(_hrm("up", "--state-dir", str(directory), *arguments))
    assert not directory.exists()


def test_a_state_directory_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    output = _one_error(_hrm("up", "--state-dir", str(tmp_path / "file" / "below")))
    assert "--state-dir" in output


def test_two_at_once_do_not_meet(directory: Path) -> None:
    with embedded.locked(directory):
        for command in ("up", "down"):
            output = _one_error(_hrm(command, "--state-dir", str(directory)))
            assert "another `hrm up` or `hrm down`" in output


def test_an_interrupted_start_leaves_nothing(
    directory: Path, eventually: Callable[..., Any]
) -> None:
    command = [sys.executable, "-m", "hrm.cli", "up", *SMALL, "--state-dir", str(directory)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as up:
        eventually((directory / "cluster.json").exists, 30)
        up.send_signal(signal.SIGTERM)
        _, output = up.communicate(timeout=60)
    assert up.returncode == 130, output
    assert not (directory / "cluster.json").exists()
    assert _of(directory) == []


def test_down_ends_what_a_dead_agent_left(directory: Path, eventually: Callable[..., Any]) -> None:
    """A container whose agent is gone: two processes, the child in a session of its own."""
    script = (
        "import os, subprocess, sys, time\n"
        "subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        "print('ready', flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as container:
        assert container.stdout is not None
        assert container.stdout.readline() == b"ready\n"
        record = {
            "boot_id": boot_id(),
            "shim_pid": container.pid,
            "shim_start_ticks": start_ticks(container.pid),
            "pid": container.pid,
            "start_ticks": start_ticks(container.pid),
        }
        place = directory / "nodes" / "node-1" / "containers" / "app-1-1"
        place.mkdir(parents=True)
        (place / "process.json").write_text(json.dumps(record))
        (child,) = eventually(lambda: descendants(container.pid))
        down = _hrm("down", "--state-dir", str(directory))
        assert down.stderr == "ended container app-1-1 of node-1\n"
        assert container.wait(timeout=10) == -signal.SIGKILL
    assert start_ticks(child) is None


APPLICATION = """
import time
from pyspark.sql import SparkSession

spark = SparkSession.builder.appName("endless").getOrCreate()
spark.sparkContext.parallelize(range(2), 2).foreach(lambda _: time.sleep(600))
"""


@pytest.mark.spark
@pytest.mark.timeout(240)
def test_down_ends_drivers_and_executors_with_a_reason(
    tmp_path: Path, eventually: Callable[..., Any]
) -> None:
    """A real Spark, submitted by ``hrm spark-submit`` to the cluster of ``hrm up``."""
    home = Path(os.environ["HRM_HOME"])
    script = tmp_path / "app.py"
    script.write_text(APPLICATION)

    def applications() -> Any:
        return json.loads(_hrm("apps", "-o", "json").stdout)["applications"]

    up = _hrm("up", "--nodes", "1", "--cores", "1", "--memory", "2g", "--port", "0")
    assert up.returncode == 0, up.stderr
    try:
        options = ["--executor-memory", "512m", "--conf", "spark.ui.enabled=false"]
        command = [sys.executable, "-m", "hrm.cli", "spark-submit", *options, str(script)]
        with (tmp_path / "driver.log").open("wb") as log:
            driver = subprocess.Popen(command, stdout=log, stderr=log, cwd=tmp_path)
        try:
            eventually(
                lambda: (
                    driver.poll() is not None
                    or any(app["containers_running"] for app in applications())
                ),
                120,
            )
            assert driver.poll() is None, (tmp_path / "driver.log").read_text()
            (app,) = applications()
            assert app["name"] == "endless"
            down = _hrm("down")
            assert f"ended application {app['application_id']} (endless)" in down.stderr
            assert driver.wait(timeout=30) != 0
            assert "the cluster was ended by hrm down" in (tmp_path / "driver.log").read_text()
        finally:
            driver.kill()
            driver.wait()
    finally:
        _hrm("down")
    eventually(lambda: _of(home) == [], 10, "executors of the cluster are gone")


def test_a_reused_pid_is_left_alone(tmp_path: Path) -> None:
    ticks = start_ticks(os.getpid())
    assert ticks is not None
    mine = embedded.DaemonProcess(
        role="master", name="master", pid=os.getpid(), start_ticks=ticks - 1, log=""
    )
    cluster = embedded.Cluster(
        directory=tmp_path,
        host="127.0.0.1",
        port=1,
        nodes=1,
        cores=1,
        memory_mib=512,
        processes=[mine],
    )
    cluster.save()
    assert embedded.Cluster.read(tmp_path) == cluster
    assert embedded.stop(cluster, lambda _what: None) == []
    cluster.processes = [
        embedded.DaemonProcess(role="master", name="m", pid=os.getpid(), start_ticks=ticks, log="")
    ]
    assert len(cluster.alive()) == 1
    cluster.boot_id = "another boot"
    assert cluster.alive() == []


def test_a_damaged_record_states_what_to_do(directory: Path) -> None:
    directory.mkdir()
    (directory / "cluster.json").write_text("{")
    assert "remove the file" in _one_error(_hrm("down", "--state-dir", str(directory)))
    (directory / "cluster.json").unlink()


def test_the_last_error_of_a_log_is_found(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    assert embedded.last_line(log) == ""
    log.write_text("hello\nerror: port 1 is in use\nbye\n\n")
    assert embedded.last_line(log) == "port 1 is in use"
    log.write_text("x" * 40_000 + "\nValueError: 3\n")
    assert embedded.last_line(log) == "ValueError: 3"


def _of(directory: Path) -> list[int]:
    """Processes that name ``directory`` in their command line."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes()
        except OSError:
            continue
        pid = int(path.parent.name)
        if str(directory).encode() in words and start_ticks(pid) is not None:
            found.append(pid)
    return found
