"""The parent of one warm JVM: it starts the JVM, hands it over, and reports how it ended.

The server that keeps the pool may end while applications run on JVMs that it has started; those
must go on, and their status must be learned. So each JVM has this small process as its parent.
While the JVM waits, both end with the server: the holder sees the end of its connection, and the
kernel kills the JVM with the holder. Once an application has taken the JVM, the holder belongs to
that: it ends the JVM when the client goes, and outlives the server.

It gets, on the socket that is its standard input, a document that says what to start, then at most
one order with the connection of the client that takes the JVM. It reports there what happens:
``ready``, ``declined``, ``taken``.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import socket
import sys
import time
from typing import Any, NoReturn

from hrm.spark.warm.client import FRAME_BYTES_MAX, Frames, frame

__all__ = ["ORDER_LIMIT_S", "START_SCRIPT", "main"]

ORDER_LIMIT_S = 0.8
"""For a JVM to read its order and say whether it fits; clients wait a little longer."""
LOGGED_BYTES_MAX = 1 << 20
"""Of what a JVM writes before an application has it."""
_GRACE_S = 10.0
_CHUNK_BYTES = 65_536
_OF_TERMINALS = (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP)
_PR_SET_PDEATHSIG = 1
_SUBMIT = "org.apache.spark.deploy.SparkSubmit"
_WARM_CLASS = "org.apache.spark.scheduler.cluster.hrm.WarmDriver"

START_SCRIPT = f"""
. "$SPARK_HOME/bin/load-spark-env.sh"
runner=java
[ -z "${{JAVA_HOME:-}}" ] || runner="$JAVA_HOME/bin/java"
command=()
while IFS= read -r -d '' word; do
  word="${{word#$'\\n'}}"
  [ "$word" != {_SUBMIT} ] || break
  [ -z "$word" ] || command+=("$word")
done < <("$runner" -Xmx128m -cp "$SPARK_HOME/jars/*" org.apache.spark.launcher.Main "$@")
[ "${{#command[@]}}" -gt 1 ] || exit 1
exec "${{command[@]}}" {_WARM_CLASS}
"""
"""As spark-class: Spark's launcher makes the very command of a cold driver, but for its class."""


