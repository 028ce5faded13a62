"""The updates that one session sends to the master.

gRPC continues to take updates from a call's iterator after the *server* has ended that call. So
every session has an iterator of its own, which is closed with it::

    attach -> (progress | update | heartbeat) ... -> finished
              progress waits for the master's reply to attach and precedes what else waits, so that
              it never comes after the final update
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
from collections.abc import AsyncIterator

from hrm.v1 import application_pb2
from hrm.wire import appmaster as app_wire

__all__ = ["Outgoing"]


class Outgoing:
    """The updates of one session, in order.

    Attributes:
        attached: the master has replied; progress may be sent.
        goodbye_said: the final update has been passed to gRPC.
        overflowed: the master reads nothing, and more than ``updates_max`` updates were waiting.
    """

    def __init__(self, attach: application_pb2.ApplicationUpdate, updates_max: int) -> None:
        self._updates = collections.deque([attach])
        self._updates_max = updates_max
        self._progress: application_pb2.ApplicationUpdate | None = None
        self._pending = asyncio.Event()
        self._pending.set()
        self._closed = False
        self.attached = False
        self.final_update_sent = False
        self.overflowed = False

    def put(self, update: application_pb2.ApplicationUpdate) -> None:
        if not self._closed:
            self._updates.append(update)
            self.overflowed = self.overflowed or len(self._updates) > self._updates_max
            self._pending.set()

    def report(self, progress: application_pb2.ApplicationUpdate) -> None:
        """Replaces a report that has not been sent yet: only the newest counts, but for times of
        tasks, which are in one report each."""
        unsent = self._progress
        self._progress = progress if unsent is None else app_wire.with_unsent(progress, unsent)
        self._pending.set()

    def close(self) -> None:
        """Drops all updates; the iteration stops."""
        self._closed = True
        self._updates.clear()
        self._progress = None
        self._pending.set()

    async def stream(self, interval_s: float) -> AsyncIterator[application_pb2.ApplicationUpdate]:
        """The updates; a heartbeat after a while without any. Ends after the final update."""
        while not self._closed:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._pending.wait(), interval_s)
            self._pending.clear()
            update = self._next()
            if update is None and not self._closed:
                yield app_wire.heartbeat()
            while update is not None:
                self.final_update_sent = update.HasField("finished")
                yield update
                if self.final_update_sent:
                    return
                update = self._next()

    def _next(self) -> application_pb2.ApplicationUpdate | None:
        if self.attached and self._progress is not None:
            report, self._progress = self._progress, None
            return report
        return self._updates.popleft() if self._updates else None
