# ruff: noqa: PTH109, PTH115, PTH116, PTH118, PTH123
"""Stands where a driver's JVM would stand, in front of one that has been started already.

PySpark, a shell or a scheduler starts spark-submit, and watches that process: its input, its
output, its end. ``spark-env.sh`` becomes this program instead of a JVM where the user's warm server
is there. It asks the server for a driver that fits, and from then on passes on what comes: input to
the JVM, output from it, signals, and at last the status that the JVM ended with. When this process
is killed, the JVM ends, too. ::

    client ──request──► server ──order, with the connection──► holder ──order──► JVM
    client ◄──fits, with the JVM's pipes──────────────────────── holder ◄──fits── JVM
    client ──four zero bytes into the JVM's input: taken──────────────────────────► JVM

Until those four bytes are written nothing of the application has run, and this program may still
give up: it becomes spark-class again, with the arguments as they were given and the reason in
``HRM_START``. That is what happens in any doubt, within ``LIMIT_S``.

This file runs by itself (``python -I -S client.py …``): standard library only, because it is on the
way of every start. Messages are frames: four bytes of length, then JSON.
"""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import socket
import struct
import sys
import time

TYPE_CHECKING = False  # as in typing, which takes long to import
if TYPE_CHECKING:
    from typing import Any, NoReturn

__all__ = [
    "FRAME_BYTES_MAX",
    "HEADER",
    "KEEP",
    "START",
    "TAKEN",
    "VERSION",
    "Frames",
    "frame",
    "main",
    "peer_uid",
    "surroundings",
]

VERSION = 1
"""Of the protocol. A server of another version is passed over."""
START = "HRM_START"
"""How this driver started, for ``hrm app show``; where it is set, no warm one is asked for."""
KEEP = "keep"
"""The value of ``HRM_WARM`` with which a driver's start only says of which kind it is."""
HEADER = struct.Struct(">I")
TAKEN = HEADER.pack(0)
FRAME_BYTES_MAX = 16 << 20
LIMIT_S = 1.0
"""For the server, the holder and the JVM together to say that it fits."""
_CHUNK_BYTES = 65_536
_DRAIN_LIMIT_S = 1.0
_FOREGROUND_PERIOD_S = 1.0
_FORWARDED = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")
_PIPES = 3
_WHY_MAX = 200
_OWN_VARIABLES = {
    *("SPARK_ENV_LOADED", "HRM_WARM", "HRM_FOUND", "HRM_OTHER_MASTER", "HRM_MASTER_VARIABLE"),
    *("HRM_DEPLOY_MODE", "HRM_CORES_MAX", "HRM_ASKS", "HRM_INFORMS", "HRM_SPARK_DIR"),
    *("HRM_PRINCIPAL", "HRM_KEYTAB", START, "HRM_NAMED", "HRM_NAMED_DEFAULT"),
}
"""What ``spark-env.sh`` needs for itself: the JVM would not have it."""


def frame(document: dict[str, Any]) -> bytes:
    """One message, with its length."""
    data = json.dumps(document).encode()
    return HEADER.pack(len(data)) + data


class Frames:
    """Messages as they arrive in pieces."""

    def __init__(self) -> None:
        self._data = b""

    def feed(self, data: bytes) -> list[dict[str, Any]]:
        """The messages that are complete now.

        Raises:
            ValueError: this is no message.
        """
        self._data += data
        found = []
        while len(self._data) >= HEADER.size:
            (length,) = HEADER.unpack_from(self._data)
            if length > FRAME_BYTES_MAX:
                raise ValueError(f"a message of {length} bytes")
            end = HEADER.size + length
            if len(self._data) < end:
                break
            document = json.loads(self._data[HEADER.size : end])
            if not isinstance(document, dict):
                raise ValueError("a message that is no object")
            found.append(document)
            self._data = self._data[end:]
        return found


def peer_uid(connection: socket.socket) -> int:
    """The user at the other end of a Unix socket, as the kernel knows it."""
    credentials = struct.Struct("3i")
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, credentials.size)
    return int(credentials.unpack(data)[1])


def surroundings() -> dict[str, Any]:
    """What a process inherits from the one that starts it, beyond environment and directory; a
    JVM that another has started must have the same."""
    umask = os.umask(0o077)
    os.umask(umask)
    names = sorted(name for name in dir(resource) if name.startswith("RLIMIT_"))
    limits = [list(resource.getrlimit(getattr(resource, name))) for name in names]
    return {
        "umask": umask,
        "limits": limits,
        "groups": sorted({*os.getgroups(), os.getegid()}),
        "nice": os.getpriority(os.PRIO_PROCESS, 0),
        "cgroups": _cgroups(),
        "cpus": sorted(os.sched_getaffinity(0)),
        "root": [os.stat("/").st_dev, os.stat("/").st_ino],
        "namespaces": [_link(f"/proc/self/ns/{name}") for name in ("mnt", "net", "pid", "user")],
    }


