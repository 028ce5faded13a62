"""Worker processes of pipelines: one for each core in use, some for each GPU.

A worker is kept for the next run on its core or GPU if that has the same code, and ended after a
minute without one: imports are paid once, but what a library holds on a GPU is not held for ever.
At most four wait on one GPU, whatever their code; the one that has waited longest makes room.
To stop a run is to kill its worker's process group. A worker dies with its agent.
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
from hrm.agent.pipeline_share import PipelineShare
from hrm.core.pipeline.feasibility import CAPS
from hrm.core.pipeline.model import Device
from hrm.core.pipeline.node_messages import RunOutcome

__all__ = ["RunResult", "Workers"]

_IDLE_S = 60.0
_IDLE_MAX = CAPS.co_runners_max
"""Of one core or GPU."""
_WAIT_S = 10.0
_LOG_BYTES_MAX = 16 << 20
_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_log = structlog.get_logger("hrm.agent.pipelines")

Place = tuple[Device, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """How a run ended. Memory peaks in MiB, 0 where nobody measured."""

    outcome: RunOutcome
    message: str = ""
    ran_s: float | None = None
    memory_mib: float = 0.0
    gpu_memory_mib: float = 0.0


@dataclass(slots=True, eq=False)
class _Worker:
    process: asyncio.subprocess.Process
    place: Place
    code: Path
    idle_since_s: float = field(default_factory=time.monotonic)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)


class Workers:
    """Invariants: a worker is in ``_idle``, or serves the run under which it is in ``_busy``, or is
    being killed; all whose end has not been seen are in ``_alive``.
    """

    def __init__(self, share: PipelineShare, directory: Path, import_path: str) -> None:
        self._share = share
        self._directory = directory
        self._import_path = import_path
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
    ) -> RunResult:
        """Run one subtask to its end. ``code``: a directory of modules that were sent along.

        ``started`` hears the worker's pid.
        """
        self._busy[run] = None
        worker: _Worker | None = None
        try:
            if run in self._stopped:
                return RunResult(outcome=RunOutcome.CRASHED, message="stopped before it began")
            worker = self._take(place, code) or await self._spawn(place, code)
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
                # One that was killed as it answered may be dying still.
                if worker.process.returncode is None and not stopped:
                    worker.idle_since_s = time.monotonic()
                    self._keep(worker)
                else:
                    worker.kill()  # what it may have left in its group

    def _keep(self, worker: _Worker) -> None:
        """For the next run; ``_idle`` is in the order of waiting."""
        self._idle.append(worker)
        same = [one for one in self._idle if one.place == worker.place]
        for surplus in same[:-_IDLE_MAX]:
            self._idle.remove(surplus)
            surplus.kill()

    def stop(self, run: int) -> None:
        """Kill the run's processes; ``run`` then answers as for any crash.

        To be called for runs that are not over. One whose ``run`` has yet to begin ends there.
        """
        self._stopped.add(run)
        worker = self._busy.get(run)
        if worker is not None:
            worker.kill()

    def end_idle(self) -> None:
        """End workers that have had nothing to do for long; begin logs anew that are too long."""
        for path in self._directory.glob("worker-*.log"):
            if path.stat().st_size > _LOG_BYTES_MAX:
                os.truncate(path, 0)
        limit_s = time.monotonic() - _IDLE_S
        for worker in [one for one in self._idle if one.idle_since_s < limit_s]:
            self._idle.remove(worker)
            worker.kill()

    async def close(self) -> None:
        """End all workers, busy ones, too, and see the ends of those that were killed before."""
        workers = [one for one in self._alive if one.process.returncode is None]
        self._idle = []
        for worker in workers:
            worker.kill()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_WAIT_S):
                await asyncio.gather(*(worker.process.wait() for worker in workers))

    def _take(self, place: Place, code: Path) -> _Worker | None:
        """An idle worker of this code; those of other code on the same core are in the way."""
        found: _Worker | None = None
        for worker in [one for one in self._idle if one.place == place]:
            alive = worker.process.returncode is None
            if found is None and alive and worker.code == code:
                found = worker
                self._idle.remove(worker)
            elif not alive or place[0] is Device.CPU:
                self._idle.remove(worker)
                worker.kill()
        return found

    async def _spawn(self, place: Place, code: Path) -> _Worker:
        scratch = self._directory / "scratch"
        scratch.mkdir(parents=True, exist_ok=True)
        with self._log_file(place) as log:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-m", "hrm.pipeline.worker"),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                cwd=scratch,
                env=self._environment(place, code),
                start_new_session=True,
                limit=1 << 20,
            )
        cpus = self._cpus(place)
        if cpus:
            with contextlib.suppress(OSError):
                os.sched_setaffinity(process.pid, cpus)
        self._alive = {one for one in self._alive if one.process.returncode is None}
        self._alive.add(worker := _Worker(process, place, code))
        return worker

    def _log_file(self, place: Place) -> IO[bytes]:
        path = self._directory / f"worker-{place[0].value}-{place[1]}.log"
        return path.open("ab")

    def _cpus(self, place: Place) -> set[int]:
        """The CPUs that the worker may use; none: all."""
        numbers = self._share.cpus
        if place[0] is Device.CPU:
            numbers = numbers[place[1] : place[1] + 1]
        return {number for number in numbers if number is not None}

    def _environment(self, place: Place, code: Path) -> dict[str, str]:
        device, number = place
        own = str(Path(hrm.__file__).parents[1])
        inherited = os.environ.get("PYTHONPATH", "")
        paths = [str(code), *self._import_path.split(os.pathsep), inherited, own]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(path for path in paths if path),
            "PYTHONUNBUFFERED": "1",
            "CUDA_VISIBLE_DEVICES": "",
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
            answer = json.loads(line) if line else None
        except (ConnectionError, ValueError) as error:
            _log.warning("a worker does not answer as it should", why=repr(error))
            answer = None
        except asyncio.CancelledError:
            worker.kill()
            raise
        if answer is None:
            worker.kill()
            status = await process.wait()
            return RunResult(outcome=RunOutcome.CRASHED, message=_how_it_ended(status))
        if answer["outcome"] == RunOutcome.OUT_OF_MEMORY.name:
            # What the function has left behind may be what filled the memory.
            worker.kill()
            await process.wait()
        answer["outcome"] = RunOutcome[answer["outcome"]]
        return RunResult(**answer)


def _how_it_ended(status: int) -> str:
    if status >= 0:
        return f"its process ended by itself with exit code {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = str(-status)
    return f"its process was killed by {name}"
