"""A resize policy under ``hrm.policies.guard``, next to the one that is in force.

The key of a question is the application: of a canary, a workload is sized by the same policy all
the time. The candidate must return a whole number within the bounds of ``ResizePolicy.workers``.

What the watchdog compares is each task's response, from its submission to its end, over the time
that such tasks have taken at workers so far, with ``START_S`` added, which is what it would take
with a worker of its own; a task that fails counts as ten times that. The tasks of one workload
count as one, by their mean; those of a workload none of which has ended count for neither.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import NamedTuple

from hrm.core.vocabulary.model import ApplicationId
from hrm.pipelines.core.model import TaskId
from hrm.pipelines.core.resizing import ResizePolicy, WorkloadView
from hrm.policies.guard import Doubt, GuardBounds, GuardMode, PolicyGuard, Reason, Recommendation

__all__ = ["START_S", "GuardedResizing"]

START_S = 2.0
"""About what the start of a worker takes."""
_WORKLOADS_MAX = 10_000


class _Question(NamedTuple):
    view: WorkloadView
    now: float


class GuardedResizing:
    """A ``Resizing``: ``candidate`` as far as ``mode`` trusts it, else ``heuristic``.

    ``candidate`` is None where it could not be loaded, for the reason ``missing``; the heuristic
    then decides everything.
    """

    def __init__(
        self,
        name: str,
        candidate: ResizePolicy | None,
        heuristic: ResizePolicy,
        *,
        origin: str,
        clock_s: Callable[[], float],
        missing: str = "",
        mode: GuardMode = GuardMode.SHADOW,
        bounds: GuardBounds | None = None,
    ) -> None:
        self._candidate = candidate
        self._heuristic = heuristic
        self._missing = missing
        self._drawn: dict[ApplicationId, bool] = {}
        self.guard: PolicyGuard[_Question, int] = PolicyGuard(
            policy=name,
            kind="resizing",
            heuristic=heuristic.name,
            model=origin,
            schema="",
            learned=self._ask,
            fallback=self._fall_back,
            clock_s=clock_s,
            check=_check,
            mode=mode,
            bounds=bounds,
        )

    def workers(self, application_id: ApplicationId, view: WorkloadView, now: float) -> int:
        decided, _ = self.guard.recommendation(application_id, _Question(view, now), now)
        self._drawn.pop(application_id, None)
        self._drawn[application_id] = decided.drawn
        if len(self._drawn) > _WORKLOADS_MAX:
            del self._drawn[next(iter(self._drawn))]
        return decided.decision

    def submitted(self, application_id: ApplicationId, task_id: TaskId, view: WorkloadView) -> None:
        drawn = self._drawn.get(application_id, False)
        self.guard.expect(task_id, view.run_s + START_S, drawn=drawn, unit=application_id)

    def ended(self, task_id: TaskId, *, now: float, response_s: float, ok: bool) -> None:
        self.guard.ended(task_id, now=now, response_s=response_s, ok=ok)

    def _fall_back(self, question: _Question) -> Recommendation[int]:
        many = self._heuristic.workers(question.view)
        return Recommendation(many, _described(many, question.view))

    def _ask(self, question: _Question) -> Recommendation[int]:
        if self._candidate is None:
            raise Doubt(Reason.NOT_LOADED, self._missing)
        said = self._candidate.workers(question.view)
        try:
            many = operator.index(said)
        except TypeError as error:
            what = type(said).__name__
            raise Doubt(Reason.SHAPE, f"it returned a {what}, not a whole number") from error
        return Recommendation(many, _described(many, question.view))


def _check(question: _Question, many: int) -> None:
    """Raises Doubt: the candidate's answer must not count."""
    view = question.view
    least, most = (1, view.workers_max) if view.tasks else (0, 0)
    if not least <= many <= most:
        raise Doubt(
            Reason.VALUE,
            f"{many} workers for {view.tasks} tasks; {least} to {most} may be wanted",
        )


def _described(many: int, view: WorkloadView) -> str:
    return f"{many} workers for {view.tasks} tasks"
