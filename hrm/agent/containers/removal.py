"""Removal of what ended containers wrote. It may take seconds, and on a disk that hangs for ever,
so nothing waits for it: neither the report of an end, nor the next container, nor the agent's
start. Each disk has a thread of its own, so that one that hangs holds up no other."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Mapping
from queue import SimpleQueue
from threading import Thread

import structlog

__all__ = ["FileRemoval"]

QUEUE_MAX = 10_000
"""Removals that may wait for one disk. Further ones are left for ``retry``."""
RETRIED_MAX = 100
"""Containers whose removal one ``retry`` begins again."""
_log = structlog.get_logger("hrm.agent.containers")

_Job = tuple[str, asyncio.AbstractEventLoop, "asyncio.Future[None]"]


class _Place:
    """Removals on one disk, one after the other. The thread does not hold up the process's end."""

    def __init__(self, remove: Callable[[str], None]) -> None:
        self._remove = remove
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._thread: Thread | None = None

    def remove(self, container_id: str) -> asyncio.Future[None]:
        """Raises OSError, from the future or here: not all could be removed, or too many wait."""
        if self._jobs.qsize() >= QUEUE_MAX:
            raise OSError(f"{QUEUE_MAX} removals wait for the disk already")
        if self._thread is None:
            self._thread = Thread(target=self._work, name="hrm-remove", daemon=True)
            self._thread.start()
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        self._jobs.put((container_id, loop, done))
        return done

    def close(self) -> None:
        """What has not begun is left."""
        while not self._jobs.empty():
            self._jobs.get()
        self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            container_id, loop, done = job
            error: Exception | None = None
            try:
                self._remove(container_id)
            except Exception as found:  # the caller's to look at; the thread goes on
                error = found
            with contextlib.suppress(RuntimeError):  # the loop has been closed
                loop.call_soon_threadsafe(_settle, done, error)


def _settle(done: asyncio.Future[None], error: Exception | None) -> None:
    if done.cancelled():
        return
    if error is None:
        done.set_result(None)
    else:
        done.set_exception(error)


class FileRemoval:
    """Containers whose files are being removed. One event loop, but for ``names``, ``is_removing``
    and ``is_acknowledged``.

    Invariant: that the master knows of an end is recorded only once the files are removed
    everywhere. So the next run of the agent finishes what this one does not, and what it fails at.
    """

    def __init__(
        self, places: Mapping[str, Callable[[str], None]], record: Callable[[str], None]
    ) -> None:
        """``places[name](container_id)`` removes its files on one disk, in another thread, or
        raises OSError; ``record(container_id)`` writes down that the master knows of its end."""
        self._places = {name: _Place(remove) for name, remove in places.items()}
        self._record = record
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._left: dict[str, frozenset[str]] = {}
        """Whose files are not removed, and where: those of ``_tasks``, and those at which it
        failed."""
        self._acknowledged: set[str] = set()
        """Those of ``_left`` for which ``acknowledge`` was called."""

    def __contains__(self, container_id: str) -> bool:
        return container_id in self._tasks

    def names(self) -> tuple[str, ...]:
        return tuple(self._tasks)

    def is_removing(self, container_id: str, place: str) -> bool:
        """Is it removed there now, or about to be?"""
        return container_id in self._tasks and place in self._left.get(container_id, ())

    def is_acknowledged(self, container_id: str, place: str) -> bool:
        """Does the master know of the end of one whose files are left elsewhere, and not there?"""
        return container_id in self._acknowledged and place not in self._left.get(container_id, ())

    def begin(self, container_id: str) -> None:
        """Remove the files of a container that has ended, in the background."""
        if container_id not in self._tasks:
            self._left[container_id] = frozenset(self._places)
            self._start(container_id)

    def retry(self) -> None:
        """Begin again what failed, the longest ago first, as far as it is not too much."""
        failed = (each for each in self._left if each not in self._tasks)
        for container_id in list(itertools.islice(failed, RETRIED_MAX)):
            self._start(container_id)

    def acknowledge(self, container_id: str) -> None:
        """The master knows of this end."""
        if container_id in self._left:
            self._acknowledged.add(container_id)
        else:
            self._record(container_id)

    async def make_way(self, container_id: str, limit_s: float) -> bool:
        """Before a container of that id starts: wait until the files of an earlier one are removed,
        ``limit_s`` at most; returns whether they are."""
        if container_id in self._left:
            if container_id not in self._tasks:
                self._start(container_id)
            await asyncio.wait([self._tasks[container_id]], timeout=limit_s)
        return container_id not in self._left

    async def wait(self) -> None:
        """Until no removal is left; what begins meanwhile included."""
        while self._tasks:
            await asyncio.wait(tuple(self._tasks.values()))

    async def close(self) -> None:
        """What has not begun is left to the next run of the agent."""
        for place in self._places.values():
            place.close()
        tasks = tuple(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _start(self, container_id: str) -> None:
        running = asyncio.get_running_loop().create_task(self._run(container_id))
        self._tasks[container_id] = running

    async def _run(self, container_id: str) -> None:
        places = sorted(self._left[container_id])
        try:
            await asyncio.gather(*(self._remove_at(container_id, place) for place in places))
        finally:
            del self._tasks[container_id]
        left = self._left.pop(container_id)
        if left:
            self._left[container_id] = left  # now the latest to fail
        elif container_id in self._acknowledged:
            self._acknowledged.discard(container_id)
            self._record(container_id)

    async def _remove_at(self, container_id: str, place: str) -> None:
        try:
            await self._places[place].remove(container_id)
        except OSError as error:
            _log.warning(
                "files of a container are left; the agent tries again",
                container=container_id,
                why=str(error),
            )
        except Exception:
            _log.exception("cannot remove a container's files", container=container_id)
        else:
            self._left[container_id] -= {place}
