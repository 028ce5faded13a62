"""A learned policy of elasticity under ``hrm.policies.guard``: the checks of one change.

In order: there is a network, and it fits this HRM (else it is never called); every logit is finite
and none is ten times greater than any in training; at most a tenth of its inputs lies outside of
the ranges of training; the change is allowed; and the answer took at most 50 ms. Where one fails,
the rule of speed-ups decides on the same view.

The key of a question is the job that has reported: of a canary, the same policy decides after all
reports of one job. What is compared afterwards is how long each job took from its first question to
its end, over what its epochs then left and took. A policy that is fast for its own jobs at the cost
of the others' is not found out by this.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hrm.core.elasticity.beta_rule import ElasticityPolicy, Resize
from hrm.core.elasticity.elastic_job import ElasticityView
from hrm.core.elasticity.speed_up_rule import SpeedUpRule
from hrm.core.vocabulary.model import ApplicationId
from hrm.policies.elasticity.features import is_due
from hrm.policies.elasticity.learned import LearnedElasticity
from hrm.policies.guard import Doubt, GuardBounds, GuardMode, PolicyGuard, Reason, Recommendation

__all__ = ["GuardedElasticity"]

BOUNDS = GuardBounds(budget_s=0.05, pending_max=10_000)
LOGIT_FACTOR = 10.0
OUTSIDE_MAX = 0.1
_JOBS_MAX = 10_000


class GuardedElasticity:
    """An ``ElasticityPolicy``: ``learned`` as far as its mode trusts it, else ``heuristic``.

    Args:
        learned: None: there is no network, for the reason ``missing``.
    """

    def __init__(
        self,
        learned: LearnedElasticity | None,
        *,
        clock_s: Callable[[], float],
        heuristic: ElasticityPolicy | None = None,
        missing: str = "no model; train one: hrm policy train rlpto",
        mode: GuardMode = GuardMode.SHADOW,
        bounds: GuardBounds = BOUNDS,
    ) -> None:
        self._learned = learned
        self._missing = missing
        self._heuristic: ElasticityPolicy = SpeedUpRule() if heuristic is None else heuristic
        self._since: dict[ApplicationId, float] = {}
        self.name = "rlpto"
        self.guard: PolicyGuard[ElasticityView, Resize | None] = PolicyGuard(
            policy=self.name,
            kind="elasticity",
            heuristic=self._heuristic.name,
            model="none" if learned is None else str(learned.model),
            schema="" if learned is None else learned.model.schema,
            learned=self._ask,
            fallback=lambda view: _described(view, self._heuristic.propose(view)),
            clock_s=clock_s,
            mode=mode,
            bounds=bounds,
            check=_check,
            missing="" if learned is not None else missing,
        )

    def propose(self, view: ElasticityView) -> Resize | None:
        """See ``ElasticityPolicy``. Where nothing is due, neither is called."""
        if not is_due(view):
            return None
        job = None if view.reporter is None else view.jobs[view.reporter]
        key = "capacity" if job is None else str(job.job_id)
        decided, _ = self.guard.recommendation(key, view, view.now)
        if job is not None and job.job_id not in self._since:
            self._since[job.job_id] = view.now
            if len(self._since) > _JOBS_MAX:
                del self._since[next(iter(self._since))]
            expected_s = (job.epochs_max - job.epoch) * job.seconds
            self.guard.expect(key, expected_s, drawn=decided.drawn)
        return decided.decision

    def ended(self, job_id: ApplicationId, *, now: float, ok: bool) -> None:
        """The job has ended; not ``ok``: it failed."""
        since = self._since.pop(job_id, None)
        if since is not None:
            self.guard.ended(str(job_id), now=now, response_s=now - since, ok=ok)

    def _ask(self, view: ElasticityView) -> Recommendation[Resize | None]:
        if self._learned is None:
            raise Doubt(Reason.NOT_LOADED, self._missing)
        resize, logits, outside = self._learned.consider(view)
        if not np.isfinite(logits).all():
            raise Doubt(Reason.NOT_FINITE, "a logit of an action is no number")
        greatest, known = float(np.abs(logits).max()), self._learned.logit_abs_max
        if greatest > LOGIT_FACTOR * known:
            raise Doubt(
                Reason.VALUE, f"a logit of {greatest:.1f}; the greatest in training was {known:.1f}"
            )
        if outside > OUTSIDE_MAX:
            raise Doubt(
                Reason.DISTRIBUTION,
                f"{outside:.0%} of its inputs are outside of the ranges of training",
            )
        return _described(view, resize)


def _check(view: ElasticityView, resize: Resize | None) -> None:
    """Raises Doubt: the learned policy's change must not count."""
    if resize is None:
        return
    job = view.jobs[resize.place]
    if not (job.may_grow if resize.delta > 0 else job.may_shrink):
        what = "more" if resize.delta > 0 else "less"
        raise Doubt(Reason.INFEASIBLE, f"{job.job_id} may not have one worker {what} now")


def _described(view: ElasticityView, resize: Resize | None) -> Recommendation[Resize | None]:
    if resize is None:
        return Recommendation(None, "no job changes")
    job = view.jobs[resize.place]
    why = f"{job.job_id} to {job.workers + resize.delta} workers, its trend is {job.change:.2g}"
    return Recommendation(resize, why)
