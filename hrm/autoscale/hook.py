"""The hook: a command or a call over HTTP that adds and removes machines.

A command gets the call as JSON on its standard input and its figures as variables
(``HRM_WANTED_NODES``, ``HRM_PRESENT_NODES``, ``HRM_REMOVE_NODES`` with commas between the names,
``HRM_WAITING_CORES`` and so on, ``HRM_REASON``); it has succeeded if it ends with status 0. A
webhook gets the same JSON by POST and has succeeded with a status of 200 to 299; redirects are not
followed. Both have a time limit, after which a command is killed with all of its processes. A try
that fails is repeated a few times.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from hrm.core.pool.scaler import CallHook

__all__ = ["HookOutcome", "HookRunner"]

OUTPUT_SHOWN = 500
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
    them."""

    def __init__(
        self,
        *,
        command: str = "",
        url: str = "",
        timeout_s: float = 30.0,
        tries: int = 3,
        pause_s: float = 1.0,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._arguments = shlex.split(command)
        self._url = url
        self._timeout_s = timeout_s
        self._tries = tries
        self._pause_s = pause_s
        self._sleep = sleep
        self._hanging: threading.Thread | None = None

    def run(self, call: CallHook) -> HookOutcome:
        """Never raises: what went wrong is in the outcome."""
        begun_s = time.monotonic()
        reason, tries = "", 0
        for tries in range(1, self._tries + 1):
            if tries > 1:
                self._sleep(self._pause_s * 2 ** (tries - 2))
            reason = self._post(call) if self._url else self._start(call)
            if not reason:
                break
        took_s = time.monotonic() - begun_s
        return HookOutcome(ok=not reason, reason=reason, tries=tries, took_s=took_s)

    def _start(self, call: CallHook) -> str:
        """Why the command has failed; empty: it has not."""
        variables = {
            "HRM_WANTED_NODES": str(call.wanted_nodes),
            "HRM_PRESENT_NODES": str(call.present_nodes),
            "HRM_REMOVE_NODES": ",".join(call.remove),
            "HRM_WAITING_CORES": f"{call.waiting_cores:g}",
            "HRM_WAITING_MEMORY_MIB": f"{call.waiting_memory_mib:g}",
            "HRM_WAITING_GPU_MEMORY_MIB": f"{call.waiting_gpu_memory_mib:g}",
            "HRM_REASON": call.reason,
        }
        try:
            process = subprocess.Popen(
                self._arguments,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env={**os.environ, **variables},
                start_new_session=True,
            )
        except OSError as error:
            return f"the command cannot be started: {error}"
        try:
            _, errors = process.communicate(_body(call), timeout=self._timeout_s)
        except subprocess.TimeoutExpired:
            _end(process)
            return f"the command has not ended within {self._timeout_s:g} s, and was killed"
        if process.returncode == 0:
            return ""
        shown = errors.decode(errors="replace").strip()[-OUTPUT_SHOWN:]
        return f"the command ended with status {process.returncode}" + (
            f": {shown}" if shown else ""
        )

    def _post(self, call: CallHook) -> str:
        """The same of the webhook. The time limits of sockets are of one read: a server that sends
        a byte now and then would never meet them, so a thread makes the call."""
        if self._hanging is not None and self._hanging.is_alive():
            return "the call before has not ended yet"
        found: list[str] = []
        request = urllib.request.Request(  # noqa: S310 - settings allow http and https alone
            self._url,
            data=_body(call),
            headers={"Content-Type": "application/json"},
            method="POST",
        )
        thread = threading.Thread(
            target=lambda: found.append(_response(request, self._timeout_s)), daemon=True
        )
        self._hanging = thread
        thread.start()
        thread.join(self._timeout_s)
        return found[0] if found else f"no response within {self._timeout_s:g} s"


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_arguments: Any, **_named: Any) -> None:
        return None


def _response(request: urllib.request.Request, timeout_s: float) -> str:
    opener = urllib.request.build_opener(_NoRedirects())
    try:
        with opener.open(request, timeout=timeout_s) as response:
            response.read(RESPONSE_MAX)
    except urllib.error.HTTPError as error:
        return f"the webhook responded with {error.code} {error.reason}"
    except (OSError, ValueError) as error:
        return f"the webhook cannot be called: {error}"
    except Exception as error:  # of http.client, on responses that are none
        return f"the webhook's response cannot be read: {error!r}"
    return ""


def _body(call: CallHook) -> bytes:
    return json.dumps(asdict(call)).encode()


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the command and what it has started, as far as it stayed in its session."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):  # a disk hangs, say: it is left
        process.wait(KILL_WAIT_S)
    for pipe in (process.stdin, process.stderr):
        if pipe is not None:
            pipe.close()
