"""The parent of one container: starts its command, keeps its logs, leaves nothing behind.

A container must outlive a crash of its agent (executors hold shuffle data and streams' state), and
no process may outlive its container. So each has a small supervisor between agent and command::

    agent ──starts──► shim (own session, subreaper) ──► command (own session, own cgroups)
                        │ pumps stdout, stderr into rotated files
                        └ exit.json, written once, when the last process of the container is gone

Agent and shim communicate by signals and files in the work directory, so an adopted container is
handled like one of the agent's own:

    spec.json      agent → shim   what to run, with secrets: mode 0600, removed once read
    process.json   shim → agent   pids and start times, written when the command runs
    stop.json      agent → shim   the grace period, whether to decommission and by which signal,
                                  read on SIGTERM (optional)
    exit.json      shim → agent   how it ended

On SIGTERM the command's process group gets SIGTERM and, after the grace period, everything gets
SIGKILL. To decommission, the command alone gets SIGPWR, or the signal that its application has
chosen, on which Spark's executors hand over their blocks and end. When the shim itself is killed,
the kernel kills the command (parent-death signal) and the agent the rest, which was reparented to
the shim.

With an ``account`` the command alone becomes that user, with no way back. The shim and the
directory of the files above keep the agent's user, or the container could signal the one and
replace the others by links. What the command may write lies one level below.

A shim may be started before its container is known (``waits``: see ``hrm.agent.startup.warm``).
Then the order comes as one line of JSON on its standard input; the end of input without one, as
when the agent dies, ends everything. Workers of pipelines, which end with their agent, have no
shim, but become their user by the same code (``shim.py --become ACCOUNT COMMAND...``).

This file runs by itself (``python -I -S shim.py spec.json``): standard library only, one thread,
about 8 MiB, outside of the container's cgroups.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import operator
import os
import resource
import selectors
import signal
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

__all__ = [
    "BECOME",
    "EXIT_FILE",
    "PROCESS_FILE",
    "SPEC_FILE",
    "STOP_FILE",
    "boot_id",
    "descendants",
    "main",
    "rotated",
    "start_ticks",
    "write_json",
]

BECOME = "--become"
SPEC_FILE = "spec.json"
PROCESS_FILE = "process.json"
STOP_FILE = "stop.json"
EXIT_FILE = "exit.json"

_PR_SET_PDEATHSIG = 1
_PR_CAPBSET_DROP = 24
_PR_SET_NO_NEW_PRIVS = 38
_PR_CAP_AMBIENT = 47
_PR_CAP_AMBIENT_CLEAR_ALL = 4
_CAPABILITIES_MAX = 64
_UMASK = 0o077
_PR_SET_CHILD_SUBREAPER = 36
_CHUNK_BYTES = 65_536
_REAP_LIMIT_S = 10.0
_REAP_PERIOD_S = 0.01
_DRAIN_LIMIT_S = 2.0
_ORDER_LIMIT_S = 10.0
_ORDER_PERIOD_S = 0.005


def boot_id() -> str:
    """Names this boot of the machine: pids and start times mean nothing across two."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _stat(pid: int) -> list[str] | None:
    """Fields of ``/proc/<pid>/stat`` after the name: state, ppid, pgrp, session, ..."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    return text.rpartition(")")[2].split()


def start_ticks(pid: int) -> int | None:
    """When the process started, clock ticks since boot; None: no such process, or a zombie."""
    fields = _stat(pid)
    if fields is None or fields[0] in "ZX":
        return None
    return int(fields[19])


def descendants(root: int) -> list[int]:
    """Every living process below ``root``, parents first; zombies are left out."""
    children: dict[int, list[int]] = {}
    zombies = set()
    for entry in os.listdir("/proc"):  # noqa: PTH208 - ten times as fast, and runs in a loop
        if not entry.isdigit():
            continue
        fields = _stat(int(entry))
        if fields is None:
            continue
        children.setdefault(int(fields[1]), []).append(int(entry))
        if fields[0] in "ZX":
            zombies.add(int(entry))
    found: list[int] = []
    waiting = [root]
    while waiting:
        below = children.get(waiting.pop(), [])
        found.extend(pid for pid in below if pid not in zombies)
        waiting.extend(below)
    return found


def write_json(path: Path, document: dict[str, Any], mode: int = 0o600) -> None:
    """Write ``document`` so that a reader sees all of it or nothing.

    Not flushed to the disk: these files are void once the machine goes down.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(descriptor, "w") as file:
        json.dump(document, file)
    partial.replace(path)


