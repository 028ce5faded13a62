"""The process that keeps a user's warm drivers: it interprets the pool with real processes.

It listens on a Unix socket in a directory of mode 0700, talks to processes of its own user alone,
and starts a ``holder`` for each JVM. What an application has taken is its holder's, and goes on
when this process ends; what waits ends with it. ::

    $HRM_HOME/warm/address    the socket's path: where clients look, mode 0600
    $HRM_HOME/warm/lock       held while a server runs
    $HRM_HOME/warm/log        what it has done
    /tmp/hrm-warm-*/          the socket, and a log for each JVM that waits

One thread, one loop. No client can hold it up: sockets do not block, and a client that has not said
what it wants within ``CLIENT_LIMIT_S`` is dropped.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import math
import os
import select
import selectors
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import structlog

from hrm.address import state_home
from hrm.errors import HrmError, Unavailable
from hrm.spark.warm import pool
from hrm.spark.warm.client import VERSION, Frames, frame, peer_uid, surroundings
from hrm.spark.warm.kind import DriverKind, StartRequest, kind_of, request_of
from hrm.spark.warm.pool import WarmDriverPool

__all__ = ["ADDRESS_FILE", "CLIENT_LIMIT_S", "WarmServer", "main", "place"]

ADDRESS_FILE = "address"
CLIENT_LIMIT_S = 5.0
CLIENTS_MAX = 64
IDLE_WAIT_MAX_S = 60.0
_IDLE_PERIOD_S = 1.0
_HOLDER_LIMIT_S = 1.0
_CHUNK_BYTES = 65_536
_TAIL_BYTES = 4096
_PREFIX = "hrm-warm-"
_log = structlog.get_logger("hrm.warm")


def place() -> Path:
    """The directory of the user's warm server."""
    return state_home() / "warm"


@dataclass(slots=True)
class _Client:
    connection: socket.socket
    until_s: float
    frames: Frames = field(default_factory=Frames)


@dataclass(slots=True)
class _Jvm:
    """A holder, and what it has reported."""

    kind: DriverKind
    control: socket.socket
    pid: int
    log: Path
    frames: Frames = field(default_factory=Frames)
    why: str = ""
    ready: bool = False
    taken: bool = False


