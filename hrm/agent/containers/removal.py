"""Removal of what ended containers wrote. It may take seconds, and on a disk that has failed for
ever, so nothing waits for it: neither the report of an end, nor the next container, nor the agent's
start."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import structlog

__all__ = ["FileRemoval"]

_THREADS = 2
_log = structlog.get_logger("hrm.agent.containers")


class FileRemoval:
    """Containers whose files are being removed, in threads of its own. One event loop, but for
    ``names``, ``is_acknowledged`` and ``in``.

    Invariant: that the master knows of an end is recorded only once the files are removed. So the
    next run of the agent finishes what this one does not, and what this one fails at.
    """

    def __init__(self, remove: Callable[[str], None], record: Callable[[str], None]) -> None:
        """``remove(container_id)`` removes its files, in another thread, or raises OSError;
        ``record(container_id)`` writes down that the master knows of its end."""
        self._remove = remove
        self._record = record
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="hrm-remove")
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._left: set[str] = set()
        """Whose files are not removed: those of ``_tasks``, and those at which it failed."""
        self._acknowledged: set[str] = set()
        """Those of ``_left`` for which ``acknowledge`` was called."""

    def __contains__(self, container_id: str) -> bool:
        return container_id in self._tasks

    def names(self) -> tuple[str, ...]:
        return tuple(self._tasks)

    def begin(self, container_id: str) -> None:
        """Remove the files of a container that has ended, in the background."""
        if container_id in self._tasks:
            return
        self._left.add(container_id)
        running = asyncio.get_running_loop().create_task(self._run(container_id))
        self._tasks[container_id] = running

    async def _run(self, container_id: str) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(self._threads, self._remove, container_id)
        except OSError as error:
            _log.warning(
                "files of a container are left; the next run of the agent tries again",
                container=container_id,
                why=str(error),
            )
            return
        except Exception:
            _log.exception("cannot remove a container's files", container=container_id)
            return
        finally:
            del self._tasks[container_id]
        self._left.discard(container_id)
        if container_id in self._acknowledged:
            self._acknowledged.discard(container_id)
            self._record(container_id)

    def acknowledge(self, container_id: str) -> None:
        """The master knows of this end."""
        if container_id in self._left:
            self._acknowledged.add(container_id)
        else:
            self._record(container_id)

    def is_acknowledged(self, container_id: str) -> bool:
        """Whether the master knows of the end of one whose files could not be removed."""
        return container_id in self._acknowledged

    async def make_way(self, container_id: str, limit_s: float) -> bool:
        """Before a container of that id starts: wait until the files of an earlier one are removed,
        ``limit_s`` at most; returns whether they are."""
        if (task := self._tasks.get(container_id)) is not None:
            await asyncio.wait([task], timeout=limit_s)
        return container_id not in self._left

    async def wait(self) -> None:
        """Until no removal is left; what begins meanwhile included."""
        while self._tasks:
            await asyncio.wait(tuple(self._tasks.values()))

    async def close(self) -> None:
        """What has not begun is left to the next run of the agent."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        tasks = tuple(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
