"""Worker processes of pipelines: one for each core in use, some for each GPU.

A worker is kept for the next run on its core or GPU if that has the same code, and ended after a
minute without one: imports are paid once, but what a library holds on a GPU is released eventually.
At most four wait on one GPU. To stop a run is to kill its worker's process group and all below it.
A worker dies with its agent; processes that functions have detached from it carry its mark, and are
killed when the agent ends, or by the next one.

With an ``account`` a worker runs as that user, by the rules of containers (``hrm.agent.run_as``),
and serves no other: users share no process, no environment of the agent's, no directory and no log.
Its replies are validated, because the function that it runs may have written them.
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
from typing import IO, Any

import structlog

import hrm
from hrm import descriptors
from hrm.agent.containers import shim, supervisor
from hrm.agent.containers.container_dir import hand_over
from hrm.agent.run_as import Account
from hrm.pipelines.agent.share import PipelineShare
from hrm.pipelines.core.feasibility import CAPS
from hrm.pipelines.core.model import Device, ResultFormat
from hrm.pipelines.core.node_messages import RunOutcome

__all__ = ["RunResult", "Workers"]

_IDLE_S = 60.0
_IDLE_MAX = CAPS.co_runners_max
"""Per core or GPU."""
_WAIT_S = 10.0
_LOG_BYTES_MAX = 16 << 20
_LINE_BYTES_MAX = 1 << 20
"""Size of a worker's reply."""
_MESSAGE_MAX = 4_000
_PROOF_BYTES_MAX = 64
_MOST = 1e12
_INHERITED = ("LANG", "LC_ALL", "LC_CTYPE", "TZ", "LD_LIBRARY_PATH", "PATH")
"""The only variables of the agent's environment that another user's worker gets."""
_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_log = structlog.get_logger("hrm.agent.pipelines")

