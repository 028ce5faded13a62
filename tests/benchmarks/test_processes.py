"""Nothing that a benchmark starts outlives it."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import psutil
import pytest

from benchmarks import processes
from benchmarks.processes import MARK, BenchmarkError

FOREVER = "import signal, sys; print('up', flush=True); signal.pause()"
# Leaves the group of its parent, like a daemon.
DAEMON = (
    "import subprocess, sys; "
    f"subprocess.Popen([sys.executable, '-c', {FOREVER!r}], start_new_session=True)"
)


def _environment(mark: str) -> dict[str, str]:
    return {**os.environ, MARK: mark}


def test_a_process_past_its_limit_is_ended_and_its_log_shown(tmp_path: Path) -> None:
    log = tmp_path / "log"
    started = processes.start(
        [sys.executable, "-c", FOREVER], log=log, environment=_environment("x")
    )
    processes.wait_until(lambda: "up" in processes.tail(log), 20, "the process to start")
    with pytest.raises(BenchmarkError, match=r"ran past its limit of 0 s[^^]*up"):
        started.wait(0.1)
    assert not started.running


def test_what_left_its_group_is_found_by_its_mark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "_LEAVE_S", 0.1)
    mark = processes.new_mark()
    started = processes.start(
        [sys.executable, "-c", DAEMON], log=tmp_path / "log", environment=_environment(mark)
    )
    assert started.wait(20) == 0
    processes.wait_until(lambda: "up" in processes.tail(tmp_path / "log"), 20, "the daemon")
    ended = processes.sweep(mark)
    assert len(ended) == 1
    assert processes.sweep(mark) == []


def test_a_stubborn_group_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_GRACE_S", 0.2)
    ignore = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + FOREVER
    log = tmp_path / "log"
    started = processes.start(
        [sys.executable, "-c", ignore], log=log, environment=_environment("y")
    )
    processes.wait_until(lambda: "up" in processes.tail(log), 20, "the process to start")
    started.end()
    assert not started.running
    started.process.wait(10)
    assert not psutil.pid_exists(started.process.pid)


def test_a_condition_that_never_holds_ends_with_what_was_waited_for() -> None:
    with pytest.raises(BenchmarkError, match="the moon: not within 0 s"):
        processes.wait_until(lambda: False, 0.01, "the moon", interval_s=0.01)


def test_a_second_signal_does_not_interrupt_the_clean_up() -> None:
    cleaned = False
    with pytest.raises(KeyboardInterrupt, match="SIGTERM"), processes.interruptible():
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            signal.raise_signal(signal.SIGTERM)
            cleaned = True
    assert cleaned
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_an_interrupt_ends_what_no_finally_has(tmp_path: Path) -> None:
    log = tmp_path / "log"
    environment = _environment(processes.new_mark())
    started = processes.start([sys.executable, "-c", FOREVER], log=log, environment=environment)
    processes.wait_until(lambda: "up" in processes.tail(log), 20, "the process to start")
    with pytest.raises(KeyboardInterrupt), processes.interruptible():
        os.kill(os.getpid(), signal.SIGTERM)
    started.process.wait(10)
    assert not psutil.pid_exists(started.process.pid)
