"""SLAQ, Dolphin and TRADL, as far as one line each in RLPTO and general knowledge of them go.

They see what every policy sees. What they compute of a job is kept until its next report.

Sources: SLAQ (Zhang et al., SoCC 2017); Dolphin's cost model of iteration time; TRADL's two target
accuracies; each as RLPTO (Lu et al., IEEE TPDS 2023), section 5.1, describes it.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from hrm.core.elasticity.beta_rule import Resize
from hrm.core.elasticity.elastic_job import ElasticityView, ElasticJobView
from hrm.core.vocabulary.model import ApplicationId
from hrm.policies.elasticity.fits import (
    EpochTime,
    LossCurve,
    fit_epoch_time,
    fit_loss,
    fit_rise,
)
from hrm.policies.elasticity.fixed import toward

__all__ = ["Dolphin", "Slaq", "Tradl"]

_GAIN_LEAST = 0.01
_FITTED = 20
"""Reports that a loss is fitted to, the latest; older ones weigh a hundredth."""


class _Fit(NamedTuple):
    epoch: int
    time: EpochTime
    loss: LossCurve | None


class _Fits:
    """Of each job, made again after each of its reports."""

    def __init__(self, *, losses: bool) -> None:
        self._losses = losses
        self._held: dict[ApplicationId, _Fit] = {}

    def of(self, job: ElasticJobView) -> _Fit:
        held = self._held.get(job.job_id)
        if held is None or held.epoch != job.epoch:
            loss = fit_loss(job.history[-_FITTED:]) if self._losses else None
            held = _Fit(job.epoch, fit_epoch_time(job.history), loss)
            self._held[job.job_id] = held
            while len(self._held) > 4_096:
                del self._held[next(iter(self._held))]
        return held


def _shared_out(view: ElasticityView, worth: Sequence[Sequence[float]]) -> list[int]:
    """Targets: each job has its minimum, and one worker after another goes where its worth is the
    greatest. ``worth``: by job, of its first worker beyond the minimum, its second, ..."""
    targets = [job.workers_min for job in view.jobs]
    left = view.free + sum(job.workers for job in view.jobs) - sum(targets)
    offers = [(-each[0], place, 0) for place, each in enumerate(worth) if each]
    heapq.heapify(offers)
    while left > 0 and offers:
        _, place, taken = heapq.heappop(offers)
        targets[place] += 1
        left -= 1
        if taken + 1 < len(worth[place]):
            heapq.heappush(offers, (-worth[place][taken + 1], place, taken + 1))
    return targets


class Slaq:
    """Workers go one by one to the job whose predicted drop of loss in the next interval, over the
    greatest drop that it ever had, gains most by one more."""

    name = "slaq"

    def __init__(self) -> None:
        self._fits = _Fits(losses=True)

    def propose(self, view: ElasticityView) -> Resize | None:
        known = [job for job in view.jobs if job.history]
        interval_s = max((job.seconds for job in known), default=0.0)
        return toward(view, _shared_out(view, [self._gains(j, interval_s) for j in view.jobs]))

    def _gains(self, job: ElasticJobView, interval_s: float) -> list[float]:
        many = job.workers_max - job.workers_min
        if not job.history:
            return [math.inf] * many
        fit = self._fits.of(job)
        drops = []
        for workers in range(job.workers_min, job.workers_max + 1):
            epochs = interval_s / max(1e-9, fit.time.seconds(workers))
            if fit.loss is None:
                drops.append(epochs / max(1, job.epoch))
            else:
                drops.append(fit.loss.loss(job.epoch) - fit.loss.loss(job.epoch + epochs))
        history = job.history
        falls = (a.loss - b.loss for a, b in itertools.pairwise(history))
        greatest = max(max(falls, default=0.0), 1e-9) if fit.loss is not None else 1.0
        return [(drops[n + 1] - drops[n]) / greatest for n in range(many)]


class Dolphin:
    """One worker moves to the job whose predicted epoch shortens most, from the one whose epoch
    lengthens least, while that gains more than a hundredth of the sum of all epochs."""

    name = "dolphin"

    def __init__(self) -> None:
        self._fits = _Fits(losses=False)

    def propose(self, view: ElasticityView) -> Resize | None:
        gains, losses = [], []
        total = sum(job.seconds for job in view.jobs if job.history)
        for place, job in enumerate(view.jobs):
            if not job.history:
                continue
            time = self._fits.of(job).time
            now_s = time.seconds(job.workers)
            if job.may_grow or (job.workers < job.workers_max and view.steps == 0):
                gains.append((now_s - time.seconds(job.workers + 1), place))
            if job.may_shrink:
                losses.append((time.seconds(job.workers - 1) - now_s, place))
        if not gains:
            return None
        gain, taker = max(gains)
        if view.free > 0:
            able = gain > 0.0 and view.jobs[taker].may_grow
            return Resize(taker, 1) if able else None
        if view.steps or not losses:
            return None
        loss, giver = min(losses)
        return Resize(giver, -1) if giver != taker and gain - loss > _GAIN_LEAST * total else None


class Tradl:
    """Jobs below their first target accuracy go first, then those below their second; of equal
    ones that with the shortest predicted time to it, up to its maximum.

    Args:
        targets: first and second target accuracy by ``scale`` of a job.
    """

    name = "tradl"

    def __init__(self, targets: Mapping[int, tuple[float, float]]) -> None:
        self._targets = targets
        self._fits = _Fits(losses=False)

    def propose(self, view: ElasticityView) -> Resize | None:
        targets = [job.workers_min for job in view.jobs]
        left = view.free + sum(job.workers for job in view.jobs) - sum(targets)
        for _, _, place in sorted(self._rank(n, job) for n, job in enumerate(view.jobs)):
            given = min(left, view.jobs[place].workers_max - targets[place])
            targets[place] += given
            left -= given
        return toward(view, targets)

    def _rank(self, place: int, job: ElasticJobView) -> tuple[int, float, int]:
        if not job.history:
            return 0, math.inf, place
        first, second = self._targets[job.scale]
        tier = 0 if job.accuracy < first else 1
        target = (first, second)[tier]
        left = max(0.0, fit_rise(job.history, target) - job.epoch)
        return tier, left * self._fits.of(job).time.seconds(job.workers_max), place
