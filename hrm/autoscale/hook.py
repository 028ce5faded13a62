"""The hook: a command or a call over HTTP that adds and removes machines.

A command gets the call as JSON on its standard input and its figures as variables
(``HRM_WANTED_NODES``, ``HRM_PRESENT_NODES``, ``HRM_REMOVE_NODES`` with commas between the names,
``HRM_WAITING_CORES`` and so on, ``HRM_REASON``); it has succeeded if it ends with status 0. A
webhook gets the same JSON by POST and has succeeded with a status of 200 to 299; redirects are not
followed. Both have a time limit, after which a command is killed with all of its processes, and the
connection to a webhook is closed. A try that fails is repeated a few times.

It is the command's end that counts, not that of what it leaves in the background, which keeps its
standard error. A command outlives a process that is killed: where it is noted in a file, the next
process waits for it as long as it may take still, and then ends it, so that there is one at a time.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shlex
import signal
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

import psutil

from hrm.core.pool.scaler import CallHook
from hrm.durable import write_durably

__all__ = ["HookOutcome", "HookRunner"]

OUTPUT_SHOWN = 500
OUTPUT_WAIT_S = 1.0
"""For the last words of a command that has ended, while something holds its standard error."""
POLL_S = 0.05
END_WAIT_S = 5.0
KILL_WAIT_S = 5.0
RESPONSE_MAX = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class HookOutcome:
    """``reason``: of the last try, where it has failed."""

    ok: bool
    reason: str
    tries: int
    took_s: float


class HookRunner:
    """Runs one hook; ``run`` returns within ``tries`` times ``timeout_s`` and the pauses between
    them. Where ``stop`` is set it ends the try, and there is no other. ``note``: where the command
    that runs is noted."""

    def __init__(
        self,
        *,
        command: str = "",
        url: str = "",
        timeout_s: float = 30.0,
        tries: int = 3,
        pause_s: float = 1.0,
        sleep: Callable[[float], object] | None = None,
        stop: threading.Event | None = None,
        note: Path | None = None,
    ) -> None:
        self._arguments = shlex.split(command)
        self._url = url
        self._timeout_s = timeout_s
        self._tries = tries
        self._pause_s = pause_s
        self._stop = stop or threading.Event()
        self._sleep = sleep or self._stop.wait
        self._note = note
        self._hanging: threading.Thread | None = None

    def run(self, call: CallHook) -> HookOutcome:
        """Never raises: what went wrong is in the outcome."""
        begun_s = time.monotonic()
        reason, tries = "", 0
        for number in range(self._tries):
            if number:
                self._sleep(self._pause_s * 2 ** (number - 1))
            if number and self._stop.is_set():
                break
            tries += 1
            reason = self._post(call) if self._url else self._start(call)
            if not reason:
                break
        took_s = time.monotonic() - begun_s
        return HookOutcome(ok=not reason, reason=reason, tries=tries, took_s=took_s)

    # --- a command ----------------------------------------------------------------------------

    def _start(self, call: CallHook) -> str:
        """Why the command has failed; empty: it has not."""
        if self._note is not None and not _ended_earlier(self._note, self._stop):
            return "hrm autoscale was ended while it waited for the command of a process before it"
        try:
            with _document(_body(call)) as document:
                process = subprocess.Popen(
                    self._arguments,
                    stdin=document,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                    env={**os.environ, **_variables(call)},
                    start_new_session=True,
                )
        except (OSError, ValueError) as error:
            return f"the command cannot be started: {error}"
        assert process.stderr is not None
        words = _Tail(process.stderr)
        if self._note is not None:
            _write_note(self._note, process.pid, self._timeout_s)
        try:
            return self._ended(process, words)
        finally:
            if self._note is not None:
                with contextlib.suppress(OSError):
                    self._note.unlink(missing_ok=True)

    def _ended(self, process: subprocess.Popen[bytes], words: _Tail) -> str:
        """Why it has failed, once it has ended or been ended."""
        until_s = time.monotonic() + self._timeout_s
        while process.poll() is None:
            if self._stop.wait(POLL_S):
                _end(process.pid, process.wait)
                return "hrm autoscale was ended, and the command with it"
            if time.monotonic() > until_s:
                _kill(process.pid, process.wait)
                return f"the command has not ended within {self._timeout_s:g} s, and was killed"
        if process.returncode == 0:
            return ""
        shown = words.text()
        return f"the command ended with status {process.returncode}" + (
            f": {shown}" if shown else ""
        )

    # --- a webhook ----------------------------------------------------------------------------

    def _post(self, call: CallHook) -> str:
        """The same of the webhook. The time limits of sockets are of one read: a server that sends
        a byte now and then would never meet them, so a thread makes the call."""
        if self._hanging is not None and self._hanging.is_alive():
            return "the call before has not ended yet: its connection cannot be closed"
        found: list[str] = []
        line = _Line()
        try:
            request = urllib.request.Request(  # noqa: S310 - settings allow http and https alone
                self._url,
                data=_body(call),
                headers={"Content-Type": "application/json"},
                method="POST",
            )
        except ValueError as error:
            return f"the webhook cannot be called: {error}"
        thread = threading.Thread(
            target=lambda: found.append(_response(request, self._timeout_s, line)), daemon=True
        )
        self._hanging = thread
        thread.start()
        until_s = time.monotonic() + self._timeout_s
        while thread.is_alive() and time.monotonic() < until_s and not self._stop.is_set():
            thread.join(POLL_S)
        if not thread.is_alive():
            return found[0]
        line.cut()
        thread.join(KILL_WAIT_S)
        if self._stop.is_set():
            return "hrm autoscale was ended, and the call of the webhook with it"
        return f"no response within {self._timeout_s:g} s"


class _Line:
    """The connection of one call, for another thread to end it: whatever it is in the middle of."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self._is_cut = False

    def connect(self, *arguments: Any, **named: Any) -> socket.socket:
        """Like ``socket.create_connection``."""
        made = socket.create_connection(*arguments, **named)
        with self._lock:
            if self._is_cut:
                made.close()
                raise TimeoutError("the time of the call is over")
            # TLS takes a socket's descriptor for its own: a second one stands for the same line.
            self._sockets.append(made.dup())
        return made

    def cut(self) -> None:
        """End it; later ones, too."""
        with self._lock:
            self._is_cut = True
            for each in self._sockets:
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
            self._close()

    def closed(self) -> None:
        """The call has ended."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        for each in self._sockets:
            each.close()
        self._sockets.clear()


class _HttpLine(urllib.request.HTTPHandler):
    """``http.client`` makes its connections by an attribute, also those for TLS and by proxies."""

    def __init__(self, line: _Line) -> None:
        super().__init__()
        self._line = line

    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(self._connection, req)

    def _connection(self, *arguments: Any, **named: Any) -> http.client.HTTPConnection:
        made = http.client.HTTPConnection(*arguments, **named)
        made._create_connection = self._line.connect  # type: ignore[attr-defined]
        return made


class _HttpsLine(urllib.request.HTTPSHandler):
    """The same with TLS."""

    def __init__(self, line: _Line) -> None:
        super().__init__()
        self._line = line

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(self._connection, req)

    def _connection(self, *arguments: Any, **named: Any) -> http.client.HTTPSConnection:
        made = http.client.HTTPSConnection(*arguments, **named)
        made._create_connection = self._line.connect  # type: ignore[attr-defined]
        return made


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_arguments: Any, **_named: Any) -> None:
        return None


def _response(request: urllib.request.Request, timeout_s: float, line: _Line) -> str:
    opener = urllib.request.build_opener(_NoRedirects(), _HttpLine(line), _HttpsLine(line))
    try:
        with opener.open(request, timeout=timeout_s) as response:
            response.read(RESPONSE_MAX)
    except urllib.error.HTTPError as error:
        return f"the webhook responded with {error.code} {error.reason}"
    except (OSError, ValueError) as error:
        return f"the webhook cannot be called: {error}"
    except Exception as error:  # of http.client, on responses that are none
        return f"the webhook's response cannot be read: {error!r}"
    finally:
        line.closed()
    return ""


def _body(call: CallHook) -> bytes:
    return json.dumps(asdict(call)).encode()


def _variables(call: CallHook) -> Mapping[str, str]:
    return {
        "HRM_WANTED_NODES": str(call.wanted_nodes),
        "HRM_PRESENT_NODES": str(call.present_nodes),
        "HRM_REMOVE_NODES": ",".join(call.remove),
        "HRM_WAITING_CORES": f"{call.waiting_cores:g}",
        "HRM_WAITING_MEMORY_MIB": f"{call.waiting_memory_mib:g}",
        "HRM_WAITING_GPU_MEMORY_MIB": f"{call.waiting_gpu_memory_mib:g}",
        "HRM_REASON": call.reason,
    }


def _document(content: bytes) -> IO[bytes]:
    """A file in memory with it: unlike a pipe, it needs no writer next to the command."""
    file = os.fdopen(os.memfd_create("hook"), "w+b")
    file.write(content)
    file.seek(0)
    return file


class _Tail:
    """The end of what a command writes to its standard error. It is read for as long as anything
    can write there: who writes to a pipe that nothing reads is ended by it, or waits for ever."""

    def __init__(self, pipe: IO[bytes]) -> None:
        self._pipe = pipe
        self._kept = b""
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        with self._pipe:
            while part := os.read(self._pipe.fileno(), 65_536):
                self._kept = (self._kept + part)[-4 * OUTPUT_SHOWN :]

    def text(self) -> str:
        self._thread.join(OUTPUT_WAIT_S)
        return self._kept.decode(errors="replace").strip()[-OUTPUT_SHOWN:]


# --- ends -----------------------------------------------------------------------------------------


def _end(pid: int, wait: Callable[[float], object]) -> None:
    """Ask the command to end, and what it has started, as far as it stayed in its session; kill it
    where it does not."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired, psutil.TimeoutExpired):
        wait(END_WAIT_S)
    _kill(pid, wait)


