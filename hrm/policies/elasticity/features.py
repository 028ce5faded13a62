"""What the network of elasticity sees: a row for each running job, and one of the cluster.

Nothing has a unit: times and node time are relative to the mean of the running jobs, workers to
those of the cluster or of the job, the trend to the job's beta. So the number of jobs, of workers
and the length of epochs may change, and the order of rows means nothing. What the rule of speed-ups
would do is an input, too; see ``network``.

Source: RLPTO (Lu et al., IEEE TPDS 2023), section 4.2, whose state has a place for each job.
"""

from __future__ import annotations

import hashlib
import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hrm.core.elasticity.beta_rule import Resize
from hrm.core.elasticity.elastic_job import ElasticityView, ElasticJobView
from hrm.core.elasticity.speed_up_rule import SpeedUpRule, has_learned, speed_up

__all__ = [
    "CLUSTER_FIELDS",
    "ELASTICITY_SCHEMA",
    "ELASTIC_FIELDS",
    "RULE",
    "ElasticityState",
    "action_number",
    "is_due",
    "observe_elasticity",
    "resize_of",
]

Singles = npt.NDArray[np.float32]
Bits = npt.NDArray[np.bool_]

ELASTIC_FIELDS = (
    "progress", "loss_share", "accuracy", "trend", "trend_known", "node_time", "epoch_time",
    "time_left", "share", "held", "above_minimum", "points", "small", "medium", "large",
    "since_resize", "below", "warm", "reporter", "may_grow", "may_shrink",
    "last_worker", "next_worker", "scaling_known", "learned",
)  # fmt: skip
CLUSTER_FIELDS = ("free", "waiting", "crowded", "steps", "no_reporter", "converging", "learning")
_TREND_MAX = 5.0
RULE = SpeedUpRule()
"""What the network departs from."""
_ACTIONS = ("nothing", "its part of what is free", "one less")
_SCHEMA = repr((RULE.name, ELASTIC_FIELDS, CLUSTER_FIELDS, _ACTIONS))
ELASTICITY_SCHEMA = hashlib.sha256(_SCHEMA.encode()).hexdigest()[:16]


class ElasticityState(NamedTuple):
    """One decision among n jobs.

    Attributes:
        jobs: shape (n, ``ELASTIC_FIELDS``), float32.
        cluster: shape (``CLUSTER_FIELDS``,), float32.
        mask: shape (2 n + 1,): what may be chosen. Action 0 is nothing, 1 to n workers for that job
            (``SpeedUpRule.grant``: all that it gets of what is free), n + 1 to 2 n one less.
        rule: the action of ``RULE``.
    """

    jobs: Singles
    cluster: Singles
    mask: Bits
    rule: int


def is_due(view: ElasticityView) -> bool:
    """Whether there is something for a learned policy to decide: the reporter converges, or could
    give up a worker for a job that waits, or what is free is wanted by none that waits, or ``RULE``
    makes a change. Without a job that may change there never is."""
    if not any(job.may_grow or job.may_shrink for job in view.jobs):
        return False
    job = None if view.reporter is None else view.jobs[view.reporter]
    gives = job is not None and (job.converging or (view.waiting > 0 and job.may_shrink))
    return gives or (view.free > 0 and not view.waiting) or RULE.propose(view) is not None


def resize_of(action: int, view: ElasticityView) -> Resize | None:
    """The change that ``action`` means."""
    if action == 0:
        return None
    place, less = (action - 1) % len(view.jobs), action > len(view.jobs)
    return Resize(place, -1 if less else RULE.grant(view, place))


def action_number(resize: Resize | None, jobs: int) -> int:
    """That of a change of one of so many jobs; the inverse of ``resize_of`` for ``RULE``."""
    if resize is None:
        return 0
    return 1 + resize.place + (0 if resize.delta > 0 else jobs)


def observe_elasticity(view: ElasticityView) -> ElasticityState:
    """The state of ``view``, which has at least one job."""
    count = len(view.jobs)
    total = float(max(1, view.total))
    seconds = [0.0 if math.isnan(job.seconds) else job.seconds for job in view.jobs]
    seconds_mean = max(1e-9, sum(seconds) / count)
    node_mean = max(1e-9, sum(job.node_s for job in view.jobs) / count)
    left = [
        (job.epochs_max - job.epoch) * each for job, each in zip(view.jobs, seconds, strict=True)
    ]
    left_most = max(1e-9, *left)
    rows = []
    for place, (job, each, remaining) in enumerate(zip(view.jobs, seconds, left, strict=True)):
        known = not math.isnan(job.change)
        trend = max(-_TREND_MAX, min(_TREND_MAX, job.change / job.beta)) if known else _TREND_MAX
        above = job.workers_max - job.workers_min
        rows.append((
            job.epoch / job.epochs_max,
            job.loss / job.loss_max if job.loss_max > 0.0 else 1.0,
            0.0 if math.isnan(job.accuracy) else job.accuracy,
            trend / _TREND_MAX,
            float(known),
            min(3.0, job.node_s / node_mean) / 3.0,
            min(3.0, each / seconds_mean) / 3.0,
            remaining / left_most,
            job.workers / total,
            job.workers / job.workers_max,
            (job.workers - job.workers_min) / above if above else 0.0,
            min(job.points, 80.0) / 80.0,
            float(job.scale == 0), float(job.scale == 1), float(job.scale == 2),
            min(job.since_resize, 20) / 20.0,
            min(job.below, 6) / 6.0,
            float(job.warm),
            float(place == view.reporter),
            float(job.may_grow),
            float(job.may_shrink),
            *_scaling(job),
            float(has_learned(job)),
        ))  # fmt: skip
    warm = [job for job in view.jobs if job.warm]
    cluster = (
        view.free / total,
        min(view.waiting, 10) / 10.0,
        min(1.0, count / total),
        min(view.steps, 10) / 10.0,
        float(view.reporter is None),
        sum(job.converging for job in warm) / count,
        1.0 - len(warm) / count,
    )
    grows = [job.may_grow for job in view.jobs]
    shrinks = [job.may_shrink for job in view.jobs]
    return ElasticityState(
        np.array(rows, dtype=np.float32),
        np.array(cluster, dtype=np.float32),
        np.array([True, *grows, *shrinks]),
        action_number(RULE.propose(view), count),
    )


def _scaling(job: ElasticJobView) -> tuple[float, float, float]:
    """What its last worker and its next one add to its speed, and whether that has been seen."""
    more = speed_up(job.paces, job.workers + 1) if job.workers < job.workers_max else 0.0
    return min(1.0, speed_up(job.paces, job.workers)), min(1.0, more), float(len(job.paces) > 1)
