"""Supervisors as seen by their agent: started, read, found again, signalled, ended.

An agent finds a container's shim (``hrm.agent.containers.shim``) in one of two ways: as its child,
whose first report it reads from a pipe; or by the pid and start time that an earlier agent's shim
recorded. Both yield a pidfd: it becomes readable when that very process ends, whether it is a child
or not, and never confuses two processes with the same number.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import structlog

from hrm.agent.containers import shim

__all__ = [
    "MARK",
    "find",
    "give_up",
    "is_of_this_boot",
    "kill_marked",
    "read_report",
    "send_signal",
    "start",
]

MARK = "HRM_CONTAINER_ID"
_START_LIMIT_S = 30.0
_REMAINS_LIMIT_S = 5.0
_REMAINS_PERIOD_S = 0.05
_log = structlog.get_logger("hrm.agent.containers")


def start(
    directory: Path, document: dict[str, Any], *, stdin: int = subprocess.DEVNULL
) -> subprocess.Popen[bytes]:
    """Start a shim on ``document``, what it is to run (see ``hrm.agent.containers.shim``); its
    report comes from ``read_report``.

    Raises:
        OSError: the process cannot be created, or there is no space for the document.
    """
    shim.write_json(directory / shim.SPEC_FILE, document)
    with (directory / "shim.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-I", "-S", shim.__file__, str(directory / shim.SPEC_FILE)],
            bufsize=0,  # a buffer would be written again to a broken pipe
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=log,
            cwd="/",
            env={"PATH": os.defpath, "LANG": "C.UTF-8"},
        )


def read_report(process: subprocess.Popen[bytes]) -> dict[str, Any]:
    """The shim's one line: the running command's pids, or ``error``."""
    assert process.stdout is not None
    with process.stdout as pipe:
        waiting = select.poll()  # select.select knows no descriptor beyond 1,023
        waiting.register(pipe, select.POLLIN)
        if not waiting.poll(1000 * _START_LIMIT_S):
            return {"error": f"its supervisor did not respond within {_START_LIMIT_S:.0f} s"}
        line = pipe.readline()
    try:
        document = json.loads(line)
    except ValueError:
        return {
            "error": "its supervisor ended during its start; see shim.log in the work directory"
        }
    return document if isinstance(document, dict) else {"error": "a garbled report"}


def give_up(process: subprocess.Popen[bytes]) -> None:
    """Wait for the end of a shim that did not start. One that even SIGKILL cannot end (it hangs in
    the kernel) is abandoned: its container has failed either way."""
    for last_try in (False, True):
        if last_try:
            process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=_REMAINS_LIMIT_S)
            return
    _log.error("a supervisor survives SIGKILL; letting go of it", pid=process.pid)


def send_signal(pidfd: int, number: int) -> None:
    """Send a signal; no error if the process has ended."""
    with contextlib.suppress(ProcessLookupError, OSError):
        signal.pidfd_send_signal(pidfd, number)


def find(process: dict[str, Any]) -> int | None:
    """A pidfd of the shim that ``process.json`` records, if that very process lives."""
    if not is_of_this_boot(process):
        return None
    try:
        pidfd = os.pidfd_open(int(process["shim_pid"]))
    except (OSError, KeyError, ValueError):
        return None
    # Compared after opening: from here on the number cannot change hands unnoticed.
    if shim.start_ticks(int(process["shim_pid"])) != process.get("shim_start_ticks"):
        os.close(pidfd)
        return None
    return pidfd


def is_of_this_boot(process: dict[str, Any]) -> bool:
    """Has the machine run on since ``process.json`` was written?"""
    return bool(process.get("boot_id") == shim.boot_id())


def kill_marked(mark: str) -> None:
    """Kill every process that carries this mark in its environment: a container's id, or what an
    agent gives to its workers of pipelines."""
    deadline = time.monotonic() + _REMAINS_LIMIT_S
    while time.monotonic() < deadline:
        marked = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if process.environ().get(MARK) == mark:
                    marked.append(process)
        if not marked:
            return
        for process in marked:
            with contextlib.suppress(psutil.Error):
                process.kill()
        time.sleep(_REMAINS_PERIOD_S)
