"""What class an application turned out to be: where the next of its name and user begins.

Applications come back, and a stream that declares no class is a stream every time. Its executors
are requested before its first query runs, so what is observed comes too late for them; what was
observed the last time does not.

One row for each application name and user. Which runs write it: ``hrm.core.master.class_guesses``.
Not in the HRM paper, which is given the class.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TypeAlias

from hrm.core.vocabulary.model import ApplicationId, WorkloadClass

__all__ = ["LearnedClass", "LearnedClassKey", "LearnedClassTable"]

LearnedClassKey: TypeAlias = tuple[str, str]
"""Application name, user."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnedClass:
    """What ``application_id``, the last run of ``name`` by ``user``, turned out to be. Durable."""

    name: str
    user: str
    workload_class: WorkloadClass
    application_id: ApplicationId

    @property
    def key(self) -> LearnedClassKey:
        return (self.name, self.user)


class LearnedClassTable:
    """Invariant: at most ``limit`` rows, the least recently used first."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.rows: OrderedDict[LearnedClassKey, LearnedClass] = OrderedDict()

    def find(self, key: LearnedClassKey) -> LearnedClass | None:
        found = self.rows.get(key)
        if found is not None:
            self.rows.move_to_end(key)
        return found

    def put(self, row: LearnedClass) -> list[LearnedClassKey]:
        """Keep a row; returns those that it displaced."""
        self.rows[row.key] = row
        self.rows.move_to_end(row.key)
        displaced = []
        while len(self.rows) > self.limit:
            displaced.append(self.rows.popitem(last=False)[0])
        return displaced
