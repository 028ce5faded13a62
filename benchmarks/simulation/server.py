"""A decider on the virtual clock: one thing at a time, in order of arrival, each for its cost."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TypeAlias

from benchmarks.simulation.costs import Kind
from hrm.runtime.clock import Clock

__all__ = ["Server", "Work"]

Work: TypeAlias = Callable[[], tuple[float, Callable[[], None]]]
"""Called as it begins; returns seconds that it takes, and what happens when it is over."""


class Server:
    """Handles one thing at a time. Invariant: it is busy, or nothing waits.

    Args:
        put_off: kinds of work that are done only when no other waits.
    """

    def __init__(self, clock: Clock, put_off: frozenset[Kind] = frozenset()) -> None:
        self._clock = clock
        self._put_off = put_off
        self._waiting: deque[Work] = deque()
        self._last: deque[Work] = deque()
        self._busy = False
        self._changed_s = clock.now
        self._area_s = 0.0
        self.busy_s = 0.0
        self.waiting_max = 0

    def arrive(self, kind: Kind, work: Work) -> None:
        self._count()
        (self._last if kind in self._put_off else self._waiting).append(work)
        self.waiting_max = max(self.waiting_max, self._length())
        if not self._busy:
            self._begin()

    def waited_s(self) -> float:
        """The integral of the queue's length so far."""
        self._count()
        return self._area_s

    def _begin(self) -> None:
        self._count()
        self._busy = True
        cost_s, then = (self._waiting or self._last).popleft()()
        self.busy_s += cost_s
        self._clock.after(cost_s, self._done, then)

    def _done(self, then: Callable[[], None]) -> None:
        self._busy = False
        then()
        if self._length() and not self._busy:
            self._begin()

    def _length(self) -> int:
        return len(self._waiting) + len(self._last)

    def _count(self) -> None:
        now = self._clock.now
        self._area_s += self._length() * (now - self._changed_s)
        self._changed_s = now