def _cgroups() -> list[str]:
    """The groups whose limits count; sessions of one user are one place."""
    try:
        with open("/proc/self/cgroup") as file:
            lines = file.read().splitlines()
    except OSError:
        return []
    own = f"/user-{os.getuid()}.slice"
    return sorted(line.partition(own)[0] + own if own in line else line for line in lines)


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


def _environment() -> dict[str, str]:
    """What a JVM would have: as it was when this process started, before Python set a locale."""
    with open("/proc/self/environ", "rb") as file:
        entries = os.fsdecode(file.read()).split("\0")
    found = {}
    for entry in entries:
        name, sign, value = entry.partition("=")
        if sign and name not in _OWN_VARIABLES and not name.startswith("BASH_FUNC__hrm_"):
            found[name] = value
    return found


class _Cold(Exception):
    """There is no JVM to take; the message is the reason. ``loud``: something went wrong."""

    def __init__(self, why: str, *, loud: bool = True) -> None:
        super().__init__(why)
        self.loud = loud


def _ask(
    address: str, arguments: list[str], properties: dict[str, str], *, keep: bool
) -> tuple[socket.socket, list[int]]:
    """The connection to the holder of a JVM that fits, and the JVM's input, output and error
    output.

    Raises:
        _Cold: there is none.
    """
    deadline = time.monotonic() + LIMIT_S
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(LIMIT_S)
        connection.connect(address)
        if peer_uid(connection) != os.geteuid():
            raise _Cold("the warm server here is another user's")
        request = {
            "version": VERSION,
            "keep": keep,
            "arguments": arguments,
            "environment": _environment(),
            "properties": properties,
            "cwd": os.getcwd(),
            "surroundings": surroundings(),
        }
        connection.sendall(frame(request))
        frames, descriptors = Frames(), []
        while True:
            connection.settimeout(max(0.001, deadline - time.monotonic()))
            data, more, _, _ = socket.recv_fds(connection, _CHUNK_BYTES, _PIPES)
            descriptors += more
            if not data:
                raise _Cold("the warm driver has ended")
            for reply in frames.feed(data):
                if "cold" in reply:
                    raise _Cold(str(reply["cold"]), loud=bool(reply.get("loud")))
                if keep and "kept" in reply:
                    return connection, []
                if reply.get("fits") and len(descriptors) == _PIPES:
                    return connection, descriptors
                raise _Cold("the warm server speaks another language; start it again")
    except TimeoutError:
        raise _Cold(f"no warm driver has replied within {LIMIT_S:g} s") from None
    except ConnectionError as error:
        raise _Cold(
            "no warm server is there", loud=not isinstance(error, ConnectionRefusedError)
        ) from None
    except (OSError, ValueError) as error:
        raise _Cold(f"the warm server cannot be asked: {error}") from None