class WarmServer:
    """``directory``: of the socket and of logs; it exists, and is closed to others."""

    def __init__(
        self,
        bounds: pool.WarmBounds,
        directory: Path,
        idle_s: Callable[[], float] = lambda: float(psutil.cpu_times().idle),
    ) -> None:
        """``idle_s``: seconds that cores have been idle since the machine started."""
        self._pool = WarmDriverPool(bounds)
        self._directory = directory
        self._own = surroundings()
        self._selector = selectors.DefaultSelector()
        self._clients: dict[int, _Client] = {}
        self._requests: dict[int, tuple[StartRequest, socket.socket]] = {}
        self._number = 0
        self._jvms: dict[int, _Jvm] = {}
        self._released: list[int] = []
        """Holders that belong to applications, until they have ended."""
        self._idle_s = idle_s
        self._to_start: tuple[pool.StartJvm, float, float, float] | None = None
        self._stopping = False
        self.address = directory / "socket"
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(self.address))
        self._listener.listen(CLIENTS_MAX)
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)

    def run(self) -> None:
        """Until ``stop`` is called, or a client asks for that."""
        while not self._stopping:
            for key, _ in self._selector.select(self._limit_s()):
                key.data()
            now = time.monotonic()
            for number in [n for n, x in self._clients.items() if now > x.until_s]:
                self._drop(number)
            if now >= self._pool.wake_at_s():
                self.handle(pool.PoolTicked(now=now))
            self._start_if_idle(now)
            self._released = [x for x in self._released if os.waitpid(x, os.WNOHANG)[0] == 0]
        self.handle(pool.PoolStopped(now=time.monotonic()))
        for jvm in list(self._jvms.values()):
            self._end(jvm)
        for number in list(self._clients):
            self._drop(number)
        self._listener.close()
        self._selector.close()

    def stop(self) -> None:
        """From a handler of signals, too."""
        self._stopping = True

    def wake_with(self, descriptor: int) -> None:
        """Look up when there is something to read: a signal has come."""
        self._selector.register(
            descriptor, selectors.EVENT_READ, lambda: os.read(descriptor, _CHUNK_BYTES)
        )

    def _limit_s(self) -> float | None:
        times = [self._pool.wake_at_s(), *(x.until_s for x in self._clients.values())]
        if self._to_start is not None:
            times.append(time.monotonic() + _IDLE_PERIOD_S)
        first = min(times)
        return None if first == math.inf else max(0.0, first - time.monotonic())

    # Clients.

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return
        if peer_uid(connection) != os.geteuid() or len(self._clients) >= CLIENTS_MAX:
            connection.close()
            return
        connection.setblocking(False)
        self._number += 1
        number = self._number
        self._clients[number] = _Client(connection, time.monotonic() + CLIENT_LIMIT_S)
        self._selector.register(connection, selectors.EVENT_READ, lambda: self._hear(number))

    def _hear(self, number: int) -> None:
        client = self._clients.get(number)
        if client is None:
            return  # dropped in the same turn
        try:
            data = client.connection.recv(_CHUNK_BYTES)
            messages = client.frames.feed(data)
        except BlockingIOError:
            return
        except (OSError, ValueError):
            data, messages = b"", []
        if messages:
            self._selector.unregister(client.connection)
            del self._clients[number]
            self._answer(number, messages[0], client.connection)
        elif not data:
            self._drop(number)

    def _drop(self, number: int) -> None:
        client = self._clients.pop(number)
        self._selector.unregister(client.connection)
        client.connection.close()

    def _answer(self, number: int, message: dict[str, Any], connection: socket.socket) -> None:
        if "ask" in message:
            self._inform(message["ask"], connection)
            return
        kind: DriverKind | str
        try:
            if message.get("version") != VERSION:
                raise Unavailable(
                    "hrm warm runs another version of HRM; type hrm warm --stop, then hrm warm"
                )
            request = request_of(message)
            kind = kind_of(request, self._own, sys.executable)
        except HrmError as error:
            kind = error.message
        now = time.monotonic()
        if isinstance(kind, str):
            _reply(connection, {"cold": kind})
        elif message.get("keep"):
            _reply(connection, {"kept": True})
            self.handle(pool.KindKept(now=now, kind=kind))
        else:
            self._requests[number] = (request, connection)
            self.handle(pool.DriverRequested(now=now, request=number, kind=kind))

    def _inform(self, what: str, connection: socket.socket) -> None:
        if what == "stop":
            self._stopping = True
            _reply(connection, {"stopping": True})
            return
        kinds = [
            {
                "directory": shown.kind.cwd,
                "memory": shown.kind.memory,
                "ready": shown.ready,
                "starting": shown.starting,
                "used": shown.used,
                "missed": shown.missed,
                "memory_mib": shown.memory_mib,
                "problem": shown.problem,
            }
            for shown in self._pool.shown()
            if isinstance(shown.kind, DriverKind)
        ]
        _reply(connection, {"pid": os.getpid(), "kinds": kinds})

    # The pool's commands.

    def handle(self, event: pool.Event) -> None:
        """Carry out what follows from an event. From the thread that runs it, or before that."""
        for command in self._pool.handle(event):
            match command:
                case pool.StartJvm():
                    now = time.monotonic()
                    self._to_start = (command, now, now, self._idle_s())
                case pool.HandJvm():
                    self._hand(command)
                case pool.StartCold():
                    _, connection = self._requests.pop(command.request)
                    _reply(connection, {"cold": command.why})
                case pool.EndJvm():
                    self._give_up(command.jvm)

    def _start_if_idle(self, now: float) -> None:
        """What is requested goes first: start a JVM when a core is idle, or after some time."""
        if self._to_start is None:
            return
        command, since_s, sampled_at_s, idle_s = self._to_start
        if now - sampled_at_s < _IDLE_PERIOD_S:
            return
        idle_now_s = self._idle_s()
        wanted = min(1.0, (psutil.cpu_count() or 1) / 2)
        if idle_now_s - idle_s < wanted * (now - sampled_at_s) and now - since_s < IDLE_WAIT_MAX_S:
            self._to_start = (command, since_s, now, idle_now_s)
            return
        self._to_start = None
        assert isinstance(command.kind, DriverKind)
        try:
            self._start(command.jvm, command.kind)
        except OSError as error:
            why = f"it cannot be started: {error.strerror}"
            self.handle(pool.JvmEnded(now=now, jvm=command.jvm, why=why))

    def _start(self, number: int, kind: DriverKind) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            jvm = _Jvm(kind, ours, _spawn(theirs), self._directory / f"jvm-{number}.log")
        self._jvms[number] = jvm
        ours.settimeout(_HOLDER_LIMIT_S)
        spec = {
            "arguments": kind.arguments,
            "environment": dict(kind.environment),
            "cwd": kind.cwd,
            "log": str(jvm.log),
        }
        ours.sendall(frame(spec))
        self._selector.register(ours, selectors.EVENT_READ, lambda: self._listen(number))
        _log.info("a warm driver starts", jvm=number, directory=kind.cwd)

    def _listen(self, number: int) -> None:
        jvm = self._jvms.get(number)
        if jvm is None:
            return  # given up in the same turn
        try:
            data = jvm.control.recv(_CHUNK_BYTES)
        except OSError:
            data = b""
        now = time.monotonic()
        for message in jvm.frames.feed(data):
            if "ready" in message:
                jvm.ready = True
                self.handle(pool.JvmReady(now=now, jvm=number, memory_mib=_memory_mib(jvm.pid)))
            elif "declined" in message:
                jvm.why = str(message["declined"])
                self.handle(pool.JvmDeclined(now=now, jvm=number, why=jvm.why))
            elif "taken" in message:
                jvm.taken = True
                self.handle(pool.JvmTaken(now=now, jvm=number))
        if not data or jvm.taken:
            self._forget(number, now)

    def _forget(self, number: int, now: float) -> None:
        """Its holder has ended, or belongs to an application now."""
        jvm = self._jvms.pop(number)
        self._selector.unregister(jvm.control)
        why = jvm.why or f"it has ended: {_last_line(jvm.log)}"
        self._end(jvm)
        if not jvm.taken:
            _log.info("a warm driver has ended", jvm=number, why=why)
            self.handle(pool.JvmEnded(now=now, jvm=number, why=why))

    def _hand(self, command: pool.HandJvm) -> None:
        request, connection = self._requests.pop(command.request)
        jvm = self._jvms[command.jvm]
        with connection:
            try:
                data = frame({"order": request.order()})
                sent = socket.send_fds(jvm.control, [data], [connection.fileno()])
                jvm.control.sendall(data[sent:])
            except OSError:
                _reply(connection, {"cold": "the warm driver has ended", "loud": True})

    def _give_up(self, number: int) -> None:
        if self._to_start is not None and self._to_start[0].jvm == number:
            self._to_start = None
            self.handle(pool.JvmEnded(now=time.monotonic(), jvm=number, why="it is not needed"))
            return
        jvm = self._jvms.get(number)
        if jvm is not None:
            jvm.why = "it was not needed any more"
            self._selector.unregister(jvm.control)
            del self._jvms[number]
            self._end(jvm)
            self.handle(pool.JvmEnded(now=time.monotonic(), jvm=number, why=jvm.why))

    def _end(self, jvm: _Jvm) -> None:
        """The end of its connection ends a holder whose JVM waits."""
        jvm.control.close()
        jvm.log.unlink(missing_ok=True)
        if jvm.taken:
            self._released.append(jvm.pid)
        else:
            _await_end(jvm.pid)


