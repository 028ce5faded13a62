"""The queue of the experiments with training jobs: a small stand-in for HRM's queues.

It exists so that experiments have the order of their source, and is used by nothing else: HRM's own
queues are in ``hrm.core.tenancy`` and ``hrm.core.master``. Points grow with the priority: 10 to 40
for 1 to 4, 80 for the highest, 5, which preempts.

Source: RLPTO (Lu et al., IEEE TPDS 2023), section 3.2. Its printed order serves interrupted jobs
before waiting ones of the highest priority, which interrupt them again at once; here those go
first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Generic, Protocol, TypeVar

__all__ = ["HIGHEST", "POINTS", "ExperimentQueue", "Queued", "victim"]

HIGHEST, URGENT = 5, 4
POINTS = {1: 10.0, 2: 20.0, 3: 30.0, 4: 40.0, 5: 80.0}
INTERRUPTIONS_MAX = 2


class Queued(Protocol):
    """What the queue needs to know of a job. ``started_at``: latest; ``interruptions``: so far."""

    @property
    def priority(self) -> int: ...

    started_at: float
    interruptions: int


Q = TypeVar("Q", bound=Queued)


class ExperimentQueue(Generic[Q]):
    """Waiting jobs, the next one first. ``by_priority`` False: in the order of submission."""

    def __init__(self, *, by_priority: bool = True) -> None:
        self._by_priority = by_priority
        self._held: list[tuple[tuple[int, int, int], Q]] = []
        self._count = 0

    def __len__(self) -> int:
        return len(self._held)

    def add(self, job: Q, *, interrupted: bool = False) -> None:
        """Behind those of the same rank; an interrupted job stands before urgent and normal ones
        ("longest interrupted first" is the order of arrival here)."""
        self._count += 1
        rank, priority = 0, 0
        if self._by_priority:
            kinds = (job.priority >= HIGHEST, interrupted, job.priority >= URGENT)
            rank = kinds.index(True) if any(kinds) else len(kinds)
            priority = -job.priority
        elif interrupted:
            rank = -1
        self._held.append(((rank, priority, self._count), job))
        self._held.sort(key=lambda entry: entry[0])

    def jobs(self) -> Sequence[Q]:
        return [job for _, job in self._held]

    def pop(self) -> Q:
        """The next one, which is then no longer here."""
        return self._held.pop(0)[1]


def victim(job: Queued, running: Iterable[Q]) -> Q | None:
    """Which running job is interrupted for ``job``: the one that started last of those with a lower
    priority and fewer than two interruptions; None: it waits."""
    if job.priority < HIGHEST:
        return None
    able = [x for x in running if x.priority < HIGHEST and x.interruptions < INTERRUPTIONS_MAX]
    return max(able, key=lambda x: x.started_at, default=None)
