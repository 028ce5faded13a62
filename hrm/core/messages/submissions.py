"""What a submission is, and the events and commands of ``hrm.core.submission.submissions``.

Events are facts in the past tense, each with its ``now`` (seconds); commands are in the imperative.
Nothing here does IO.
"""

from __future__ import annotations

import enum
from dataclasses import field
from typing import TypeAlias

from hrm.core.vocabulary.bounds import BOUNDS
from hrm.core.vocabulary.model import Resources
from hrm.core.vocabulary.quick import record
from hrm.errors import HrmError

__all__ = [
    "SUBMISSION",
    "Changed",
    "Command",
    "Committed",
    "DriverEnded",
    "DriverLaunched",
    "DriverLinked",
    "EndHolder",
    "EndLinked",
    "Event",
    "ForgetSubmission",
    "GrantLease",
    "HolderEnded",
    "KillAsked",
    "LeaseAsked",
    "PersistSubmission",
    "RefuseCall",
    "RefusedDriver",
    "ReleaseDriver",
    "RequestDriver",
    "SubmissionBounds",
    "SubmissionRecord",
    "SubmissionState",
    "Submitted",
    "Ticked",
]


class SubmissionState(enum.Enum):
    """The life of a submission; ``SUBMISSION`` is its table."""

    SUBMITTED = "submitted"
    LAUNCHING = "launching"
    RUNNING = "running"
    WAITING_TO_RESTART = "waiting-to-restart"
    KILLING = "killing"
    FINISHED = "finished"
    FAILED = "failed"
    KILLED = "killed"

    @property
    def ended(self) -> bool:
        return self in _ENDED


S = SubmissionState
_ENDED = frozenset({S.FINISHED, S.FAILED, S.KILLED})

SUBMISSION: dict[S, frozenset[S]] = {
    S.SUBMITTED: frozenset(
        {S.LAUNCHING, S.RUNNING, S.WAITING_TO_RESTART, S.KILLING, S.FAILED, S.KILLED}
    ),
    S.LAUNCHING: frozenset({S.RUNNING, S.WAITING_TO_RESTART, S.KILLING, S.FAILED, S.KILLED}),
    S.RUNNING: frozenset({S.WAITING_TO_RESTART, S.KILLING, S.FINISHED, S.FAILED, S.KILLED}),
    S.WAITING_TO_RESTART: frozenset({S.SUBMITTED, S.FAILED, S.KILLED}),
    S.KILLING: frozenset({S.KILLED}),
    S.FINISHED: frozenset(),
    S.FAILED: frozenset(),
    S.KILLED: frozenset(),
}


@record
class SubmissionBounds:
    """Every bound of submissions; ``hrm.config`` has the same names, and these defaults.

    ``driver_lease_s``: how long a supervised driver goes on without a renewal by the master.
    ``lease_margin_s``: what is added to it before another driver may start: clocks that run at
    different speeds, and the time that a kill takes. ``renew_s``: how often a lease is renewed.
    ``driver_launches_max``: containers in a row that a node has begun to start and in which no
    driver ran. One that only waited at its node does not count, for its driver had no part in its
    end. ``tick_late_s``: after this time without a tick, the master has slept.
    """

    submissions_limit: int = 1_000
    ended_submissions_kept: int = 1_000
    driver_lease_s: float = 60.0
    lease_margin_s: float = 5.0
    renew_s: float = 5.0
    driver_restart_delay_s: float = 1.0
    driver_restart_delay_max_s: float = 60.0
    driver_restarts_max: int = 10
    driver_restart_window_s: float = 3_600.0
    driver_launches_max: int = 3
    recovery_s: float = 15.0
    tick_late_s: float = BOUNDS.tick_late_s


