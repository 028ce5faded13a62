"""Processes with a time limit each, none of which is left behind.

A process gets a session of its own, so that its whole group can be ended at once. Processes that
leave the group (daemons, executors) still carry a mark in their environment, ``HRM_BENCH_MARK``;
``sweep`` ends, one process id at a time, all that have it.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from benchmarks.common import note

__all__ = [
    "MARK",
    "BenchmarkError",
    "Started",
    "exit_status",
    "free_port",
    "in_directory",
    "interruptible",
    "new_mark",
    "processor_s",
    "start",
    "sweep",
    "sweep_all",
    "tail",
    "wait_until",
]

MARK = "HRM_BENCH_MARK"
_GRACE_S = 8.0
_LEAVE_S = 5.0


class BenchmarkError(Exception):
    """A run that cannot count: a process failed, a result is wrong, a limit was exceeded."""


_marks: list[str] = []


def new_mark() -> str:
    """A mark that no other process on this machine has."""
    _marks.append(uuid.uuid4().hex)
    return _marks[-1]


def free_port() -> int:
    """A port of the loopback interface that was free a moment ago."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def tail(path: Path, lines: int = 25) -> str:
    """The last lines of a log, for an error message."""
    try:
        return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])
    except OSError as error:
        return f"({path} cannot be read: {error})"


def wait_until(
    condition: Callable[[], bool], timeout_s: float, what: str, interval_s: float = 0.1
) -> None:
    """Return once ``condition()`` holds.

    Raises:
        BenchmarkError: it did not within ``timeout_s``.
    """
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise BenchmarkError(f"{what}: not within {timeout_s:.0f} s")
        time.sleep(interval_s)


class Started:
    """A process in a group of its own, its output in a file."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path, command: Sequence[str]) -> None:
        self.process = process
        self.log = log
        self.command = list(command)
        self.started_at_s = time.time()

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def wait(self, timeout_s: float) -> int:
        """Its exit status.

        Raises:
            BenchmarkError: it ran past ``timeout_s`` and was ended.
        """
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired as error:
            self.end()
            raise BenchmarkError(
                f"{self.command[0]} ran past its limit of {timeout_s:.0f} s; the end of its log:\n"
                f"{tail(self.log)}"
            ) from error

    def end(self) -> None:
        """End the whole group, by SIGTERM first."""
        for number, grace_s in ((signal.SIGTERM, _GRACE_S), (signal.SIGKILL, 5.0)):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(grace_s)
                if not _group_alive(self.process.pid):
                    return


def _group_alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def start(
    command: Sequence[str],
    *,
    log: Path,
    environment: Mapping[str, str],
    output: Path | None = None,
    directory: Path | None = None,
) -> Started:
    """Start ``command`` in a group of its own, in ``directory`` where one is given.

    Standard error goes to ``log``, standard output to ``output`` (or to ``log`` as well).
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as files:
        errors = files.enter_context(log.open("ab"))
        out: Any = files.enter_context(output.open("wb")) if output else subprocess.STDOUT
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out if output else errors,
            stderr=errors if output else out,
            env=dict(environment),
            cwd=directory,
            start_new_session=True,
        )
    return Started(process, log, command)


def _marked(mark: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and process.environ().get(MARK) == mark:
                found.append(process)
        except (psutil.Error, OSError):
            continue
    return found


def processor_s(directory: Path, name: str) -> float:
    """Processor time so far of the live processes of that name that work below ``directory``."""
    total_s = 0.0
    for process in psutil.process_iter(["name"]):
        with contextlib.suppress(psutil.Error, OSError):
            if process.info["name"] == name and Path(process.cwd()).is_relative_to(directory):
                total_s += sum(process.cpu_times()[:2])
    return total_s


def sweep(mark: str) -> list[str]:
    """End all processes that carry ``mark``; returns the command lines that had to be ended.

    Processes that are about to end by themselves get a few seconds for it.
    """
    names = []
    _, left = psutil.wait_procs(_marked(mark), timeout=_LEAVE_S)
    for process in left:
        with contextlib.suppress(psutil.Error):
            names.append(" ".join(process.cmdline())[:120])
            process.terminate()
    _, stubborn = psutil.wait_procs(left, timeout=_GRACE_S)
    for process in stubborn:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(stubborn, timeout=5.0)
    return names


def sweep_all() -> None:
    """``sweep`` for every mark of this process: what an interrupt has kept a ``finally`` from
    ending, as one in the midst of an event loop may."""
    while _marks:
        sweep(_marks.pop())


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """SIGTERM and SIGHUP unwind the stack as Ctrl-C does, so that every ``finally`` runs; what is
    left after it, or after Ctrl-C, is ended, too.

    Only the first signal does: ``timeout`` sends two, and the second would interrupt the cleanup.
    """
    numbers = (signal.SIGTERM, signal.SIGHUP)

    def unwind(number: int, _frame: object) -> None:
        for one in numbers:
            signal.signal(one, signal.SIG_IGN)
        raise KeyboardInterrupt(signal.Signals(number).name)

    before = {number: signal.signal(number, unwind) for number in numbers}
    try:
        yield
    except KeyboardInterrupt:
        sweep_all()
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def in_directory(prefix: str, work: Callable[[Path], int], *, keep: bool) -> int:
    """Do ``work`` in a new directory, which is kept if that fails; returns the exit status.

    1: it failed or returned 1; 130: it was interrupted.
    """
    directory = Path(tempfile.mkdtemp(prefix=prefix))
    status = 1
    try:
        with interruptible():
            status = work(directory)
    except BenchmarkError as error:
        note(f"error: {error}")
    except KeyboardInterrupt:
        note("interrupted; everything that was started has been ended")
        status = 130
    finally:
        if keep or status == 1:
            note(f"logs are in {directory}")
        else:
            shutil.rmtree(directory, ignore_errors=True)
    return status


def exit_status(measure: Callable[[argparse.Namespace], object], given: argparse.Namespace) -> int:
    """The exit status of a benchmark that starts nothing: 0, it has measured everything; 1, it
    failed; 130, it was interrupted."""
    try:
        measure(given)
    except BenchmarkError as error:
        note(f"error: {error}")
        return 1
    except KeyboardInterrupt:
        note("interrupted; nothing was written")
        return 130
    return 0
