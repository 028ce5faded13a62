"""Which task goes first while more wait than can run: remaining time, with ageing.

A task is *due* ``STRETCH`` times its remaining time after it was submitted, and what is due first
goes first, at the master's queue as on the node. Short and nearly finished tasks are due soon, so
under overload tasks are completed rather than all of them begun; and because what has waited
becomes due while later ones are due later, no task is passed for ever:

    a task that was submitted at s, with r seconds left, goes before every task that was submitted
    after s + STRETCH * r, however short that is.

The bound is relative to the other tasks and in units of the task's own time, so it holds at any
load and on any scale. The order of two tasks changes only when one of them makes progress; nothing
is sorted again as time passes. ``passes_max`` bounds what a policy may do with this order on a node
(``hrm.pipelines.core.dispatch``).
"""

from __future__ import annotations

import bisect
from collections.abc import Hashable, Iterable, Iterator
from typing import Generic, TypeVar

from hrm.pipelines.core.model import Device, LearningEstimates, Row

__all__ = ["STRETCH", "DueOrder", "due_at_s", "known_s"]

K = TypeVar("K", bound=Hashable)

STRETCH = 10.0
"""How many times its remaining time a task may be passed by later ones. With less the order is
nearer to that of arrival, with more to that of the shortest remaining time."""


def due_at_s(submitted_at_s: float, remaining_s: float) -> float:
    """When a task is due that has ``remaining_s`` of work left."""
    return submitted_at_s + STRETCH * remaining_s


def known_s(estimates: LearningEstimates, row: Row, devices: Iterable[Device]) -> float:
    """The time of a subtask on the fastest of ``devices``, in seconds, for its task's remaining
    time. 0 where nothing of it was measured: a default may be too long by orders of magnitude, and
    the first tasks of a pipeline would be passed by all later ones."""
    if not estimates.measured_cells(row):
        return 0.0
    return min((estimates.run_s(row, device) for device in devices), default=0.0)


class DueOrder(Generic[K]):
    """Keys, the one that is due first in front; equal ones in the order in which they came."""

    def __init__(self) -> None:
        self._entries: list[tuple[float, int, K]] = []
        self._places: dict[K, tuple[float, int]] = {}
        self._count = 0

    def add(self, key: K, due_s: float) -> None:
        """A key that is not there yet."""
        assert key not in self._places, key
        self._count += 1
        self._places[key] = due_s, self._count
        bisect.insort(self._entries, (due_s, self._count, key))

    def discard(self, key: K) -> None:
        """Also one that is not there."""
        place = self._places.pop(key, None)
        if place is not None:
            del self._entries[bisect.bisect_left(self._entries, place)]

    def first(self) -> K:
        """The key that is due first; there is one."""
        return self._entries[0][2]

    def __contains__(self, key: object) -> bool:
        return key in self._places

    def __iter__(self) -> Iterator[K]:
        return (key for _, _, key in self._entries)

    def __len__(self) -> int:
        return len(self._entries)
