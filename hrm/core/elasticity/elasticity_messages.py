"""What the elasticity core takes in, in the past tense, and what it commands.

Every event has ``now``, seconds since the epoch. A job is one training application.
"""

from __future__ import annotations

import enum
from typing import TypeAlias

from hrm.core.vocabulary.model import ApplicationId
from hrm.core.vocabulary.quick import record

__all__ = [
    "ElasticCapacityChanged",
    "ElasticityCommand",
    "LearningRateDropped",
    "RefuseReport",
    "ReportProblem",
    "SetWorkers",
    "TrainingEnded",
    "TrainingFlattened",
    "TrainingReported",
    "TrainingStarted",
    "TrainingWorkersChanged",
]


class ReportProblem(enum.Enum):
    """Why a report does not count."""

    __hash__ = object.__hash__

    UNKNOWN_JOB = "unknown-job"
    FOREIGN = "foreign"
    NOT_FINITE = "not-finite"
    OUT_OF_RANGE = "out-of-range"
    REPEATED = "repeated"
    OUT_OF_ORDER = "out-of-order"
    CLOCK = "clock-went-back"


@record
class TrainingStarted:
    """A job has its first workers.

    ``workers_min``, ``workers_max``: what it may be resized to. ``epochs_max``: its iteration
    limit. ``beta``: the change of accuracy per epoch, as a fraction, below which it counts as
    converging. ``points``: what its completion is worth. ``scale``: 0 small, 1 medium, 2 large.
    ``counts_from``: its own number of its first epoch, which is 1 here; for people.
    """

    now: float
    job_id: ApplicationId
    workers: int
    workers_min: int
    workers_max: int
    epochs_max: int
    beta: float
    points: float = 10.0
    scale: int = 1
    tenant: str = ""
    counts_from: int = 1


@record
class TrainingReported:
    """The end of an epoch, as application ``sender`` reports it for ``job_id``.

    ``epoch``: from 1. ``accuracy``: a fraction, 0..1. ``seconds``: that the epoch took.
    ``running``: the job's workers that run now, which may be fewer than its target; 0: as many.
    ``epochs_max``: the job's iteration limit from now on; None: as before.
    """

    now: float
    sender: ApplicationId
    job_id: ApplicationId
    epoch: int
    loss: float
    accuracy: float
    seconds: float
    running: int = 0
    epochs_max: int | None = None


@record
class LearningRateDropped:
    """A job has announced that its learning rate falls: what it gained before says nothing now."""

    now: float
    job_id: ApplicationId


@record
class TrainingWorkersChanged:
    """A job holds another number of workers than its target, as after a failure of a node, or
    since it wants another: then ``limits``, its minimum and maximum, go with that."""

    now: float
    job_id: ApplicationId
    workers: int
    limits: tuple[int, int] | None = None


@record
class ElasticCapacityChanged:
    """``free``: workers that could start now; ``waiting``: jobs that wait for their first ones.
    ``servers``: the jobs whose workers those could use; None: all."""

    now: float
    free: int
    waiting: int
    servers: frozenset[ApplicationId] | None = None


@record
class TrainingEnded:
    now: float
    job_id: ApplicationId


@record
class SetWorkers:
    """The target of ``job_id`` from now on, one more or one less than before."""

    job_id: ApplicationId
    workers: int
    why: str


@record
class RefuseReport:
    """The report does not count; ``detail`` is for people."""

    job_id: ApplicationId
    problem: ReportProblem
    detail: str


@record
class TrainingFlattened:
    """``job_id`` has gained less than its beta for several epochs at its minimum. It keeps that
    minimum: whether it ends is up to the application."""

    job_id: ApplicationId


ElasticityCommand: TypeAlias = SetWorkers | RefuseReport | TrainingFlattened