class _Relay:
    """This process, as the outside of a JVM that has been taken."""

    def __init__(self, connection: socket.socket, pipes: list[int]) -> None:
        self._connection = connection
        self._input, output, errors = pipes
        self._outputs = {output: 1, errors: 2}
        self._frames = Frames()
        self._pending = b""
        self._ended: dict[str, Any] | None = None
        self._poll = select.poll()
        for descriptor in (connection.fileno(), output, errors):
            self._poll.register(descriptor, select.POLLIN)
        self._listening = False

    def run(self) -> NoReturn:
        """Relay until the JVM has ended; end as it did."""
        self._connection.setblocking(False)
        os.set_blocking(self._input, False)
        for name in _FORWARDED:
            number = getattr(signal, name)
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._forward)
        deadline: float | None = None
        while self._ended is None or (self._outputs and deadline is not None):
            self._listen()
            left_s = _FOREGROUND_PERIOD_S if deadline is None else deadline - time.monotonic()
            if left_s <= 0:
                break
            for descriptor, _ in self._poll.poll(1e3 * left_s):
                self._turn(descriptor)
            if self._ended is not None and deadline is None:
                deadline = time.monotonic() + _DRAIN_LIMIT_S
        self._end()

    def _listen(self) -> None:
        """Read input while there is none left to write, and no other program's terminal."""
        if self._input < 0:
            return
        wanted = not self._pending and not _in_background()
        if wanted and not self._listening:
            self._poll.register(0, select.POLLIN)
        elif self._listening and not wanted:
            self._poll.unregister(0)
        self._listening = wanted

    def _turn(self, descriptor: int) -> None:
        if descriptor == self._connection.fileno():
            self._hear()
        elif descriptor in self._outputs:
            self._pass_output(descriptor)
        elif descriptor == 0:
            self._pass_input()
        elif descriptor == self._input:
            self._write_input()

    def _hear(self) -> None:
        try:
            data = self._connection.recv(_CHUNK_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        for message in self._frames.feed(data):
            if "exit" in message or "signal" in message:
                self._ended = message
        if not data:
            self._poll.unregister(self._connection)
            if self._ended is None:
                sys.stderr.write("HRM: the process that holds this driver's JVM has been killed\n")
                self._ended = {"signal": int(signal.SIGKILL)}

    def _pass_output(self, descriptor: int) -> None:
        try:
            data = os.read(descriptor, _CHUNK_BYTES)
        except OSError:
            data = b""
        if not data:
            self._poll.unregister(descriptor)
            os.close(descriptor)
            del self._outputs[descriptor]
        target = self._outputs.get(descriptor, 1)
        while data:
            try:
                data = data[os.write(target, data) :]
            except BlockingIOError:
                select.select([], [target], [], _FOREGROUND_PERIOD_S)
            except OSError:
                return  # nobody reads it; the JVM's own writes would fail as well, and be ignored

    def _pass_input(self) -> None:
        try:
            data = os.read(0, _CHUNK_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self._pending = data
            self._write_input()
            return
        self._poll.unregister(0)
        self._listening = False
        self._close_input()

    def _write_input(self) -> None:
        try:
            self._pending = self._pending[os.write(self._input, self._pending) :]
        except BlockingIOError:
            pass
        except OSError:  # the JVM has closed it, or has ended
            self._pending = b""
            if self._listening:
                self._poll.unregister(0)
                self._listening = False
            self._close_input()
            return
        if self._pending:
            self._poll.register(self._input, select.POLLOUT)
        else:
            self._forget(self._input)

    def _close_input(self) -> None:
        self._forget(self._input)
        os.close(self._input)
        self._input = -1

    def _forget(self, descriptor: int) -> None:
        try:  # noqa: SIM105 - contextlib takes long to import
            self._poll.unregister(descriptor)
        except KeyError:
            pass

    def _forward(self, number: int, _: object) -> None:
        try:  # noqa: SIM105 - contextlib takes long to import
            self._connection.send(frame({"signal": number}))
        except OSError:
            pass

    def _end(self) -> NoReturn:
        assert self._ended is not None
        number = self._ended.get("signal")
        if number is not None:
            signal.signal(number, signal.SIG_DFL) if number not in (9, 19) else None
            os.kill(os.getpid(), number)
            os._exit(128 + int(number))  # a signal that ends nothing by default
        os._exit(int(self._ended["exit"]))


def _in_background() -> bool:
    """Whether standard input is a terminal that is another program's now: to read it would stop
    this one."""
    try:
        return os.isatty(0) and os.tcgetpgrp(0) != os.getpgrp()
    except OSError:
        return False


def _start_cold(given: list[str], why: str) -> NoReturn:
    """Become what this process would have been without a warm server."""
    renamed = os.environ.get("HRM_RENAMED_DIR")
    if renamed:
        import shutil

        shutil.rmtree(renamed, ignore_errors=True)
    environment = {**_environment(), START: f"cold: {' '.join(why.split())[:_WHY_MAX]}"}
    program = os.path.join(os.environ["SPARK_HOME"], "bin", "spark-class")
    os.execve(program, [program, *given], environment)  # noqa: S606 - no shell wanted


def _keep(address: str, arguments: list[str]) -> NoReturn:
    """For ``hrm warm``: nothing is to run; drivers of this kind are to be ready from now on."""
    try:
        _ask(address, arguments[1:], {}, keep=True)
    except _Cold as why:
        sys.stderr.write(f"{why}\n")
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)


def main(arguments: list[str]) -> NoReturn:
    """``client.py ADDRESS EVENT_LOG_DIR COUNT GIVEN… ARGUMENTS…``: be the driver that
    ``spark-class`` was to start with ``GIVEN``, of which ``ARGUMENTS`` are what HRM has made.
    ``ADDRESS`` is the server's socket, ``EVENT_LOG_DIR`` is empty where event logs are off, and
    ``COUNT`` says how many words ``GIVEN`` has."""
    address, event_logs, count = arguments[0], arguments[1], int(arguments[2])
    given, own = arguments[3 : 3 + count], arguments[3 + count :]
    if os.environ.get("HRM_WARM") == KEEP:
        _keep(address, own)
    properties = {"spark.hrm.start": "warm"}
    if event_logs:
        properties |= {"spark.eventLog.enabled": "true", "spark.eventLog.dir": event_logs}
    try:
        connection, pipes = _ask(address, own[1:], properties, keep=False)
        os.write(pipes[0], TAKEN)
    except _Cold as cold:
        if cold.loud:
            sys.stderr.write(f"HRM: this driver starts cold: {cold}\n")
            sys.stderr.flush()
        _start_cold(given, str(cold))
    except OSError:
        sys.stderr.write("HRM: this driver starts cold: the warm one has just ended\n")
        sys.stderr.flush()
        _start_cold(given, "the warm one has just ended")
    _Relay(connection, pipes).run()


if __name__ == "__main__":
    main(sys.argv[1:])