def _spawn(control: socket.socket) -> int:
    """A holder in a session of its own, where no terminal's signals reach it; its pid."""
    null = os.open(os.devnull, os.O_RDWR)
    try:
        return os.posix_spawn(
            sys.executable,
            [sys.executable, "-P", "-m", "hrm.spark.warm.holder"],
            os.environ,
            file_actions=[
                (os.POSIX_SPAWN_DUP2, control.fileno(), 0),
                (os.POSIX_SPAWN_DUP2, null, 1),
                (os.POSIX_SPAWN_DUP2, null, 2),
            ],
            setsid=True,
        )
    finally:
        os.close(null)


def _await_end(pid: int) -> None:
    """Of a holder whose connection has ended; one that does not end in time is killed, and the
    kernel kills its JVM."""
    descriptor = os.pidfd_open(pid)
    try:
        if not select.select([descriptor], [], [], _HOLDER_LIMIT_S)[0]:
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    finally:
        os.close(descriptor)


def _reply(connection: socket.socket, document: dict[str, Any]) -> None:
    """The only message that a client gets; a client that does not read it has gone."""
    connection.setblocking(False)
    with connection, contextlib.suppress(OSError):
        connection.sendall(frame(document))


def _memory_mib(holder: int) -> int:
    """What a JVM and all around it use, but for files that are mapped."""
    used = 0
    with contextlib.suppress(psutil.Error):
        top = psutil.Process(holder)
        for process in (top, *top.children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                memory = process.memory_info()
                used += memory.rss - memory.shared
    return (used >> 20) + 1


def _last_line(log: Path) -> str:
    with contextlib.suppress(OSError), log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _TAIL_BYTES))
        lines = file.read(_TAIL_BYTES).decode(errors="replace").splitlines()
        return next((line.strip() for line in reversed(lines) if line.strip()), "nothing")
    return "nothing"


def _announce(home: Path, address: Path) -> None:
    """Let clients know: all of the file is there, or nothing. What a killed server left goes."""
    with contextlib.suppress(OSError):
        old = Path((home / ADDRESS_FILE).read_text().strip()).parent
        if old.name.startswith(_PREFIX):
            shutil.rmtree(old, ignore_errors=True)
    half = home / f".{ADDRESS_FILE}"
    half.write_text(f"{address}\n")
    half.chmod(0o600)
    half.replace(home / ADDRESS_FILE)


def main(arguments: list[str] | None = None) -> int:
    """Keep the pool until SIGTERM, SIGINT or ``hrm warm --stop``; 3: another server does."""
    parser = argparse.ArgumentParser(prog="python -m hrm.spark.warm.server", description=__doc__)
    parser.add_argument("--bounds", type=json.loads, default={}, help="JSON: those of WarmBounds")
    given = parser.parse_args(arguments)
    home = place()
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    home.chmod(0o700)
    with (home / "lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return 3
        directory = Path(tempfile.mkdtemp(prefix=_PREFIX, dir="/tmp"))  # nosec B108 - sockets need short paths
        try:
            server = WarmServer(pool.WarmBounds(**given.bounds), directory)
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, lambda *_: server.stop())
            wakeup, wakes = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
            signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
            server.wake_with(wakeup)
            _announce(home, server.address)
            server.run()
        finally:
            (home / ADDRESS_FILE).unlink(missing_ok=True)
            shutil.rmtree(directory, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
