"""Capacity that became free is offered first to what has waited longest, at another process, too.

A scheduler inside of the master is woken in the turn of the loop in which a container ends. One of
another process gets a message of it first, and its claims are another message. Without more, those
inside would take each place before that, however long the others' jobs had waited: with half of the
jobs at each, all of the wait would be that of jobs at processes.

So where the job that comes first (``rank_of``) is a remote scheduler's, that scheduler gets a head
start: what is inside and comes later waits until the remote one has made a round on a copy that
shows the capacity, and no longer than ``HEAD_START_S`` after that was sent. While it gets what it
claims and still comes first, its head start goes on; other remote ones are notified of the capacity
after it.

What bounds it: only for a demand of which it was known that no unit could take it, and now one may
(``core.scheduling.exhaustion``), so capacity that was there all along delays no scheduler. One that
lets its head start pass gets no other until it is heard again: a slow policy delays its own jobs.

Limits: the exhaustion's, so batch that may go anywhere: no gangs, no GPUs, nothing that avoids
nodes. Streams wait for no head start and get none.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from hrm.core.scheduling.remote_scheduler import SEND_INTERVAL_S, RemoteScheduler
from hrm.core.scheduling.scheduler import Job, rank_of

__all__ = ["HEAD_START_S", "HeadStarts"]

HEAD_START_S = 0.05
"""Several times what a round of a process takes, with its two messages."""


@dataclass(slots=True)
class _HeadStart:
    """``rank``: of the job that it is for. ``sequence``: of the message that showed the capacity;
    infinite until it has been sent."""

    scheduler: RemoteScheduler
    rank: tuple[bool, float]
    until_s: float
    sequence: float = math.inf


class HeadStarts:
    """At most one at a time. ``remotes``: all remote schedulers, by name; without one there is
    nothing to do here."""

    def __init__(self) -> None:
        self.remotes: dict[str, RemoteScheduler] = {}
        self._current: _HeadStart | None = None
        self._missed: set[str] = set()

    def joined(self, scheduler: RemoteScheduler) -> None:
        self.remotes[scheduler.name] = scheduler
        self._missed.discard(scheduler.name)

    def left(self, scheduler: RemoteScheduler) -> None:
        self.remotes.pop(scheduler.name, None)
        self.withdraw(scheduler)

    def capacity_freed(self, now: float) -> None:
        """Those that wait may be tried now: the first remote one of them may get a head start."""
        if self._running(now) is None:
            self._begin(now)

    def sent(self, scheduler: RemoteScheduler, now: float) -> None:
        """The scheduler has been notified of freed capacity, with its latest message."""
        current = self._current
        if current is not None and current.scheduler is scheduler and current.sequence == math.inf:
            current.sequence = scheduler.sequence
            current.until_s = now + HEAD_START_S

    def notified_at_s(self, scheduler: RemoteScheduler, now: float) -> float:
        """When a remote scheduler may be notified of freed capacity: the others after the one that
        has the head start; ``now`` if at once."""
        current = self._running(now)
        return now if current is None or current.scheduler is scheduler else current.until_s

    def waits_until_s(self, job: Job, now: float) -> float:
        """When the round of a scheduler inside of the master may begin that is to be this job's;
        ``now`` if at once."""
        current = self._running(now)
        return now if current is None or rank_of(job) <= current.rank else current.until_s

    def proposed(self, scheduler: RemoteScheduler, now: float, *, any_granted: bool) -> bool:
        """A round of a remote scheduler is over. Is what has waited for it to be woken?"""
        self._missed.discard(scheduler.name)
        current = self._current
        if current is None or current.scheduler is not scheduler:
            return False
        if scheduler.seen_sequence < current.sequence:
            return False  # it has chosen on a copy of before
        job = scheduler.chances(now).new if any_granted and scheduler.jobs else None
        if job is None:
            self._current = None
            self._begin(now, but=scheduler)
            return True
        current.rank, current.until_s = rank_of(job), now + HEAD_START_S
        return False

    def withdraw(self, scheduler: RemoteScheduler) -> bool:
        """What became free has been taken. Is what has waited for it to be woken?"""
        if self._current is None or self._current.scheduler is not scheduler:
            return False
        self._current = None
        return True

    def _begin(self, now: float, but: RemoteScheduler | None = None) -> None:
        for scheduler in self.remotes.values():
            if scheduler is but or scheduler.name in self._missed or not scheduler.jobs:
                continue
            job = scheduler.chances(now).new
            if job is None:
                continue
            rank, until_s = rank_of(job), now + SEND_INTERVAL_S + HEAD_START_S
            if self._current is None or rank < self._current.rank:
                self._current = _HeadStart(scheduler, rank, until_s)

    def _running(self, now: float) -> _HeadStart | None:
        current = self._current
        if current is not None and now >= current.until_s:
            self._missed.add(current.scheduler.name)
            self._current = current = None
        return current