@record
class SubmissionRecord:
    """What the store keeps of a submission. Times are seconds since the epoch; 0: not yet.

    ``driver``: what its node must know, as JSON; opaque here, and full of secrets. ``files``: the
    hashes that it needs, as long as it lives. ``restarts``: when it was restarted, the latest last.
    ``launches``: containers in a row that were begun and in which no driver ran. ``may_live``: the
    driver of ``attempt`` had a lease when it last reported, so it may live although it is lost.
    ``ownership_key``: the client made it, and the node of each driver gets it, so this is not a
    digest but the key itself; empty: submitted by an older HRM.
    """

    submission_id: str
    key: str
    name: str
    user: str
    driver: str
    resources: Resources
    heap_mib: int = 0
    stream: bool = False
    supervise: bool = False
    files: tuple[str, ...] = ()
    state: SubmissionState = SubmissionState.SUBMITTED
    attempt: int = 1
    application_ids: tuple[str, ...] = ()
    submitted_at_s: float = 0.0
    started_at_s: float = 0.0
    ended_at_s: float = 0.0
    restart_at_s: float = 0.0
    restarts: tuple[float, ...] = ()
    launches: int = 0
    may_live: bool = False
    exit_code: int = -1
    message: str = ""
    ownership_key: str = field(default="", repr=False)


@record
class _Event:
    now: float


@record
class Submitted(_Event):
    """A client submits a driver. ``record`` is complete. A known key means a known submission."""

    call_id: int
    record: SubmissionRecord


@record
class _Driver(_Event):
    submission_id: str
    attempt: int


@record
class DriverLaunched(_Driver):
    """The container of this attempt runs on ``node``; its runner fetches files."""

    node: str


@record
class DriverEnded(_Driver):
    """Its container has ended. ``lost``: its processes were not seen to end. ``killed``: its
    application was ended by an administrator. ``launched``: it was started; ``waited``: as far as
    is known it has only ever waited for a place or at its node."""

    exit_code: int
    message: str
    lost: bool = False
    killed: bool = False
    launched: bool = True
    waited: bool = False


@record
class DriverLinked(_Driver):
    """The driver has registered an application."""

    application_id: str


@record
class RefusedDriver(_Driver):
    """No node of this cluster could ever run it."""

    message: str


@record
class LeaseAsked(_Driver):
    """A runner requests a lease for its driver, or reports that it is ``gone`` for certain."""

    call_id: int
    gone: bool = False
    ownership_key: str = field(default="", repr=False)


@record
class KillAsked(_Event):
    call_id: int
    submission_id: str
    reason: str = ""


@record
class HolderEnded(_Event):
    """The application that holds the driver's container was ended from outside."""

    submission_id: str
    message: str


@record
class Ticked(_Event):
    pass


Event: TypeAlias = (
    Submitted
    | DriverLaunched
    | DriverEnded
    | DriverLinked
    | RefusedDriver
    | LeaseAsked
    | KillAsked
    | HolderEnded
    | Ticked
)


@record
class PersistSubmission:
    """Must be durable before any later command leaves the master."""

    record: SubmissionRecord


@record
class ForgetSubmission:
    submission_id: str


@record
class RequestDriver:
    """Ask for the container of this attempt."""

    submission_id: str
    attempt: int


@record
class ReleaseDriver:
    submission_id: str
    attempt: int
    reason: str


@record
class EndHolder:
    """The submission is over; so is the application that held its containers."""

    submission_id: str
    state: SubmissionState
    message: str


@record
class EndLinked:
    """The driver is dead: what is left of its application must go."""

    submission_id: str
    application_id: str
    state: SubmissionState
    message: str


@record
class Changed:
    """To watchers."""

    submission_id: str


@record
class Committed:
    """Reply to a call: what it asked for has been written."""

    call_id: int
    submission_id: str


@record
class GrantLease:
    """Answer: the driver may run for ``lease_s`` from when it asked; 0: without a limit."""

    call_id: int
    lease_s: float
    renew_s: float


@record
class RefuseCall:
    call_id: int
    error: HrmError


Command: TypeAlias = (
    PersistSubmission
    | ForgetSubmission
    | RequestDriver
    | ReleaseDriver
    | EndHolder
    | EndLinked
    | Changed
    | Committed
    | GrantLease
    | RefuseCall
)