def rotated(path: Path, number: int) -> Path:
    """The ``number``-th older file of a log: ``stdout.1`` is the newest of them."""
    return path if number == 0 else path.with_name(f"{path.name}.{number}")


class CappedLog:
    """An append-only file that becomes ``name.1`` when full; at most ``files_max`` older ones."""

    def __init__(
        self, path: Path, bytes_max: int, files_max: int, account: dict[str, Any] | None = None
    ) -> None:
        """``account``: the owner of the file; None: the shim's."""
        self._path = path
        self._bytes_max = bytes_max
        self._files_max = files_max
        self._account = account
        self._open()

    def restart(self, path: Path, bytes_max: int, files_max: int) -> None:
        """Continue at ``path``, to which the file was moved, with new bounds and no old content."""
        self._path, self._bytes_max, self._files_max = path, bytes_max, files_max
        os.ftruncate(self._fd, 0)
        self._size = 0

    def _open(self) -> None:
        self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        if self._account is not None:
            os.fchown(self._fd, self._account["uid"], self._account["gid"])
        self._size = os.fstat(self._fd).st_size

    def write(self, data: bytes) -> None:
        """Write ``data``. A full disk loses output, never the container."""
        while data:
            try:
                if self._size >= self._bytes_max:
                    self._rotate()
                bytes_left = self._bytes_max - self._size
                written = os.write(self._fd, data[:bytes_left])
            except OSError:
                return
            self._size += written
            data = data[written:]

    def _rotate(self) -> None:
        for number in range(self._files_max - 1, -1, -1):
            with contextlib.suppress(FileNotFoundError):
                rotated(self._path, number).replace(rotated(self._path, number + 1))
        os.close(self._fd)
        self._open()


def _become(account: dict[str, Any], libc: ctypes.CDLL) -> None:
    """Turn this process into one of the account's, with no way back.

    Raises:
        OSError: the kernel refused a step, or some privilege is left.
    """
    for capability in range(_CAPABILITIES_MAX):
        if libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0) != 0:
            break  # the first number that this kernel does not have
    libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    os.setgroups(account["groups"])
    os.setresgid(*[account["gid"]] * 3)
    os.setresuid(*[account["uid"]] * 3)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "no_new_privs is not available")
    os.umask(_UMASK)
    left = _capabilities()
    if left or os.getresuid() != (account["uid"],) * 3 or os.getresgid() != (account["gid"],) * 3:
        raise OSError(0, f"the kernel left capabilities {left:#x} or other ids")


def _rank_session(pid: int, nice: int) -> None:
    """Where the kernel shares cores among sessions (autogroup), ``nice`` ranks a process only
    within its own; this ranks the session. ``pid`` 0: this process's own."""
    with contextlib.suppress(OSError):
        Path(f"/proc/{pid or 'self'}/autogroup").write_text(str(nice))


def _raise_priority(pid: int) -> None:
    """Raise a process from its low background priority to the shim's own."""
    _rank_session(pid, 0)
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, int(task.name), os.getpriority(os.PRIO_PROCESS, 0))


def _capabilities() -> int:
    """The capabilities that this process has, or could gain by an exec."""
    sets = ("CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:")
    lines = (x.split() for x in Path("/proc/self/status").read_text().splitlines())
    return functools.reduce(operator.or_, (int(x[1], 16) for x in lines if x[0] in sets), 0)


