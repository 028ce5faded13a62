"""The rule that learned policies have to beat: what converges gives up workers to what learns.

A job that reports a trend below its beta gives up one worker. What is free then goes to jobs that
wait, by their queue, and where none waits to the running job with the greatest trend. It needs no
training, and a rule of this kind reproduces the tables of RLPTO (``benchmarks.paper.rlpto``).

``on_demand``, which the source does not have, takes a worker only where something wants it: a job
that waits, or one that learns and could have more. Otherwise the worker would be idle, and the job
that gave it up the slower for nothing. For the same reason what is free and nothing of these wants
goes back to jobs that converge, the one with the fewest workers first: they may have many epochs
left, and the others have ended. It goes back at once, an equal part of it to each, for an epoch
lasts until its slowest worker is done, and a new one has yet to start.

Source: RLPTO (Lu et al., IEEE TPDS 2023), the scheduling loop without its agent.
"""

from __future__ import annotations

import math
from typing import NamedTuple, Protocol

from hrm.core.elasticity.elastic_job import ElasticityView, ElasticJobView

__all__ = ["BetaRule", "ElasticityPolicy", "Resize"]


class Resize(NamedTuple):
    """``delta`` workers more, or one less (-1), for the job at ``place`` of the view."""

    place: int
    delta: int


class ElasticityPolicy(Protocol):
    """Decides one change at a time; it is asked again until it proposes none."""

    name: str

    def propose(self, view: ElasticityView) -> Resize | None:
        """The next change, which ``may_grow`` or ``may_shrink`` of its job allows; None: enough."""
        ...


class BetaRule:
    """See the module."""

    def __init__(self, *, on_demand: bool = False) -> None:
        self.name = "beta-on-demand" if on_demand else "beta-rule"
        self._on_demand = on_demand

    def propose(self, view: ElasticityView) -> Resize | None:
        if view.steps == 0 and view.reporter is not None:
            job = view.jobs[view.reporter]
            if job.converging and job.may_shrink and (not self._on_demand or _is_wanted(view, job)):
                return Resize(view.reporter, -1)
        if view.free < 1 or view.waiting:
            return None
        best = None
        for place, job in enumerate(view.jobs):
            learns = job.may_grow and job.change >= job.beta
            if learns and (best is None or job.change > view.jobs[best].change):
                best = place
        if best is None and self._on_demand and not _could_learn_with_more(view):
            return _give_back(view)
        return None if best is None else Resize(best, 1)


def _is_wanted(view: ElasticityView, job: ElasticJobView) -> bool:
    """Whether one worker of this job has a use that no free one serves."""
    if view.waiting:
        return job.serves
    return view.free == 0 and _could_learn_with_more(view)


def _could_learn_with_more(view: ElasticityView) -> bool:
    """Whether a job that learns has fewer workers than it may have, if not at this moment."""
    learns = (x for x in view.jobs if x.warm and x.change >= x.beta)
    return any(job.workers < job.workers_max for job in learns)


def _give_back(view: ElasticityView) -> Resize | None:
    """To the job with the fewest workers its part of what is free."""
    places = [place for place, job in enumerate(view.jobs) if job.may_grow]
    if not places:
        return None
    place = min(places, key=lambda place: view.jobs[place].workers)
    job = view.jobs[place]
    return Resize(place, min(math.ceil(view.free / len(places)), job.workers_max - job.workers))
