"""Which ended tasks a master forgets, and in which order. Sans-IO.

Ended tasks are kept for those that look at them later. Most are of no further use: the result was
fetched, or there is none and the client that watched the task knows its end. Of these the latest
``ClusterBounds.ended_kept`` stay. A task that still *owes* something, its result or the news of its
end, is not counted among them, and is forgotten only when ``UNFETCHED_MAX`` others ended after it:
a client that has thousands of tasks on the way gets to each end eventually. What the results take
is bounded elsewhere, by the disk.
"""

from __future__ import annotations

from collections import OrderedDict

from hrm.pipelines.core.model import TaskId

__all__ = ["UNFETCHED_MAX", "ForgettingOrder"]

UNFETCHED_MAX = 100_000
"""Ended tasks that owe something; one takes about 3 KiB of the master's memory (measured with one
step)."""


class ForgettingOrder:
    """The order of forgetting. A task is in one of ``owing`` and ``settled``, each in the order in
    which it got there; one in neither is not known."""

    def __init__(self, kept_max: int, unfetched_max: int = UNFETCHED_MAX) -> None:
        self._kept_max = kept_max
        self._unfetched_max = unfetched_max
        self.owing = OrderedDict[TaskId, None]()
        self.settled = OrderedDict[TaskId, None]()

    def ended(self, task_id: TaskId) -> None:
        """A task has ended: it owes whatever has become of it."""
        self.owing[task_id] = None

    def settle(self, task_id: TaskId) -> None:
        """It owes nothing any more, if it did."""
        if task_id in self.owing:
            del self.owing[task_id]
            self.settled[task_id] = None

    def forget(self) -> list[TaskId]:
        """Those that are over the bounds; they are gone here."""
        bounded = ((self.settled, self._kept_max), (self.owing, self._unfetched_max))
        return [
            some.popitem(last=False)[0] for some, most in bounded for _ in range(len(some) - most)
        ]
