"""Which ended tasks a master forgets, and in which order. Sans-IO.

Ended tasks are kept for those that look at them later. Most are of no further use: the result was
fetched, or there is none and the client that watched the task knows its end. Of these the latest
``ClusterBounds.ended_kept`` stay. A task that still *owes* something, its result or the news of its
end, is not counted among them, and is forgotten only when ``UNFETCHED_MAX`` others ended after it:
a client that has thousands of tasks on the way gets to each end eventually.

Ends have bytes, too: a worker's user may fill one with what a run was like. Where all of them take
more than ``bytes_max``, the oldest are forgotten first, those that owe something last. What the
results take is bounded elsewhere, by the disk.
"""

from __future__ import annotations

import math
from collections import OrderedDict

from hrm.pipelines.core.model import TaskId

__all__ = ["UNFETCHED_MAX", "ForgettingOrder"]

UNFETCHED_MAX = 100_000
"""Ended tasks that owe something; one takes about 3 KiB of the master's memory (measured with one
step)."""


class ForgettingOrder:
    """The order of forgetting. A task is in one of ``owing`` and ``settled``, each in the order in
    which it got there; one in neither is not known. Invariant: ``held_bytes`` is the sum of all."""

    def __init__(
        self,
        kept_max: int,
        unfetched_max: int = UNFETCHED_MAX,
        bytes_max: float = math.inf,
    ) -> None:
        self._kept_max = kept_max
        self._unfetched_max = unfetched_max
        self._bytes_max = bytes_max
        self.owing = OrderedDict[TaskId, int]()
        self.settled = OrderedDict[TaskId, int]()
        self.held_bytes = 0

    def ended(self, task_id: TaskId, size: int = 0) -> None:
        """A task has ended, and ``size`` bytes are kept of it: it owes whatever has become of
        it."""
        self.owing[task_id] = size
        self.held_bytes += size

    def settle(self, task_id: TaskId) -> None:
        """It owes nothing any more, if it did."""
        if task_id in self.owing:
            self.settled[task_id] = self.owing.pop(task_id)

    def forget(self) -> list[TaskId]:
        """Those that are over the bounds; they are gone here."""
        forgotten: list[TaskId] = []
        for some, most in ((self.settled, self._kept_max), (self.owing, self._unfetched_max)):
            while some and (len(some) > most or self.held_bytes > self._bytes_max):
                task_id, size = some.popitem(last=False)
                self.held_bytes -= size
                forgotten.append(task_id)
        return forgotten