Place = tuple[Device, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """How a run ended. Memory peaks in MiB, 0 if not measured. ``kind``, ``proof``: of what
    the last subtask of a task returned."""

    outcome: RunOutcome
    message: str = ""
    ran_s: float | None = None
    memory_mib: float = 0.0
    gpu_memory_mib: float = 0.0
    kind: ResultFormat = ResultFormat.PICKLE
    proof: bytes = b""


@dataclass(slots=True, eq=False)
class _Worker:
    process: asyncio.subprocess.Process
    place: Place
    code: Path
    account: Account | None
    log: Path
    served: bool = False
    idle_since_s: float = field(default_factory=time.monotonic)

    def kill(self) -> None:
        """End it and what it started, in whatever session that is by now."""
        pid = self.process.pid
        below = shim.descendants(pid) if self.process.returncode is None else []
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        for one in below:
            with contextlib.suppress(ProcessLookupError):
                os.kill(one, signal.SIGKILL)


class Workers:
    """Invariants: a worker is in ``_idle``, or serves the run under which it is in ``_busy``, or is
    being killed; all whose end has not been seen are in ``_alive``.
    """

    def __init__(
        self, share: PipelineShare, directory: Path, import_path: str, mark: str = ""
    ) -> None:
        """``mark``: in the environment of all processes of this agent's workers."""
        self._share = share
        self._directory = directory
        self._import_path = import_path
        self._mark = mark
        self._idle: list[_Worker] = []
        self._busy: dict[int, _Worker | None] = {}
        self._stopped: set[int] = set()
        self._alive: set[_Worker] = set()

    async def run(
        self,
        run: int,
        place: Place,
        code: Path,
        job: dict[str, Any],
        started: Callable[[int], None],
        account: Account | None = None,
    ) -> RunResult:
        """Run one subtask to its end, as ``account`` (None: as the agent). ``code``: a directory of
        modules that were sent with the task.

        ``started`` is called with the worker's pid.
        """
        self._busy[run] = None
        worker: _Worker | None = None
        try:
            if run in self._stopped:
                return RunResult(outcome=RunOutcome.CRASHED, message="stopped before it began")
            worker = self._take(place, code, account) or await self._spawn(place, code, account)
            self._busy[run] = worker
            if run in self._stopped:
                worker.kill()
            started(worker.process.pid)
            return await self._ask(worker, job)
        except OSError as error:
            return RunResult(outcome=RunOutcome.CRASHED, message=f"no worker starts: {error}")
        finally:
            del self._busy[run]
            stopped = run in self._stopped
            self._stopped.discard(run)
            if worker is not None:
                # A worker that was killed as it replied may still be dying.
                if worker.process.returncode is None and not stopped:
                    worker.idle_since_s = time.monotonic()
                    self._keep(worker)
                else:
                    worker.kill()  # and what is left of its group

    def _keep(self, worker: _Worker) -> None:
        """Keep it for the next run; ``_idle`` is in the order of waiting."""
        self._idle.append(worker)
        same = [one for one in self._idle if one.place == worker.place]
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
        """End workers that have been idle for too long; truncate logs that are too large."""
        for path in self._directory.glob("worker-*.log"):
            if path.stat().st_size > _LOG_BYTES_MAX:
                os.truncate(path, 0)
        limit_s = time.monotonic() - _IDLE_S
        for worker in [one for one in self._idle if one.idle_since_s < limit_s]:
            self._idle.remove(worker)
            worker.kill()

    async def end_former(self) -> None:
        """Kill processes that functions of an earlier agent's workers, or of these, left behind."""
        if self._mark:
            await asyncio.to_thread(supervisor.kill_marked, self._mark)

    async def close(self) -> None:
        """End all workers, busy ones included, and wait for the ends of those killed before."""
        workers = [one for one in self._alive if one.process.returncode is None]
        self._idle = []
        for worker in workers:
            worker.kill()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_WAIT_S):
                await asyncio.gather(*(worker.process.wait() for worker in workers))
        await self.end_former()

    def _take(self, place: Place, code: Path, account: Account | None) -> _Worker | None:
        """An idle worker of this user and this code; others on the same core are ended."""
        found: _Worker | None = None
        for worker in [one for one in self._idle if one.place == place]:
            alive = worker.process.returncode is None
            if found is None and alive and (worker.code, worker.account) == (code, account):
                found = worker
                self._idle.remove(worker)
            elif not alive or place[0] is Device.CPU:
                self._idle.remove(worker)
                worker.kill()
        return found

    async def _spawn(self, place: Place, code: Path, account: Account | None) -> _Worker:
        scratch = self._scratch(account)
        path = self._log_path(place, account)
        with _log_file(path, account) as log:
            process = await asyncio.create_subprocess_exec(
                *_command(account),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                cwd=scratch,
                env=self._environment(place, code, account, scratch),
                start_new_session=True,
                limit=_LINE_BYTES_MAX,
            )
        descriptors.give_back(process.pid)
        cpus = self._cpus(place)
        if cpus:
            with contextlib.suppress(OSError):
                os.sched_setaffinity(process.pid, cpus)
        self._alive = {one for one in self._alive if one.process.returncode is None}
        self._alive.add(worker := _Worker(process, place, code, account, path))
        return worker

    def _scratch(self, account: Account | None) -> Path:
        scratch = self._directory / "scratch"
        scratch.mkdir(parents=True, exist_ok=True)
        if account is None:
            return scratch
        own = scratch / str(account.uid)
        if not own.exists():
            own.mkdir(mode=0o700)
            hand_over(own, account)
        return own

    def _log_path(self, place: Place, account: Account | None) -> Path:
        owner = "" if account is None else f"{account.name}-"
        return self._directory / f"worker-{owner}{place[0].value}-{place[1]}.log"

    def _cpus(self, place: Place) -> set[int]:
        """The CPUs that the worker may use; empty: all."""
        numbers = self._share.cpus
        if place[0] is Device.CPU:
            numbers = numbers[place[1] : place[1] + 1]
        return {number for number in numbers if number is not None}

    def _environment(
        self, place: Place, code: Path, account: Account | None, scratch: Path
    ) -> dict[str, str]:
        device, number = place
        own = str(Path(hrm.__file__).parents[1])
        inherited = os.environ.get("PYTHONPATH", "")
        paths = [str(code), *self._import_path.split(os.pathsep), inherited, own]
        environment = {
            **(os.environ if account is None else _of_user(account, scratch)),
            "PYTHONPATH": os.pathsep.join(path for path in paths if path),
            "PYTHONUNBUFFERED": "1",
            "CUDA_VISIBLE_DEVICES": "",
            supervisor.MARK: self._mark,
        }
        if device is Device.GPU and not self._share.gpus[number].declared:
            environment["CUDA_VISIBLE_DEVICES"] = self._share.gpus[number].uuid or str(number)
        if device is Device.CPU:
            environment |= dict.fromkeys(_ONE_THREAD, "1")
            environment["OPENCV_FOR_THREADS_NUM"] = "1"
        return environment

    async def _ask(self, worker: _Worker, job: dict[str, Any]) -> RunResult:
        process = worker.process
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(job).encode() + b"\n")
            await process.stdin.drain()
            line = await process.stdout.readline()
            reply = _result_of(json.loads(line)) if line else None
        except (ConnectionError, ValueError, RecursionError) as error:
            _log.warning("a worker's reply is malformed", why=repr(error))
            reply = None
        except asyncio.CancelledError:
            worker.kill()
            raise
        if reply is None:
            worker.kill()
            status = await process.wait()
            why = _how_it_ended(status)
            if not worker.served:
                why += f", at its first request; {worker.log} may show more"
            return RunResult(outcome=RunOutcome.CRASHED, message=why)
        worker.served = True
        if reply.outcome is RunOutcome.OUT_OF_MEMORY:
            # Processes that the function left behind may have filled the memory.
            worker.kill()
            await process.wait()
        return reply


def _command(account: Account | None) -> tuple[str, ...]:
    worker = (sys.executable, "-m", "hrm.pipelines.agent.worker")
    if account is None:
        return worker
    become = (shim.__file__, shim.BECOME, json.dumps(account.for_shim()))
    return (sys.executable, "-I", "-S", *become, *worker)


def _of_user(account: Account, scratch: Path) -> dict[str, str]:
    """The environment of another user's worker: nothing in it is confidential to the agent."""
    inherited = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    path = inherited.get("PATH") or os.defpath
    own = {"PATH": f"{Path(sys.executable).parent}:{path}", "TMPDIR": str(scratch)}
    return {"LANG": "C.UTF-8", **inherited, **own, **account.environment(scratch)}


def _log_file(path: Path, account: Account | None) -> IO[bytes]:
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    file = os.fdopen(os.open(path, flags, 0o600), "ab")
    if account is not None:
        os.fchown(file.fileno(), account.uid, account.gid)
    return file


def _result_of(reply: Any) -> RunResult:
    """A worker's reply about a run.

    Raises:
        ValueError: it is not a valid reply.
    """
    if not isinstance(reply, dict):
        raise ValueError("it is no object")
    if "error" in reply:
        message = (
            f"no worker starts: {_text(reply, 'error')}; put HRM and its Python where all users "
            f"can run them, such as /opt"
        )
        return RunResult(outcome=RunOutcome.CRASHED, message=message)
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
