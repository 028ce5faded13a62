"""The log of what has happened: its latest lines for people, a hash over all for machines."""

from __future__ import annotations

import hashlib
from collections import deque

from hrm.runtime.clock import Clock

__all__ = ["EventLog"]

_BUFFERED_LINES = 256


class EventLog:
    """Lines of ``time actor what``, times from its beginning. ``events`` counts them; ``tail``
    holds the latest."""

    def __init__(self, clock: Clock, tail_length: int = 80) -> None:
        self.events = 0
        self.tail: deque[str] = deque(maxlen=tail_length)
        self._clock = clock
        self._begin_s = clock.now
        self._hash = hashlib.sha256()
        self._buffer: list[str] = []

    def say(self, actor: str, what: str) -> None:
        self.events += 1
        line = f"{self._clock.now - self._begin_s:.6f} {actor}: {what}"
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
