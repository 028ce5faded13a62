"""Virtual time: a queue of planned events.

Events of the same time happen in the order in which they were planned, so a run is a function of
its plan alone.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from typing import Any, Protocol

__all__ = ["Clock", "Timeline"]


class Timeline(Protocol):
    """A clock as one process reads it."""

    @property
    def now(self) -> float: ...

    def at(self, at_s: float, action: Callable[..., None], *arguments: Any) -> None: ...

    def after(self, delay_s: float, action: Callable[..., None], *arguments: Any) -> None: ...


class Clock:
    """``now``: seconds since the epoch of this world."""

    def __init__(self, start_s: float) -> None:
        self.now = start_s
        self._queue: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._planned = 0

    def at(self, at_s: float, action: Callable[..., None], *arguments: Any) -> None:
        """Plan an action; one for the past happens now."""
        self._planned += 1
        entry = (max(at_s, self.now), self._planned, action, arguments)
        heapq.heappush(self._queue, entry)

    def after(self, delay_s: float, action: Callable[..., None], *arguments: Any) -> None:
        self.at(self.now + delay_s, action, *arguments)

    def step(self, until_s: float = math.inf) -> bool:
        """Run the next action, if one is due by ``until_s``; False: none is."""
        if not self._queue or self._queue[0][0] > until_s:
            return False
        self.now, _, action, arguments = heapq.heappop(self._queue)
        action(*arguments)
        return True

    def clear(self) -> None:
        """Cancel everything planned."""
        self._queue.clear()
