"""Virtual time: a queue of what will happen, and the log of what has.

Events of one moment happen in the order in which they were planned, so a run is a function of its
plan alone. The log keeps the latest lines for people, and a hash over all of them for machines.
"""

from __future__ import annotations

import hashlib
import heapq
from collections import deque
from collections.abc import Callable
from typing import Any

__all__ = ["Clock", "EventLog"]

_START_S = 1_000_000.0
_BUFFERED_LINES = 256


class Clock:
    """``now``: seconds since the epoch of this world."""

    def __init__(self) -> None:
        self.now = _START_S
        self._queue: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._planned = 0

    def at(self, at_s: float, action: Callable[..., None], *arguments: Any) -> None:
        """Plan an action; one for the past happens now."""
        self._planned += 1
        entry = (max(at_s, self.now), self._planned, action, arguments)
        heapq.heappush(self._queue, entry)

    def after(self, delay_s: float, action: Callable[..., None], *arguments: Any) -> None:
        self.at(self.now + delay_s, action, *arguments)

    def step(self, until_s: float) -> bool:
        """Let the next thing happen, if one is due by ``until_s``; False: none is."""
        if not self._queue or self._queue[0][0] > until_s:
            return False
        self.now, _, action, arguments = heapq.heappop(self._queue)
        action(*arguments)
        return True


class EventLog:
    """Lines of ``time actor what``. ``events`` counts them; ``tail`` holds the latest."""

    def __init__(self, clock: Clock, tail_length: int = 80) -> None:
        self.events = 0
        self.tail: deque[str] = deque(maxlen=tail_length)
        self._clock = clock
        self._hash = hashlib.sha256()
        self._buffer: list[str] = []

    def say(self, actor: str, what: str) -> None:
        self.events += 1
        line = f"{self._clock.now - _START_S:.6f} {actor}: {what}"
        self.tail.append(line)
        self._buffer.append(line)
        if len(self._buffer) >= _BUFFERED_LINES:
            self._flush()

    def hash(self) -> str:
        """The hash of all lines so far, in hexadecimal."""
        self._flush()
        return self._hash.hexdigest()

    def _flush(self) -> None:
        if self._buffer:
            self._hash.update(("\n".join(self._buffer) + "\n").encode())
            self._buffer.clear()