class Shim:
    """One run of one container."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self._spec = spec
        self._dir = Path(spec["work_dir"])
        self._selector = selectors.DefaultSelector()
        self._logs: dict[int, CappedLog] = {}
        self._child = 0
        self._status: int | None = None
        self._kill_at: float | None = None
        self._stopped = False
        self._killed = False
        self._waits = bool(spec.get("waits"))
        self._order = b""
        self._input = os.pipe2(os.O_CLOEXEC) if self._waits else None
        self._wakeup, self._wakeup_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def run(self) -> None:
        self._become_supervisor()
        problem = self._start()
        if problem is not None:
            self._write_exit(error=problem)
            self._report({"error": problem})
            return
        if self._waits and (problem := self._await_order()):
            self._end_everything()
            self._report({"error": problem})
            return
        self._report(self._write_process())
        while self._status is None:
            self._turn()
        self._end_everything()
        self._drain()
        self._write_exit()

    def _become_supervisor(self) -> None:
        with contextlib.suppress(OSError):
            os.setsid()
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")
        for ignored in (signal.SIGHUP, signal.SIGINT):
            signal.signal(ignored, signal.SIG_IGN)
        signal.set_wakeup_fd(self._wakeup_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, lambda *_: None)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._selector.register(self._wakeup, selectors.EVENT_READ)

    def _start(self) -> str | None:
        """Fork and exec the command; the reason when that failed."""
        outputs = {name: os.pipe2(os.O_CLOEXEC) for name in ("stdout", "stderr")}
        report, report_write = os.pipe2(os.O_CLOEXEC)
        shim = os.getpid()
        self._child = os.fork()
        if self._child == 0:
            self._exec(shim, outputs["stdout"][1], outputs["stderr"][1], report_write)
        os.close(report_write)
        for name, (read, write) in outputs.items():
            os.close(write)
            os.set_blocking(read, False)
            self._logs[read] = CappedLog(
                self._dir / name,
                self._spec["log_bytes_max"],
                self._spec["log_files_max"],
                self._spec.get("account"),
            )
            self._selector.register(read, selectors.EVENT_READ)
        with os.fdopen(report) as file:
            problem = file.read()  # ends when exec closes the pipe, or the child dies
        if not problem:
            return None
        os.waitpid(self._child, 0)
        return problem

    def _exec(self, shim: int, stdout: int, stderr: int, report: int) -> NoReturn:
        """In the child: become the command."""
        step = "prepare"
        try:
            os.setsid()
            libc = ctypes.CDLL(None, use_errno=True)
            for path in self._spec["cgroup_files"]:
                step = f"join the cgroup {path}"
                Path(path).write_text("0")
            if (files_max := self._spec.get("files_max")) is not None:
                _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
                resource.setrlimit(resource.RLIMIT_NOFILE, (files_max, hard))
            if (account := self._spec.get("account")) is not None:
                step = f"become uid {account['uid']}"
                _become(account, libc)
            step = "prepare"
            # Only now: the kernel forgets it when ids change.
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != shim:
                os._exit(127)
            null = self._input[0] if self._input else os.open(os.devnull, os.O_RDONLY)
            nice = self._spec.get("nice", 0)
            if self._waits and nice and os.geteuid() == 0:  # others could not take it back
                os.nice(nice)
                _rank_session(0, nice)
            for source, target in ((null, 0), (stdout, 1), (stderr, 2)):
                os.dup2(source, target)
            signal.set_wakeup_fd(-1)
            for number in (
                signal.SIGHUP,
                signal.SIGINT,
                signal.SIGQUIT,  # a shell that starts an agent in the background ignores it
                signal.SIGPIPE,
                signal.SIGXFSZ,
                signal.SIGTERM,
                signal.SIGCHLD,
            ):
                signal.signal(number, signal.SIG_DFL)
            step = f"enter {self._spec['cwd']}"
            os.chdir(self._spec["cwd"])
            argv = self._spec["argv"]
            step = f"execute {argv[0]}"
            os.execvpe(argv[0], argv, self._spec["environment"])  # noqa: S606 - no shell wanted
        except BaseException as error:
            reason = error.strerror if isinstance(error, OSError) else repr(error)
            with contextlib.suppress(OSError):
                os.write(report, f"cannot {step}: {reason}".encode())
        os._exit(127)

    def _await_order(self) -> str:
        """Turn the command into the ordered one; returns the reason if that is impossible."""
        assert self._input is not None
        os.close(self._input[0])
        os.set_blocking(0, False)
        self._selector.register(0, selectors.EVENT_READ)
        while self._status is None and self._waits and not self._order.endswith(b"\n"):
            self._turn()
        self._selector.unregister(0)
        if self._status is not None or not self._order.endswith(b"\n"):
            return "it ended before its container needed it"
        order = json.loads(self._order)
        self._order = b""
        self._dir = Path(order["work_dir"])
        self._spec.update(order)
        for name, log in zip(("stdout", "stderr"), self._logs.values(), strict=False):
            log.restart(self._dir / name, order["log_bytes_max"], order["log_files_max"])
        for path in order["cgroup_files"]:
            Path(path).write_text(str(self._child))
        _raise_priority(self._child)
        return self._write_input(self._input[1], order["input"].encode())

    def _write_input(self, pipe: int, data: bytes) -> str:
        """Write the command's input while reading its logs; returns why that failed.

        The pipe does not block: a command that hangs must not hang this process.
        """
        os.set_blocking(pipe, False)
        deadline = time.monotonic() + _ORDER_LIMIT_S
        try:
            while data:
                with contextlib.suppress(BlockingIOError):
                    data = data[os.write(pipe, data) :]
                    continue
                if time.monotonic() > deadline:
                    return f"it did not read its order within {_ORDER_LIMIT_S:g} s"
                self._turn(_ORDER_PERIOD_S)
        except BrokenPipeError:
            return "it ended as it was to read its order"
        finally:
            os.close(pipe)
        return ""

    def _listen(self) -> None:
        data = os.read(0, _CHUNK_BYTES)
        self._order += data
        self._waits = bool(data)

    def _write_process(self) -> dict[str, Any]:
        document = {
            "boot_id": boot_id(),
            "shim_pid": os.getpid(),
            "shim_start_ticks": start_ticks(os.getpid()),
            "pid": self._child,
            "start_ticks": start_ticks(self._child),
            "started_at_s": time.time(),
        }
        write_json(self._dir / PROCESS_FILE, document)
        return document

    def _report(self, document: dict[str, Any]) -> None:
        """Report to the agent that waits at the other end of stdout, then close it."""
        with contextlib.suppress(OSError):
            os.write(1, (json.dumps(document) + "\n").encode())
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)

    def _turn(self, timeout_s: float | None = None) -> None:
        """Wait for output or a signal, and deal with what came."""
        if timeout_s is None and self._kill_at is not None:
            timeout_s = max(0.0, self._kill_at - time.monotonic())
        for key, _ in self._selector.select(timeout_s):
            if key.fd == self._wakeup:
                for number in os.read(self._wakeup, 4096):
                    if number == signal.SIGTERM:
                        self._stop()
            elif key.fd == 0:
                self._listen()
            else:
                self._pump(key.fd)
        self._reap()
        if self._kill_at is not None and time.monotonic() >= self._kill_at:
            self._kill_at = None
            self._killed = self._status is None
            self._kill_all()

    def _pump(self, descriptor: int) -> bool:
        """Move what is available from a pipe to its log; False: the pipe has ended."""
        try:
            data = os.read(descriptor, _CHUNK_BYTES)
        except BlockingIOError:
            return True
        if data:
            self._logs[descriptor].write(data)
            return True
        self._selector.unregister(descriptor)
        os.close(descriptor)
        del self._logs[descriptor]
        return False

    def _stop(self) -> None:
        """Pass the order on: to all processes, or, to decommission, to the command alone, which
        ends its helpers when it is done."""
        self._stopped = True
        grace_s, decommission, number = self._spec["grace_s"], False, signal.SIGPWR
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            order = json.loads((self._dir / STOP_FILE).read_text())
            grace_s = float(order["grace_s"])
            decommission = bool(order.get("decommission"))
            number = signal.Signals[f"SIG{order.get('signal') or 'PWR'}"]
        kill_at = time.monotonic() + max(0.0, grace_s)
        self._kill_at = kill_at if self._kill_at is None else min(kill_at, self._kill_at)
        with contextlib.suppress(ProcessLookupError):
            if decommission:
                os.kill(self._child, number)
            else:
                os.killpg(self._child, signal.SIGTERM)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self._child:
                self._status = status

    def _members(self) -> set[int]:
        members = set(descendants(os.getpid()))
        for path in self._spec["cgroup_files"]:
            with contextlib.suppress(OSError, ValueError):
                pids = {int(line) for line in Path(path).read_text().split()}
                members |= {pid for pid in pids if start_ticks(pid) is not None}
        return members - {os.getpid(), 0}

    def _kill_all(self) -> bool:
        """SIGKILL to everything of this container; False: nothing was left."""
        members = self._members()
        for pid in members:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return bool(members)

    def _end_everything(self) -> None:
        """After the command's end: kill until no process of the container is left."""
        deadline = time.monotonic() + _REAP_LIMIT_S
        while self._kill_all() and time.monotonic() < deadline:
            self._turn(_REAP_PERIOD_S)
        self._reap()

    def _drain(self) -> None:
        """Read what the last writers left in the pipes."""
        deadline = time.monotonic() + _DRAIN_LIMIT_S
        while self._logs and time.monotonic() < deadline:
            self._turn(_REAP_PERIOD_S)

    def _write_exit(self, error: str = "") -> None:
        status = self._status
        number = os.WTERMSIG(status) if status is not None and os.WIFSIGNALED(status) else 0
        code = 128 + number if number else (os.WEXITSTATUS(status) if status is not None else -1)
        document = {
            "exit_code": code,
            "signal": number,
            "ended_at_s": time.time(),
            "stopped": self._stopped,
            "killed": self._killed,
            "error": error,
        }
        write_json(self._dir / EXIT_FILE, document)


