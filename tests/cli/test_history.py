"""``hrm history`` and its logs: where they go, how long they stay, and how to turn them off."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

from hrm.cli import history
from hrm.cli.embedded import Cluster
from hrm.cli.spark_setup import spark_environment
from hrm.spark.conf import conf_dir


def cluster_in(home: Path, *, event_log: bool) -> Cluster:
    cluster = Cluster(
        directory=home,
        host="127.0.0.1",
        port=7480,
        nodes=1,
        cores=1,
        memory_mib=1024,
        event_log=event_log,
    )
    cluster.save()
    return cluster


def test_hrm_env_names_the_event_logs_of_hrm_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HRM_HOME", str(tmp_path))
    monkeypatch.delenv("HRM_EVENT_LOG_DIR", raising=False)
    assert "HRM_EVENT_LOG_DIR" not in spark_environment(), "no cluster"
    cluster_in(tmp_path, event_log=True)
    assert spark_environment()["HRM_EVENT_LOG_DIR"] == str(tmp_path / "event-logs")
    monkeypatch.setenv("HRM_EVENT_LOG_DIR", "")
    assert "HRM_EVENT_LOG_DIR" not in spark_environment(), "the user's own word is the last"
    monkeypatch.delenv("HRM_EVENT_LOG_DIR")
    cluster_in(tmp_path, event_log=False)
    assert "HRM_EVENT_LOG_DIR" not in spark_environment()
    known = Cluster.read(tmp_path)
    assert known is not None
    assert not known.event_log


def _properties(directory: Path) -> tuple[list[str], str]:
    """What spark-env.sh adds to Java's argument file, and what it prints."""
    script = (conf_dir() / "spark-env.sh").read_text()
    functions = ""
    for name in ("_hrm_event_log_dir() {", "_hrm_event_log() {"):
        begin = script.index(name)
        functions += script[begin : script.index("\n}\n", begin) + 3]
    done = subprocess.run(
        ["bash", "-c", f"{functions}_hrm_event_log"],
        env={**os.environ, "HRM_EVENT_LOG_DIR": str(directory)},
        capture_output=True,
        text=True,
        timeout=10,
        check=True,
    )
    return done.stdout.splitlines(), done.stderr


def test_odd_directories_reach_java_as_they_are(tmp_path: Path) -> None:
    odd = tmp_path / 'with space, "quotes" and \\'
    odd.mkdir()
    lines, _ = _properties(odd)
    escaped = str(odd).replace("\\", "\\\\").replace('"', '\\"')
    assert lines == ["-Dspark.eventLog.enabled=true", f'"-Dspark.eventLog.dir={escaped}"']


def test_a_directory_that_is_none_is_reported_and_stops_nothing(tmp_path: Path) -> None:
    lines, stderr_text = _properties(tmp_path / "nowhere")
    assert lines == []
    assert "warning: no event log" in stderr_text


def test_old_logs_and_too_many_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "EVENT_LOGS_MAX", 2)
    now = time.time()
    ages_s = {"eventlog_v2_app-1": 40.0 * 86_400, "app-2.zstd": 30.0, "app-3": 20.0, "app-4": 10.0}
    for name, age_s in ages_s.items():
        path = tmp_path / name
        if name.startswith("eventlog"):
            path.mkdir()
            (path / "events_1").touch()
            os.utime(path / "events_1", (now - age_s, now - age_s))
        else:
            path.touch()
        os.utime(path, (now - age_s, now - age_s))
    (tmp_path / "somebody's own").touch()
    assert history.prune(tmp_path, now) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["app-3", "app-4", "somebody's own"]
    assert history.prune(tmp_path / "nowhere", now) == 0


def test_a_log_in_parts_is_as_old_as_its_newest_part(tmp_path: Path) -> None:
    """Spark 4 writes a directory of parts, which itself changes only when a part is begun."""
    now = time.time()
    log = tmp_path / "eventlog_v2_app-1"
    log.mkdir()
    old_s = now - 2 * history.EVENT_LOG_KEEP_S
    for name, at_s in {"appstatus_app-1.inprogress": old_s, "events_1_app-1": now - 10.0}.items():
        (log / name).touch()
        os.utime(log / name, (at_s, at_s))
    os.utime(log, (old_s, old_s))
    assert history.prune(tmp_path, now) == 0
    assert log.is_dir()
    os.utime(log / "events_1_app-1", (old_s, old_s))
    assert history.prune(tmp_path, now) == 1


def test_a_log_that_is_renamed_meanwhile_is_left_for_the_next_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Like Spark's renaming of the log of an application that ends."""
    (tmp_path / "app-1.inprogress").touch()
    found = list(tmp_path.iterdir())
    (tmp_path / "app-1.inprogress").rename(tmp_path / "app-1")
    monkeypatch.setattr(Path, "iterdir", lambda _: iter(found))
    assert history.prune(tmp_path, time.time()) == 0


def test_without_logs_or_with_a_port_in_use_it_states_what_to_type(
    tmp_path: Path, hrm: Callable[..., Result]
) -> None:
    done = hrm("history", "--state-dir", str(tmp_path))
    assert done.exit_code == 1
    assert "name one with --dir" in done.stderr
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = hrm("history", "--dir", str(tmp_path), "--port", str(port))
    assert done.exit_code == 1
    assert "hrm history --port 0" in done.stderr


def test_the_users_options_come_last() -> None:
    environment_found = history.environment(
        Path("/a b"), 1, {"SPARK_HISTORY_OPTS": "-Dspark.history.ui.port=2"}
    )
    options = environment_found["SPARK_HISTORY_OPTS"]
    assert '"-Dspark.history.fs.logDirectory=/a b"' in options
    assert options.index("port=1") < options.index("port=2")
    assert environment_found["SPARK_LOCAL_IP"] == "127.0.0.1"
