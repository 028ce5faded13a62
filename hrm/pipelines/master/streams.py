"""Bounded queues of pipelines at the master: to each worker, and to each client that watches."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field

import structlog

from hrm.pipelines.core import cluster_messages as m
from hrm.pipelines.core.model import TaskId
from hrm.v1 import pipeline_pb2 as pb

__all__ = ["Watcher", "WorkerStream"]

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


class WorkerStream:
    """The stream to one worker: orders in sequence; an input is read when it is due."""

    def __init__(self, identity: str) -> None:
        self.identity = identity
        self.queue: asyncio.Queue[m.PlaceTask | pb.MasterPipelineMessage | None] = asyncio.Queue()
        self.closed = False
        self.stream_ended = asyncio.Event()
        """Set with ``closed``: the handler ends the stream, whatever it waits for."""

    def put(self, what: m.PlaceTask | pb.MasterPipelineMessage) -> None:
        if self.closed:
            return
        if self.queue.qsize() >= _ORDERS_MAX:
            log.warning("a worker does not keep up; it must reconnect", orders=_ORDERS_MAX)
            self.close()
            return
        self.queue.put_nowait(what)

    def close(self) -> None:
        self.closed = True
        self.stream_ended.set()
        self.queue.put_nowait(None)
