"""Processes that run the steps of a worker: one for each core in use, some for each GPU.

A process is kept for the next step on its core or GPU if that has the same code, and ended after a
minute without one: imports are paid once, but what a library holds on a GPU is released eventually.
At most four wait on one GPU. To stop a run is to kill its process group and all below it. Processes
die with their worker, and the container's end takes what functions have detached from them.

What they print is in the log of the container. Their replies are validated, because the function
that they run may have written them, and those of another run are ignored.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import structlog

import hrm
from hrm import descriptors
from hrm.pipelines.core.feasibility import CAPS
from hrm.pipelines.core.model import Device, ResultFormat
from hrm.pipelines.core.node_messages import RunOutcome

__all__ = ["RunResult", "StepProcesses"]

_IDLE_S = 60.0
_IDLE_MAX = CAPS.co_runners_max
"""Per core or GPU."""
_WAIT_S = 10.0
_LINE_BYTES_MAX = 1 << 20
"""Size of a reply."""
_MESSAGE_MAX = 4_000
_PROOF_BYTES_MAX = 64
_MOST = 1e12
_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_log = structlog.get_logger("hrm.pipelines.worker")

Place = tuple[Device, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """How a run ended. Memory peaks in MiB, 0 if not measured. ``kind``, ``proof``: of what
    the last subtask of a task returned; ``in_dir_bytes``: its size, where it stays in the directory
    that the task names."""

    outcome: RunOutcome
    message: str = ""
    ran_s: float | None = None
    memory_mib: float = 0.0
    gpu_memory_mib: float = 0.0
    kind: ResultFormat = ResultFormat.PICKLE
    proof: bytes = b""
    in_dir_bytes: int | None = None


@dataclass(slots=True, eq=False)
class _Process:
    process: asyncio.subprocess.Process
    place: Place
    code: Path
    served: bool = False
    idle_since_s: float = field(default_factory=time.monotonic)

    def kill(self) -> None:
        """End it and what it started, in whatever session that is by now."""
        pid = self.process.pid
        below: list[psutil.Process] = []
        if self.process.returncode is None:
            with contextlib.suppress(psutil.Error):
                below = psutil.Process(pid).children(recursive=True)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        for one in below:
            with contextlib.suppress(psutil.Error):
                one.kill()


class StepProcesses:
    """Invariants: a process is in ``_idle``, or serves the run under which it is in ``_busy``, or
    is being killed; all whose end has not been seen are in ``_alive``.
    """

    def __init__(self, directory: Path, import_path: str, *, has_device: bool) -> None:
        """``directory``: where they stand; ``has_device``: is there a device behind the GPU that
        the container was given? Its number is 0 here: others are not visible."""
        self._directory = directory
        self._import_path = import_path
        self._has_device = has_device
        self._idle: list[_Process] = []
        self._busy: dict[int, _Process | None] = {}
        self._stopped: set[int] = set()
        self._alive: set[_Process] = set()

    async def run(
        self,
        run: int,
        place: Place,
        code: Path,
        job: dict[str, Any],
        started: Callable[[int], None],
    ) -> RunResult:
        """Run one step to its end. ``code``: a directory of modules that were sent with the task.

        ``started`` is called with the process's pid.
        """
        self._busy[run] = None
        process: _Process | None = None
        try:
            if run in self._stopped:
                return RunResult(outcome=RunOutcome.CRASHED, message="stopped before it began")
            process = self._take(place, code) or await self._spawn(place, code)
            self._busy[run] = process
            if run in self._stopped:
                process.kill()
            started(process.process.pid)
            return await self._ask(process, {**job, "run": run})
        except OSError as error:
            return RunResult(outcome=RunOutcome.CRASHED, message=f"no process starts: {error}")
        finally:
            del self._busy[run]
            stopped = run in self._stopped
            self._stopped.discard(run)
            if process is not None:
                # One that was killed as it replied may still be dying.
                if process.process.returncode is None and not stopped:
                    process.idle_since_s = time.monotonic()
                    self._keep(process)
                else:
                    process.kill()  # and what is left of its group

    def _keep(self, process: _Process) -> None:
        """Keep it for the next run; ``_idle`` is in the order of waiting."""
        self._idle.append(process)
        same = [one for one in self._idle if one.place == process.place]
        for surplus in same[:-_IDLE_MAX]:
            self._idle.remove(surplus)
            surplus.kill()

    def stop(self, run: int) -> None:
        """Kill the run's processes; ``run`` then returns as for any crash.

        To be called for runs that are not over. One whose ``run`` has yet to begin ends there.
        """
        self._stopped.add(run)
        worker = self._busy.get(run)
        if worker is not None:
            worker.kill()

    def end_idle(self) -> None:
        """End those that have been idle for too long."""
        limit_s = time.monotonic() - _IDLE_S
        for process in [one for one in self._idle if one.idle_since_s < limit_s]:
            self._idle.remove(process)
            process.kill()

    async def close(self) -> None:
        """End all, busy ones included, and wait for the ends of those killed before."""
        processes = [one for one in self._alive if one.process.returncode is None]
        self._idle = []
        for process in processes:
            process.kill()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_WAIT_S):
                await asyncio.gather(*(one.process.wait() for one in processes))

    def _take(self, place: Place, code: Path) -> _Process | None:
        """An idle one of this code; others on the same core are ended."""
        found: _Process | None = None
        for process in [one for one in self._idle if one.place == place]:
            alive = process.process.returncode is None
            if found is None and alive and process.code == code:
                found = process
                self._idle.remove(process)
            elif not alive or place[0] is Device.CPU:
                self._idle.remove(process)
                process.kill()
        return found

    async def _spawn(self, place: Place, code: Path) -> _Process:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "hrm.pipelines.worker.step_process", str(os.getpid())),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            cwd=self._directory,
            env=self._environment(place, code),
            start_new_session=True,
            limit=_LINE_BYTES_MAX,
        )
        descriptors.give_back(process.pid)
        self._alive = {one for one in self._alive if one.process.returncode is None}
        self._alive.add(one := _Process(process, place, code))
        return one

    def _environment(self, place: Place, code: Path) -> dict[str, str]:
        own = str(Path(hrm.__file__).parents[1])
        inherited = os.environ.get("PYTHONPATH", "")
        paths = [str(code), *self._import_path.split(os.pathsep), inherited, own]
        environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith("HRM_TOKEN")},
            "PYTHONPATH": os.pathsep.join(path for path in paths if path),
            "PYTHONUNBUFFERED": "1",
        }
        if place[0] is Device.CPU or not self._has_device:
            environment["CUDA_VISIBLE_DEVICES"] = ""
        if place[0] is Device.CPU:
            environment |= dict.fromkeys(_ONE_THREAD, "1")
            environment["OPENCV_FOR_THREADS_NUM"] = "1"
        return environment

    async def _ask(self, process: _Process, job: dict[str, Any]) -> RunResult:
        pipe = process.process
        assert pipe.stdin is not None
        assert pipe.stdout is not None
        try:
            pipe.stdin.write(json.dumps(job).encode() + b"\n")
            await pipe.stdin.drain()
            reply = await _reply(pipe.stdout, job["run"])
        except (ConnectionError, ValueError, RecursionError) as error:
            _log.warning("a reply is malformed", why=repr(error))
            reply = None
        except asyncio.CancelledError:
            process.kill()
            raise
        if reply is None:
            process.kill()
            why = _how_it_ended(await pipe.wait())
            if not process.served:
                why += ", at its first request; the worker's log may show more"
            return RunResult(outcome=RunOutcome.CRASHED, message=why)
        process.served = True
        if reply.outcome is RunOutcome.OUT_OF_MEMORY:
            # Processes that the function left behind may have filled the memory.
            process.kill()
            await pipe.wait()
        return reply


async def _reply(lines: asyncio.StreamReader, run: int) -> RunResult | None:
    """The process's reply about this run; None: there is none. Those about others are ignored.

    Raises:
        ValueError: it is not a valid reply.
    """
    while line := await lines.readline():
        reply = json.loads(line)
        if not isinstance(reply, dict) or type(reply.get("run")) is not int:
            raise ValueError("it is no object with a run")
        if reply["run"] == run:
            return _result_of(reply)
        _log.warning("a reply of another run is ignored", run=run, of=reply["run"])
    return None


def _result_of(reply: dict[str, Any]) -> RunResult:
    """A process's reply about a run.

    Raises:
        ValueError: it is not a valid reply.
    """
    outcome = RunOutcome.__members__.get(_text(reply, "outcome"))
    if outcome is None:
        raise ValueError("no such outcome")
    return RunResult(
        outcome=outcome,
        message=_text(reply, "message"),
        ran_s=_number(reply, "ran_s"),
        memory_mib=_number(reply, "memory_mib"),
        gpu_memory_mib=_number(reply, "gpu_memory_mib"),
        kind=ResultFormat(reply.get("result_format", ResultFormat.PICKLE.value)),
        proof=bytes.fromhex(_text(reply, "proof"))[:_PROOF_BYTES_MAX],
        in_dir_bytes=int(_number(reply, "in_dir_bytes")) if "in_dir_bytes" in reply else None,
    )


def _text(reply: dict[str, Any], name: str) -> str:
    value = reply.get(name, "")
    if not isinstance(value, str):
        raise ValueError(f"{name} is no text")
    return value[:_MESSAGE_MAX].encode("utf-8", "backslashreplace").decode()


def _number(reply: dict[str, Any], name: str) -> float:
    value = reply.get(name, 0.0)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _MOST:
        raise ValueError(f"{name} is not a valid number")
    return float(value)


def _how_it_ended(status: int) -> str:
    if status >= 0:
        return f"its process ended by itself with exit code {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = str(-status)
    return f"its process was killed by {name}"
