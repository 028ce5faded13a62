"""The plain references: nothing is resized, one size for all, chance, and equal shares of tenants.

Each works toward a target, one worker at a time: first whoever has too many gives one up, then one
that has too few gets it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hrm.core.elasticity.beta_rule import Resize
from hrm.core.elasticity.elastic_job import ElasticityView

__all__ = ["ConstantWorkers", "EqualTenants", "KeepWorkers", "RandomResize", "toward"]


def toward(view: ElasticityView, targets: Sequence[int]) -> Resize | None:
    """The next change on the way to ``targets``, one for each job of the view; None: there is none
    that may be made now."""
    for place, (job, target) in enumerate(zip(view.jobs, targets, strict=True)):
        if job.workers > target and job.may_shrink:
            return Resize(place, -1)
    lacking = [
        (job.workers - target, place)
        for place, (job, target) in enumerate(zip(view.jobs, targets, strict=True))
        if job.workers < target and job.may_grow
    ]
    return Resize(min(lacking)[1], 1) if lacking else None


class KeepWorkers:
    """Nothing is resized: what a job starts with is what it has."""

    name = "keep"

    def propose(self, view: ElasticityView) -> Resize | None:
        del view
        return None


class ConstantWorkers:
    """Each job has ``workers``, as far as its limits and what is free allow."""

    def __init__(self, workers: int) -> None:
        self.name = f"constant-{workers}"
        self._workers = workers

    def propose(self, view: ElasticityView) -> Resize | None:
        targets = [max(job.workers_min, min(job.workers_max, self._workers)) for job in view.jobs]
        return toward(view, targets)


class RandomResize:
    """Any change that is allowed, or none, with equal probability; one for each report."""

    name = "random"

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng

    def propose(self, view: ElasticityView) -> Resize | None:
        if view.steps or (view.reporter is not None and not view.jobs[view.reporter].converging):
            return None
        allowed: list[Resize | None] = [None]
        for place, job in enumerate(view.jobs):
            allowed += [Resize(place, 1)] * job.may_grow + [Resize(place, -1)] * job.may_shrink
        return allowed[int(self._rng.integers(len(allowed)))]


class EqualTenants:
    """Dominant resource fairness (Ghodsi et al., NSDI 2011) where workers are the one resource: the
    tenant with the fewest gets the next one, for the job of its own that has the fewest."""

    name = "drf"

    def propose(self, view: ElasticityView) -> Resize | None:
        targets = [job.workers_min for job in view.jobs]
        held: dict[str, int] = {}
        for job in view.jobs:
            held[job.tenant] = held.get(job.tenant, 0) + job.workers_min
        left = view.free + sum(job.workers for job in view.jobs) - sum(targets)
        while left > 0:
            able = [n for n, job in enumerate(view.jobs) if targets[n] < job.workers_max]
            if not able:
                break
            place = min(able, key=lambda n: (held[view.jobs[n].tenant], targets[n], n))
            targets[place] += 1
            held[view.jobs[place].tenant] += 1
            left -= 1
        return toward(view, targets)
