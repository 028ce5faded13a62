"""How many workers a workload of pipelines wants: a policy says, within bounds.

What it gets is another matter: its queue, the schedulers and the nodes decide that, as for every
application. A workload that wants fewer gives back workers that have been idle for a while, never
one that has a task.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from hrm.core.vocabulary.model import ApplicationId
from hrm.pipelines.core.model import TaskId

__all__ = ["InForce", "OnePerTask", "ResizePolicy", "Resizing", "WorkloadView"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadView:
    """What a policy knows of a workload.

    ``tasks`` have not ended, of which ``running`` are at workers; ``workers`` it has or has
    requested, each of which takes ``slots`` tasks at a time; it may want ``workers_max``.
    ``run_s``: the mean time, in seconds, that its tasks have taken at workers; NaN before the first
    has ended.
    """

    tasks: int
    running: int
    workers: int
    slots: int
    workers_max: int
    run_s: float

    @property
    def enough(self) -> int:
        """As many workers as there is something to do for."""
        return min(self.workers_max, math.ceil(self.tasks / self.slots))


class ResizePolicy(Protocol):
    """May be third-party code: what it returns is checked, and what it raises is caught, where it
    is a candidate (``hrm.pipelines.policies.resizing``)."""

    name: str

    def workers(self, view: WorkloadView) -> int:
        """How many workers such a workload wants: from 1 to ``view.workers_max``, and 0 while it
        has no task, or it would never end."""
        ...


class OnePerTask:
    """As many as there is something to do for: each task has a place at once."""

    name = "one-per-task"

    def workers(self, view: WorkloadView) -> int:
        return view.enough


class Resizing(Protocol):
    """A policy in use, alone or next to a candidate, and what it gets to know of the tasks."""

    def workers(self, application_id: ApplicationId, view: WorkloadView, now: float) -> int:
        """See ``ResizePolicy.workers``."""
        ...

    def submitted(self, application_id: ApplicationId, task_id: TaskId, view: WorkloadView) -> None:
        """``view``: of its workload, before."""
        ...

    def ended(self, task_id: TaskId, *, now: float, response_s: float, ok: bool) -> None:
        """``response_s``: from its submission on."""
        ...


class InForce:
    """A policy that decides alone."""

    def __init__(self, policy: ResizePolicy) -> None:
        self.policy = policy

    def workers(self, application_id: ApplicationId, view: WorkloadView, now: float) -> int:
        del application_id, now
        return self.policy.workers(view)

    def submitted(self, application_id: ApplicationId, task_id: TaskId, view: WorkloadView) -> None:
        del application_id, task_id, view

    def ended(self, task_id: TaskId, *, now: float, response_s: float, ok: bool) -> None:
        del task_id, now, response_s, ok
