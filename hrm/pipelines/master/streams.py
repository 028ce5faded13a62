"""Bounded queues of pipelines at the master: to each worker, and to each client that watches."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

import structlog

from hrm import clock
from hrm.pipelines.core import cluster_messages as m
from hrm.pipelines.core.model import TaskId
from hrm.v1 import pipeline_pb2 as pb
from hrm.wire import pipeline_stream

__all__ = ["WatchedTasks", "Watcher", "WorkerStream"]

_WATCHED_MAX = 10_000
_ORDERS_MAX = 10_000
"""More than a worker's maximum of tasks, and withdrawals of them."""
log = structlog.get_logger("master.pipelines")


@dataclass(slots=True, eq=False)
class Watcher:
    """A client that watches ``open`` tasks. ``overflowed``: it was too slow and misses updates."""

    open: set[TaskId]
    updates: deque[pb.PipelineTaskUpdate] = field(default_factory=deque)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    overflowed: bool = False

    def put(self, update: pb.PipelineTaskUpdate) -> None:
        if len(self.updates) >= _WATCHED_MAX + len(self.open):
            self.overflowed = True
        else:
            self.updates.append(update)
        self.changed.set()


class WatchedTasks:
    """Who watches which task. ``last``: of every task that is known, the update that says where it
    is, for those who come later."""

    def __init__(self) -> None:
        self.last: dict[TaskId, pb.PipelineTaskUpdate] = {}
        self._of: dict[TaskId, list[Watcher]] = {}

    def update(self, task_id: TaskId, update: pb.PipelineTaskUpdate, *, last: bool = False) -> None:
        update.task_id = task_id
        update.at_s = clock.now()
        if last:
            self.last[task_id] = update
        for watcher in self._of.get(task_id, ()):
            watcher.put(update)

    def end(self, task_id: TaskId, update: pb.PipelineTaskUpdate) -> bool:
        """The last update of all. Does anybody watch?"""
        self.update(task_id, update, last=True)
        watchers = self._of.pop(task_id, ())
        for watcher in watchers:
            watcher.open.discard(task_id)
        return bool(watchers)

    def watch(self, where: Mapping[TaskId, str], live: set[TaskId]) -> Watcher:
        """Watch these from now on; the first updates say where each is, in words where it has not
        been placed."""
        watcher = Watcher(open=live)
        for task_id, why in where.items():
            last = self.last.get(task_id)
            if last is None:
                last = pipeline_stream.queued(why)
                last.task_id, last.at_s = task_id, clock.now()
            watcher.put(last)
        for task_id in live:
            self._of.setdefault(task_id, []).append(watcher)
        return watcher

    def unwatch(self, watcher: Watcher) -> None:
        for task_id in watcher.open:
            others = [one for one in self._of.get(task_id, ()) if one is not watcher]
            if others:
                self._of[task_id] = others
            else:
                self._of.pop(task_id, None)


class WorkerStream:
    """The stream to one worker: orders in sequence; an input is read when it is due."""

    def __init__(self, identity: str) -> None:
        self.identity = identity
        self.queue: asyncio.Queue[m.PlaceTask | pb.MasterPipelineMessage | None] = asyncio.Queue()
        self.closed = False
        self.stream_ended = asyncio.Event()
        """Set with ``closed``: the handler ends the stream, whatever it waits for."""
        self._offered: pb.MasterPipelineMessage | None = None
        """The last that ``offer`` has queued, until it is ``written``."""

    def put(self, what: m.PlaceTask | pb.MasterPipelineMessage) -> None:
        if self.closed:
            return
        if self.queue.qsize() >= _ORDERS_MAX:
            log.warning("a worker does not keep up; it must reconnect", orders=_ORDERS_MAX)
            self.close()
            return
        self.queue.put_nowait(what)

    def offer(self, what: pb.MasterPipelineMessage) -> bool:
        """Queue a message that a later one makes up for; false: the last such one is still queued,
        and this one is not. So a slow worker holds one of them at most."""
        if self.closed or self._offered is not None:
            return False
        self._offered = what
        self.put(what)
        return True

    def written(self, what: pb.MasterPipelineMessage) -> None:
        """The worker has taken it."""
        if what is self._offered:
            self._offered = None

    def close(self) -> None:
        self.closed = True
        self.stream_ended.set()
        self.queue.put_nowait(None)
