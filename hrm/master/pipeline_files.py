"""Inputs and results of pipeline tasks on the master's disk, within a bound.

One file each under ``state_dir/pipelines``. They live as long as the master does: its queue is in
memory, so what a former master left is removed at the start.

Where there is no room, results that nobody has fetched make some, the oldest first, but none that
is younger than a minute: whoever waits for it is about to fetch it.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from hrm.core.pipeline.model import TaskId
from hrm.errors import LimitReached, NotFound
from hrm.pipeline_wire import CHUNK_BYTES

__all__ = ["RESULT_SAFE_S", "PipelineFiles"]

RESULT_SAFE_S = 60.0


class PipelineFiles:
    """Files of a task, by what they are: "in", "out", or "N.part", a result on its way.

    Invariant: ``held_bytes`` is the sum of all sizes.
    """

    def __init__(
        self, directory: Path, bytes_max: int, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._directory = directory
        self._bytes_max = bytes_max
        self._now_s = now_s
        self._results: dict[TaskId, float] = {}
        """When each result was there, the oldest first."""
        self._sizes: dict[TaskId, dict[str, int]] = {}
        self.held_bytes = 0
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True, mode=0o700)

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

    def _room_for(self, size: int) -> None:
        safe_s = self._now_s() - RESULT_SAFE_S
        while self.held_bytes + size > self._bytes_max and self._results:
            oldest, since_s = next(iter(self._results.items()))
            if since_s > safe_s:
                break
            self.drop(oldest)
        if self.held_bytes + size > self._bytes_max:
            raise LimitReached(
                f"inputs and results of pipeline tasks hold {self.held_bytes >> 20} MiB of the "
                f"{self._bytes_max >> 20} MiB that pipeline_held_mib allows; fetch results with "
                f"`forget`, or raise it"
            )

    def put_input(self, task_id: TaskId, data: bytes) -> None:
        """Keep an input.

        Raises:
            LimitReached: no room for it.
        """
        self._room_for(len(data))
        path = self._path(task_id, "in")
        try:
            path.write_bytes(data)
        except OSError as error:
            path.unlink(missing_ok=True)
            raise _full(path, error) from error
        self._set(task_id, "in", len(data))

    def add(self, task_id: TaskId, attempt: int, offset: int, data: bytes) -> None:
        """A piece of a result that is on its way; offset 0 begins anew.

        Raises:
            LimitReached: no room for it.
        """
        self._room_for(len(data))
        what = f"{attempt}.part"
        path = self._path(task_id, what)
        try:
            with path.open("ab" if offset else "wb") as file:
                file.write(data)
                size = file.tell()
        except OSError as error:
            raise _full(path, error) from error
        self._set(task_id, what, size)

    def finish(self, task_id: TaskId, attempt: int, size: int) -> bool:
        """The pieces are the result; False if they are not all there."""
        what = f"{attempt}.part"
        if self._sizes.get(task_id, {}).get(what) != size:
            return False
        self._path(task_id, what).rename(self._path(task_id, "out"))
        self._set(task_id, "out", self._forget(task_id, what))
        self._results.pop(task_id, None)
        self._results[task_id] = self._now_s()
        return True

    def drop(self, task_id: TaskId, *, result: bool = True) -> None:
        """Forget the input, the pieces, and ``result``, too, unless told not to."""
        for what in list(self._sizes.get(task_id, ())):
            if what != "out" or result:
                self._forget(task_id, what)
                self._path(task_id, what).unlink(missing_ok=True)
        if result:
            self._results.pop(task_id, None)
        if not self._sizes.get(task_id, True):
            del self._sizes[task_id]

    def size(self, task_id: TaskId, what: str) -> int:
        """Bytes; 0: there is no such file."""
        return self._sizes.get(task_id, {}).get(what, 0)

    def chunks(self, task_id: TaskId, what: str) -> Iterator[bytes]:
        """The input ("in") or the result ("out"), piece by piece.

        Raises:
            NotFound: there is none (any more).
        """
        if what not in self._sizes.get(task_id, {}):
            raise NotFound(
                f"no result of pipeline task {task_id} is here: it has not ended well, or it has "
                f"been fetched and forgotten, or made room for newer ones (pipeline_held_mib)"
            )
        return _chunks(self._path(task_id, what))


def _full(path: Path, error: OSError) -> LimitReached:
    return LimitReached(f"{path} cannot be written: {error.strerror}; make room on the master")


def _chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while data := file.read(CHUNK_BYTES):
            yield data