def _become_and_execute(account: dict[str, Any], argv: list[str]) -> int:
    """Execute ``argv`` as another user, with the rules of containers and without a supervisor: for
    processes that must not outlive the agent. One line of JSON on stdout if that fails."""
    step = f"become uid {account['uid']}"
    try:
        _become(account, ctypes.CDLL(None, use_errno=True))
        for number in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        step = f"execute {argv[0]} as uid {account['uid']}"
        os.execv(argv[0], argv)  # noqa: S606 - no shell wanted
    except OSError as error:
        os.write(1, (json.dumps({"error": f"cannot {step}: {error.strerror}"}) + "\n").encode())
    return 127


def main(argv: list[str]) -> int:
    """Run the container that the spec file ``argv[1]`` describes, to its end; or, after
    ``BECOME``, be the command ``argv[3:]`` of the account ``argv[2]``."""
    if argv[1] == BECOME:
        return _become_and_execute(json.loads(argv[2]), argv[3:])
    path = Path(argv[1])
    spec = json.loads(path.read_text())
    path.unlink()
    Shim(spec).run()
    return 0


if __name__ == "__main__":
    # The node's capacity is free once this process has ended, and taking an interpreter apart lasts
    # longer than all else between two containers. Nothing here is left in a buffer.
    os._exit(main(sys.argv))