def _kill(pid: int, wait: Callable[[float], object]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    # A disk hangs, say: it is left.
    with contextlib.suppress(subprocess.TimeoutExpired, psutil.TimeoutExpired):
        wait(KILL_WAIT_S)


def _write_note(path: Path, pid: int, timeout_s: float) -> None:
    """Which process it is, and until when it may run. It is a precaution: a disk that is full must
    not stop what has begun."""
    with contextlib.suppress(OSError, psutil.Error):
        began_s = psutil.Process(pid).create_time()
        note = {"pid": pid, "began_s": began_s, "timeout_s": timeout_s}
        path.parent.mkdir(parents=True, exist_ok=True)
        write_durably(path, json.dumps(note).encode(), 0o600)


def _ended_earlier(path: Path, stop: threading.Event) -> bool:
    """Wait for the command that a process has left that was killed, and end it when its time is
    over. False: ``stop`` came first, and it is left."""
    try:
        note = json.loads(path.read_text())
        began_s, until_s = float(note["began_s"]), note["began_s"] + float(note["timeout_s"])
        process = psutil.Process(int(note["pid"]))
        is_it = (
            abs(process.create_time() - began_s) < 1.0 and os.getpgid(process.pid) == process.pid
        )
    except (OSError, ValueError, TypeError, KeyError, OverflowError, psutil.Error):
        return True  # there is none, or it has ended
    if not is_it:
        return True
    left_s = min(until_s - time.time(), float(note["timeout_s"]))
    until_s = time.monotonic() + left_s
    while _runs(process) and time.monotonic() < until_s:
        if stop.wait(POLL_S):
            return False
    if _runs(process):
        _kill(process.pid, process.wait)
    return True


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