class Holder:
    """One JVM. ``control``: the server's connection."""

    def __init__(self, control: socket.socket, spec: dict[str, Any]) -> None:
        self._control: socket.socket | None = control
        self._frames = Frames()
        self._client: socket.socket | None = None
        self._heard = Frames()
        self._log = os.open(spec["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        self._logged = 0
        self._poll = select.poll()
        self._pid, self._input, self._outputs, self._replies = _start(spec)
        self._unread = b""
        for descriptor in (control.fileno(), self._replies, *self._outputs):
            self._poll.register(descriptor, select.POLLIN)
        self._kill_at: float | None = None
        self._pidfd = os.pidfd_open(self._pid)
        self._poll.register(self._pidfd, select.POLLIN)

    def run(self) -> None:
        """Until the JVM has ended."""
        while True:
            limit_ms = None
            if self._kill_at is not None:
                limit_ms = 1e3 * max(0.0, self._kill_at - time.monotonic())
            for descriptor, _ in self._poll.poll(limit_ms):
                if descriptor == self._pidfd:
                    self._finish()
                    return
                self._turn(descriptor)
            if self._kill_at is not None and time.monotonic() >= self._kill_at:
                self._signal(signal.SIGKILL)
                self._kill_at = None

    def _turn(self, descriptor: int) -> None:
        if self._control is not None and descriptor == self._control.fileno():
            self._obey()
        elif self._client is not None and descriptor == self._client.fileno():
            self._serve()
        elif descriptor == self._replies:
            for line in self._read_replies():
                self._report({line.partition(" ")[0]: line.partition(" ")[2] or True})
        elif descriptor in self._outputs:
            self._keep_log(descriptor)

    def _obey(self) -> None:
        """What the server says: an order, or its end."""
        assert self._control is not None
        try:
            data, descriptors, _, _ = socket.recv_fds(self._control, FRAME_BYTES_MAX, 1)
        except OSError:
            data, descriptors = b"", []
        if descriptors:
            self._client = socket.socket(fileno=descriptors[0])
        for document in self._frames.feed(data):
            self._hand_over(document["order"])
        if not data:
            self._poll.unregister(self._control)
            self._control.close()
            self._control = None
            if self._client is None:
                self._signal(signal.SIGKILL)

    def _hand_over(self, order: dict[str, Any]) -> None:
        """Give the JVM its order, and the client the JVM's pipes if the order fits."""
        assert self._client is not None
        why = self._order(frame(order))
        if why:
            with contextlib.suppress(OSError):
                self._client.sendall(frame({"cold": why, "loud": True}))
            self._client.close()
            self._client = None
            self._report({"declined": why})
            self._signal(signal.SIGKILL)
            return
        for descriptor in self._outputs:
            if self._keep_log(descriptor):
                self._poll.unregister(descriptor)
        pipes = [self._input, *self._outputs]
        with contextlib.suppress(OSError):
            socket.send_fds(self._client, [frame({"fits": True})], pipes)
        for descriptor in pipes:
            os.close(descriptor)
        self._outputs = []
        self._poll.register(self._client, select.POLLIN)

    def _order(self, data: bytes) -> str:
        """Why the JVM does not take this order; empty: it fits."""
        deadline = time.monotonic() + ORDER_LIMIT_S
        poll = select.poll()
        poll.register(self._replies, select.POLLIN)
        poll.register(self._input, select.POLLOUT)
        while (left_s := deadline - time.monotonic()) > 0:
            for descriptor, _ in poll.poll(1e3 * left_s):
                if descriptor == self._replies:
                    for line in self._read_replies():
                        word, _, why = line.partition(" ")
                        return "" if word == "fits" else why or line
                    return "the warm JVM has ended"
                try:
                    data = data[os.write(self._input, data) :]
                except BlockingIOError:
                    continue
                except OSError:
                    return "the warm JVM has ended"
                if not data:
                    poll.unregister(self._input)
        return f"the warm JVM has not read its order within {ORDER_LIMIT_S:g} s"

    def _read_replies(self) -> list[str]:
        data = os.read(self._replies, _CHUNK_BYTES)
        if not data:
            self._poll.unregister(self._replies)
            if self._client is not None:  # closed as it becomes the application
                self._report({"taken": True})
            return []
        *lines, self._unread = (self._unread + data).split(b"\n")
        return [line.decode(errors="replace") for line in lines]

    def _serve(self) -> None:
        """What the client says: a signal for the JVM, or its end."""
        assert self._client is not None
        try:
            data = self._client.recv(_CHUNK_BYTES)
            messages = self._heard.feed(data)
        except (OSError, ValueError):
            data, messages = b"", []
        for message in messages:
            number = signal.Signals(int(message["signal"]))
            if number in _OF_TERMINALS:  # which send them to all programs of a group
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._pid, number)
            else:
                self._signal(number)
        if not data:
            self._poll.unregister(self._client)
            self._client.close()
            self._client = None
            self._signal(signal.SIGTERM)
            self._kill_at = time.monotonic() + _GRACE_S

    def _keep_log(self, descriptor: int) -> bool:
        """Move what is there to the log; False: the JVM writes no more."""
        while True:
            try:
                data = os.read(descriptor, _CHUNK_BYTES)
            except BlockingIOError:
                return True
            if not data:
                self._poll.unregister(descriptor)
                return False
            if self._logged < LOGGED_BYTES_MAX:
                self._logged += len(data)
                with contextlib.suppress(OSError):  # a full disk costs the log, no more
                    os.write(self._log, data)

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, number)

    def _report(self, document: dict[str, Any]) -> None:
        if self._control is not None:
            with contextlib.suppress(OSError):
                self._control.sendall(frame(document))

    def _finish(self) -> None:
        _, status = os.waitpid(self._pid, 0)
        code = os.waitstatus_to_exitcode(status)
        if self._client is not None:
            with contextlib.suppress(OSError):
                self._client.sendall(frame({"exit": code} if code >= 0 else {"signal": -code}))


def _start(spec: dict[str, Any]) -> tuple[int, int, list[int], int]:
    """The JVM's pid, its input, its outputs, and its replies."""
    stdin, stdout, stderr, replies = (os.pipe2(os.O_CLOEXEC) for _ in range(4))
    holder = os.getpid()
    pid = os.fork()
    if pid == 0:
        _become(spec, holder, (stdin[0], stdout[1], stderr[1]), replies[1])
    for descriptor in (stdin[0], stdout[1], stderr[1], replies[1]):
        os.close(descriptor)
    for descriptor in (stdin[1], stdout[0], stderr[0]):
        os.set_blocking(descriptor, False)
    return pid, stdin[1], [stdout[0], stderr[0]], replies[0]


def _become(
    spec: dict[str, Any], holder: int, standard: tuple[int, int, int], replies: int
) -> NoReturn:
    try:
        os.setsid()
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != holder:
            os._exit(127)
        for target, descriptor in enumerate(standard):
            os.dup2(descriptor, target)
        os.set_inheritable(replies, True)
        for name in ("SIGPIPE", "SIGXFSZ", "SIGINT", "SIGQUIT", "SIGHUP", "SIGTERM"):
            signal.signal(getattr(signal, name), signal.SIG_DFL)
        os.chdir(spec["cwd"])
        environment = {**spec["environment"], "HRM_WARM_REPLIES": str(replies)}
        script = ["bash", "-c", START_SCRIPT, "spark-class", *spec["arguments"]]
        os.execvpe("bash", script, environment)  # noqa: S606 - the shell is Spark's
    except BaseException as error:
        os.write(2, f"HRM: {error}\n".encode())
    os._exit(127)


def main() -> int:
    """``python -m hrm.spark.warm.holder`` with a socket as standard input."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    control = socket.socket(fileno=os.dup(0))
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    frames: list[dict[str, Any]] = []
    reader = Frames()
    while not frames:
        data = control.recv(_CHUNK_BYTES)
        if not data:
            return 0
        frames = reader.feed(data)
    Holder(control, frames[0]).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
