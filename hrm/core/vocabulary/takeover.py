"""A new stream takes the place of the one before it, unless the master refuses it.

An agent has one stream. A new one is entered before the master's core has replied: what the core
sends from its reply on is for that one. If it is refused the previous stream, if there is one, has
its place again; else the previous one is to be closed.

That holds where the core knows both by one key, as it knows both streams of an agent, and where the
owner's silence is noticed whatever streams there are. The session of an application has a number of
its own: once the core has attached it, the one before is over, whatever becomes of the reply.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Generic, TypeVar

__all__ = ["Takeover"]

K = TypeVar("K")
S = TypeVar("S")


class Takeover(Generic[K, S]):
    """Enters ``stream`` under ``key``. ``previous``: what was there; None: nothing was."""

    def __init__(self, streams: MutableMapping[K, S], key: K, stream: S) -> None:
        self._streams = streams
        self._key = key
        self.previous = streams.get(key)
        streams[key] = stream

    def undo(self) -> None:
        """The new stream is refused."""
        if self.previous is None:
            self._streams.pop(self._key, None)
        else:
            self._streams[self._key] = self.previous
