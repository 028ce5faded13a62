"""Inputs and results of pipeline tasks on the master's disk, within a bound.

One file each under ``state_dir/pipelines``; what an earlier master left stays as far as its tasks
are known. At the bound, the oldest results that have not been fetched are
evicted, but none younger than a minute, because its client is about to fetch it.

No call waits for the disk on the event loop. The accounting changes immediately: the next call sees
reserved capacity as used, and a dropped task as gone. A few threads do the writes, for the files of
one task in the order of the calls. A started operation runs to completion even if its caller is
gone.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Container, Coroutine
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import structlog

from hrm.errors import LimitReached, NotFound
from hrm.master.disk_thread import Disk, open_file, size_of
from hrm.pipelines.core.model import ResultFormat, TaskId
from hrm.wire.pipelines import CHUNK_BYTES

__all__ = ["NO_PROOF", "RESULT_SAFE_S", "PipelineFiles", "ResultProof"]

RESULT_SAFE_S = 60.0
_log = structlog.get_logger("master.pipelines")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ResultProof:
    """A worker's proof of a result, which only the client can verify. ``in_dir``: the result stays
    in the directory that the task names."""

    kind: ResultFormat
    proof: bytes
    placement: int
    size: int
    in_dir: bool = False


NO_PROOF = ResultProof(ResultFormat.PICKLE, b"", 0, 0)


class PipelineFiles:
    """Files of a task by kind: "in", "out", or "N.part", a result that is being received.

    Invariant: ``held_bytes`` is the sum of all sizes, including what is being written.
    """

    def __init__(
        self,
        directory: Path,
        bytes_max: int,
        ends_bytes: Callable[[], int] = lambda: 0,
        *,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """``ends_bytes``: what ends of tasks hold, which counts, too."""
        self._directory = directory
        self._bytes_max = bytes_max
        self._ends_bytes = ends_bytes
        self._now_s = now_s
        self._results: dict[TaskId, float] = {}
        """When each result was complete, the oldest first."""
        self._sizes: dict[TaskId, dict[str, int]] = {}
        self._turns: dict[TaskId, asyncio.Task[Any]] = {}
        """The last disk operation queued for a task's files."""
        self._disk = Disk("hrm-pipelines")
        self.held_bytes = 0
        self.evicted: Callable[[TaskId], None] = lambda _task_id: None
        """Is called when a task's result is dropped for newer ones."""
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)

    def adopt(self, live: Container[TaskId], ended: Container[TaskId]) -> None:
        """Take over what an earlier master left of these tasks; the rest is removed. Blocks, for
        the start."""
        for path in sorted(self._directory.iterdir(), key=lambda x: x.stat().st_mtime):
            name, _, what = path.name.rpartition(".")
            task_id = TaskId(name)
            if what == "in" and task_id in live:
                self._set(task_id, what, path.stat().st_size)
            elif what == "out" and task_id in ended:
                self._set(task_id, what, path.stat().st_size)
                self._results[task_id] = self._now_s()
            elif path.is_file():
                path.unlink(missing_ok=True)

    def has_input(self, task_id: TaskId) -> bool:
        return "in" in self._sizes.get(task_id, {})

    def _path(self, task_id: TaskId, what: str) -> Path:
        return self._directory / f"{task_id}.{what}"

    def _set(self, task_id: TaskId, what: str, size: int) -> None:
        sizes = self._sizes.setdefault(task_id, {})
        self.held_bytes += size - sizes.get(what, 0)
        sizes[what] = size

    def _forget(self, task_id: TaskId, what: str) -> int:
        size = self._sizes[task_id].pop(what)
        self.held_bytes -= size
        return size

    def _free_up(self, size: int) -> None:
        safe_s = self._now_s() - RESULT_SAFE_S
        most = self._bytes_max - self._ends_bytes()
        while self.held_bytes + size > most and self._results:
            oldest, since_s = next(iter(self._results.items()))
            if since_s > safe_s:
                break
            self.drop(oldest)
            self.evicted(oldest)
        if self.held_bytes + size > most:
            held = self.held_bytes + self._ends_bytes()
            raise LimitReached(
                f"inputs, results and ends of pipeline tasks hold {held >> 20} MiB of the "
                f"{self._bytes_max >> 20} MiB that pipeline_held_mib allows; fetch results with "
                f"`forget`, or raise it"
            )

    async def put_input(self, task_id: TaskId, data: bytes) -> None:
        """Store an input.

        Raises:
            LimitReached: it would exceed the bound.
        """
        await self._add(task_id, "in", 0, data)

    async def add(self, task_id: TaskId, attempt: int, offset: int, data: bytes) -> None:
        """Store a piece of a result that is being received; offset 0 starts over.

        Raises:
            LimitReached: it would exceed the bound.
        """
        await self._add(task_id, f"{attempt}.part", offset, data)

    async def _add(self, task_id: TaskId, what: str, offset: int, data: bytes) -> None:
        self._free_up(len(data))
        before = self.size(task_id, what) if offset else 0
        self._set(task_id, what, before + len(data))
        write = partial(self._write, task_id, what, data, "ab" if offset else "wb")
        await asyncio.shield(self._in_turn(task_id, write))

    async def _write(self, task_id: TaskId, what: str, data: bytes, mode: str) -> None:
        path, failed = self._path(task_id, what), None
        try:
            size = await self._disk.do(_write, path, data, mode)
        except OSError as error:
            size, failed = await self._disk.do(size_of, path), error
        if what in self._sizes.get(task_id, {}):  # it may have been dropped meanwhile
            self._set(task_id, what, size)
        if failed is not None:
            reason = f"{path} cannot be written: {failed.strerror}; free space on the master"
            raise LimitReached(reason) from failed

    def finish(self, task_id: TaskId, attempt: int, size: int) -> bool:
        """Make the pieces the result; False if they are not complete."""
        what = f"{attempt}.part"
        if self._sizes.get(task_id, {}).get(what) != size:
            return False
        self._set(task_id, "out", self._forget(task_id, what))
        self._results.pop(task_id, None)
        self._results[task_id] = self._now_s()
        part, whole = self._path(task_id, what), self._path(task_id, "out")
        self._in_turn(task_id, partial(self._disk.do, part.rename, whole))
        return True

    async def settled(self, task_id: TaskId) -> None:
        """Returns when all that was asked of this task's files so far has been done."""
        turn = self._turns.get(task_id)
        if turn is not None:
            await asyncio.wait((turn,))

    def drop(self, task_id: TaskId, *, result: bool = True) -> None:
        """Remove the input, the pieces and, if ``result``, the result."""
        gone = [w for w in self._sizes.get(task_id, ()) if w != "out" or result]
        for what in gone:
            self._forget(task_id, what)
        if result:
            self._results.pop(task_id, None)
        if not self._sizes.get(task_id, True):
            del self._sizes[task_id]
        if gone:
            paths = [self._path(task_id, what) for what in gone]
            self._in_turn(task_id, partial(self._disk.do, _remove, paths))

    def size(self, task_id: TaskId, what: str) -> int:
        """Bytes; 0: there is no such file."""
        return self._sizes.get(task_id, {}).get(what, 0)

    async def chunks(self, task_id: TaskId, what: str) -> AsyncGenerator[bytes, None]:
        """The input ("in") or the result ("out"), piece by piece.

        Raises:
            NotFound: there is none, or it has been removed.
        """
        missing = NotFound(
            f"no result of pipeline task {task_id} is here: the task has not ended well, or its "
            f"result is in its result_dir, has been fetched and forgotten, or was evicted for "
            f"newer ones, since the master keeps {self._bytes_max >> 20} MiB of inputs and results "
            f"(pipeline_held_mib)"
        )
        if what not in self._sizes.get(task_id, {}):
            raise missing
        opening = partial(self._disk.do, open_file, self._path(task_id, what))
        try:
            file = await asyncio.shield(self._in_turn(task_id, opening))
        except FileNotFoundError:
            raise missing from None
        with file:
            while data := await self._disk.do(file.read, CHUNK_BYTES):
                yield data

    def _in_turn(
        self, task_id: TaskId, work: Callable[[], Coroutine[Any, Any, T]]
    ) -> asyncio.Task[T]:
        """Do it after all earlier operations on this task's files."""
        before = self._turns.get(task_id)

        async def turn() -> T:
            if before is not None:
                await asyncio.wait((before,))
            return await work()

        def over(task: asyncio.Task[T]) -> None:
            if self._turns.get(task_id) is task:
                del self._turns[task_id]
            if not task.cancelled() and isinstance(error := task.exception(), OSError):
                _log.warning("a file of a pipeline task", task=task_id, why=str(error))

        task = self._turns[task_id] = asyncio.get_running_loop().create_task(turn())
        task.add_done_callback(over)
        return task


def _write(path: Path, data: bytes, mode: str) -> int:
    """Returns the file's size afterwards."""
    with path.open(mode) as file:
        file.write(data)
        return file.tell()


def _remove(paths: list[Path]) -> None:
    for path in paths:
        path.unlink(missing_ok=True)
