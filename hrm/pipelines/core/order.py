"""Which task goes first while more wait than can run: remaining time, with ageing.

A task is *due* ``STRETCH`` times its remaining time after it was submitted, and what is due first
goes first, at the master's queue as on the node. Short and nearly finished tasks are due soon, so
under overload tasks are completed rather than all of them begun; and because what has waited
becomes due while later ones are due later, no task is passed for ever:

    a task that was submitted at s, with r seconds left by the estimates of this moment, goes before
    every task that was submitted after s + STRETCH * r, however short that is.

The bound is relative to the other tasks and in units of the task's own time, so it holds at any
load and on any scale. It follows what is known: a first run that took an hour delays a task only
until the estimates say otherwise.

Estimates change with each run, and a queue of thousands is not sorted each time. Tasks with the
same *work* left, the same steps with inputs of about the same size, have the same r whatever is
measured, so their order is that of submission for good: each work has a line of its own, and only
the heads of the lines are compared, by the estimates as they are. Choosing the first costs as much
as there are works, not as there are tasks; adding and removing one a binary search and a move of
the line's list. A user whose tasks are all different has ``LINES_MAX`` lines, and what is more
waits in one for which nothing is known.

A step of which nothing was measured counts as 0, or the first tasks of a pipeline would be passed
by all later ones because of a default that is too long by orders of magnitude.
``NodeBounds.passes_max`` bounds what a policy may do with this order on a node
(``hrm.pipelines.core.dispatch``).
"""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Generic, NamedTuple, TypeAlias, TypeVar

from hrm.pipelines.core.model import Device, LearningEstimates, Row

__all__ = [
    "LINES_MAX",
    "STRETCH",
    "DueOrder",
    "Rank",
    "RemainingTimes",
    "Speeds",
    "Work",
    "WorkStep",
]

K = TypeVar("K", bound=Hashable)

STRETCH = 10.0
"""How many times its remaining time a task may be passed by later ones. With less the order is
nearer to that of arrival, with more to that of the shortest remaining time."""


class WorkStep(NamedTuple):
    """A step that is not done: what its time depends on, besides the machine."""

    kind: str
    bucket: int
    devices: frozenset[Device]


Work: TypeAlias = tuple[WorkStep, ...]
"""The steps that a task has left."""

LINES_MAX = 256
"""Works that one order distinguishes: each costs time whenever something is measured."""

_TIMES_KEPT = 4096
_UNKNOWN: Work = ()

Rank: TypeAlias = tuple[float, float, int]
"""Place in an order, the smallest in front: when it is due, when it was submitted, its number."""


class Speeds(NamedTuple):
    """What of a machine counts for a step's time. Speeds relate to the times that the estimates
    have; 0: the machine has no such device."""

    gpu_model: str
    cpu: float
    gpu: float


class RemainingTimes:
    """The time that a work takes, seconds: each of its steps alone where it is fastest, of what was
    measured. 0 of a step of which nothing was measured.

    Fastest on the ``machines`` that are there; of a step that ran on none of these, wherever it was
    measured: a time on another machine says more than none.
    """

    def __init__(self, estimates: LearningEstimates, machines: Iterable[Speeds] = ()) -> None:
        self._estimates = estimates
        self._machines = tuple(dict.fromkeys(machines))
        self._changes = estimates.changes
        self._steps_s: dict[WorkStep, float] = {}
        self._works_s: dict[Work, float] = {}

    def set_machines(self, machines: Iterable[Speeds]) -> None:
        """Those that are there now."""
        self._machines = tuple(dict.fromkeys(machines))
        self._forget()

    def __call__(self, work: Work) -> float:
        if self._changes != self._estimates.changes or len(self._works_s) > _TIMES_KEPT:
            self._forget()
        found = self._works_s.get(work)
        if found is None:
            found = self._works_s[work] = sum(map(self._step_s, work))
        return found

    def _forget(self) -> None:
        self._changes = self._estimates.changes
        self._steps_s.clear()
        self._works_s.clear()

    def _step_s(self, step: WorkStep) -> float:
        found = self._steps_s.get(step)
        if found is None:
            found = self._fastest_s(step, self._machines)
            if found is None:
                models = self._estimates.measured_models(step.kind)
                found = self._fastest_s(step, [Speeds(model, 1.0, 1.0) for model in models]) or 0.0
            self._steps_s[step] = found
        return found

    def _fastest_s(self, step: WorkStep, machines: Iterable[Speeds]) -> float | None:
        """None: it was measured on none of these."""
        measured_s, times = self._estimates.measured_s, []
        for machine in machines:
            row = Row(step.kind, step.bucket, machine.gpu_model)
            for device, speed in ((Device.CPU, machine.cpu), (Device.GPU, machine.gpu)):
                if speed > 0 and device in step.devices:
                    seconds = measured_s(row, device)
                    if seconds is not None:
                        times.append(seconds / speed)
        return min(times, default=None)


class DueOrder(Generic[K]):
    """Keys, the one that is due first in front, by what ``remaining_s`` says at the moment.

    Invariant: a line has the keys of one work, those submitted first in front, and is not empty.
    """

    def __init__(self, remaining_s: Callable[[Work], float]) -> None:
        self._remaining_s = remaining_s
        self._lines: dict[Work, list[tuple[float, int, K]]] = {}
        self._entries: dict[K, tuple[Work, tuple[float, int, K]]] = {}

    def add(self, key: K, work: Work, submitted_at_s: float, number: int) -> None:
        """A key that is not there yet. ``number``, of which no other key has the same, decides
        between what is due and was submitted at the same time."""
        assert key not in self._entries, key
        if work not in self._lines and len(self._lines) >= LINES_MAX:
            work = _UNKNOWN
        entry = submitted_at_s, number, key
        self._entries[key] = work, entry
        bisect.insort(self._lines.setdefault(work, []), entry)

    def discard(self, key: K) -> None:
        """Also one that is not there."""
        found = self._entries.pop(key, None)
        if found is not None:
            work, entry = found
            line = self._lines[work]
            del line[bisect.bisect_left(line, entry)]
            if not line:
                del self._lines[work]

    def first(self) -> K:
        """The key that is due first; there is one."""
        if len(self._lines) == 1:
            (line,) = self._lines.values()
            return line[0][2]
        heads = ((self._rank(work)(line[0]), line[0][2]) for work, line in self._lines.items())
        return min(heads, key=_rank_of)[1]

    def ahead(self, key: K) -> int:
        """How many are due before it. The key is there."""
        work, entry = self._entries[key]
        rank = self._rank(work)(entry)
        return sum(
            bisect.bisect_left(line, rank, key=self._rank(work))
            for work, line in self._lines.items()
        )

    def ranked(self) -> Iterator[tuple[Rank, K]]:
        """All of them, in order. Nothing is added, removed or measured meanwhile."""
        return heapq.merge(*map(self._ranked, self._lines), key=_rank_of)

    def _ranked(self, work: Work) -> Iterator[tuple[Rank, K]]:
        rank = self._rank(work)
        return ((rank(entry), entry[2]) for entry in self._lines[work])

    def _rank(self, work: Work) -> Callable[[tuple[float, int, K]], Rank]:
        """The ranks of a line's entries."""
        stretch_s = STRETCH * self._remaining_s(work)
        return lambda entry: (entry[0] + stretch_s, entry[0], entry[1])

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def __iter__(self) -> Iterator[K]:
        return (key for _, key in self.ranked())

    def __len__(self) -> int:
        return len(self._entries)


def _rank_of(one: tuple[Rank, object]) -> Rank:
    return one[0]
