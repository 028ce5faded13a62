"""What a submission is, and the events and commands of ``hrm.core.submission.submissions``.

Events are facts in the past tense, each with its ``now`` (seconds); commands are in the imperative.
Nothing here does IO.
"""

from __future__ import annotations

import enum
from dataclasses import field
from typing import TypeAlias

from hrm.core.vocabulary.bounds import BOUNDS
from hrm.core.vocabulary.event_table import EventTable, Ignored, Impossible, Refused, to
from hrm.core.vocabulary.model import FirstExecutors, Resources
from hrm.core.vocabulary.node_requirement import NodeRequirement
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
    "SubmissionHappening",
    "SubmissionRecord",
    "SubmissionState",
    "SubmissionsTicked",
    "Submitted",
    "TieRenewed",
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


class SubmissionHappening(enum.Enum):
    """What happens to a submission. Of drivers only that of the current attempt counts."""

    __hash__ = object.__hash__

    LAUNCHED = "launched"
    """Its driver's container runs."""
    LEASE_ASKED = "lease-asked"
    """A runner is about to start the driver, or runs it."""
    GONE = "gone"
    """Its runner reports that the driver is dead for certain."""
    LINKED = "linked"
    """The driver has registered an application."""
    DRIVER_ENDED = "driver-ended"
    """All processes of its container were seen to end."""
    DRIVER_LOST = "driver-lost"
    REFUSED = "refused"
    """No node could ever run the driver."""
    KILL_ASKED = "kill-asked"
    HOLDER_ENDED = "holder-ended"
    """The application that holds the driver's container was ended from outside."""
    UNCONFIRMED = "unconfirmed"
    """A master that has restarted got no report of the driver in time."""
    RESTART_DUE = "restart-due"
    TIE_LAPSED = "tie-lapsed"
    """The client that it is tied to has been silent for too long."""
    TURN_CAME = "turn-came"
    """No earlier submission of its serial key is left."""


_H = SubmissionHappening
_HAS_A_NODE = Ignored("a node has accepted its driver, or it must not run")
_GIVEN_UP = Refused("this driver was abandoned, and the next may start")
_OVER = Ignored("it is over")
_ENDED_ROW: dict[SubmissionHappening, Ignored | Impossible] = {
    _H.LAUNCHED: _OVER,
    _H.LEASE_ASKED: _GIVEN_UP,
    _H.GONE: _OVER,
    _H.LINKED: _OVER,
    _H.DRIVER_ENDED: _OVER,
    _H.DRIVER_LOST: _OVER,
    _H.REFUSED: _OVER,
    _H.KILL_ASKED: Refused("it has ended, and the error names how"),
    _H.HOLDER_ENDED: _OVER,
    _H.UNCONFIRMED: Impossible("only live submissions are awaited"),
    _H.RESTART_DUE: Impossible("it has no time for a restart"),
    _H.TIE_LAPSED: Impossible("only live submissions are tied"),
    _H.TURN_CAME: Impossible("only live submissions wait for their turn"),
}
_HAD_ITS_TURN = Impossible("its driver was requested when its turn came")
_NOT_DUE = Impossible("only what waits to restart has a time for it")

SUBMISSION: EventTable[S, SubmissionHappening] = {
    S.SUBMITTED: {
        _H.LAUNCHED: to(S.LAUNCHING),
        _H.LEASE_ASKED: to(S.RUNNING),
        _H.GONE: to(S.SUBMITTED),
        _H.LINKED: to(S.SUBMITTED),
        _H.DRIVER_ENDED: to(S.WAITING_TO_RESTART, S.FAILED, S.KILLED),
        _H.DRIVER_LOST: to(S.WAITING_TO_RESTART, S.FAILED, S.KILLED),
        _H.REFUSED: to(S.FAILED),
        _H.KILL_ASKED: to(S.KILLING, S.KILLED),
        _H.HOLDER_ENDED: to(S.KILLED),
        _H.UNCONFIRMED: to(S.WAITING_TO_RESTART),
        _H.RESTART_DUE: _NOT_DUE,
        _H.TIE_LAPSED: to(S.KILLING, S.KILLED),
        _H.TURN_CAME: to(S.SUBMITTED),
    },
    S.LAUNCHING: {
        _H.LAUNCHED: to(S.LAUNCHING),
        _H.LEASE_ASKED: to(S.RUNNING),
        _H.GONE: to(S.LAUNCHING),
        _H.LINKED: to(S.LAUNCHING),
        _H.DRIVER_ENDED: to(S.WAITING_TO_RESTART, S.FAILED, S.KILLED),
        _H.DRIVER_LOST: to(S.WAITING_TO_RESTART, S.FAILED, S.KILLED),
        _H.REFUSED: _HAS_A_NODE,
        _H.KILL_ASKED: to(S.KILLING),
        _H.HOLDER_ENDED: to(S.KILLED),
        _H.UNCONFIRMED: to(S.WAITING_TO_RESTART),
        _H.RESTART_DUE: _NOT_DUE,
        _H.TIE_LAPSED: to(S.KILLING),
        _H.TURN_CAME: _HAD_ITS_TURN,
    },
    S.RUNNING: {
        _H.LAUNCHED: to(S.RUNNING),
        _H.LEASE_ASKED: to(S.RUNNING),
        _H.GONE: to(S.RUNNING),
        _H.LINKED: to(S.RUNNING),
        _H.DRIVER_ENDED: to(S.FINISHED, S.WAITING_TO_RESTART, S.FAILED, S.KILLED),
        _H.DRIVER_LOST: to(S.WAITING_TO_RESTART, S.FAILED, S.KILLED),
        _H.REFUSED: _HAS_A_NODE,
        _H.KILL_ASKED: to(S.KILLING),
        _H.HOLDER_ENDED: to(S.KILLED),
        _H.UNCONFIRMED: to(S.WAITING_TO_RESTART, S.FAILED),
        _H.RESTART_DUE: _NOT_DUE,
        _H.TIE_LAPSED: to(S.KILLING),
        _H.TURN_CAME: _HAD_ITS_TURN,
    },
    S.WAITING_TO_RESTART: {
        _H.LAUNCHED: to(S.WAITING_TO_RESTART),
        _H.LEASE_ASKED: _GIVEN_UP,
        _H.GONE: to(S.WAITING_TO_RESTART),
        _H.LINKED: to(S.WAITING_TO_RESTART),
        _H.DRIVER_ENDED: to(S.WAITING_TO_RESTART),
        _H.DRIVER_LOST: Ignored(
            "what is lost may still run: its lease decides when the next starts"
        ),
        _H.REFUSED: _HAS_A_NODE,
        _H.KILL_ASKED: to(S.KILLED),
        _H.HOLDER_ENDED: to(S.KILLED),
        _H.UNCONFIRMED: Impossible("its driver was abandoned, and no report of it is awaited"),
        _H.RESTART_DUE: to(S.SUBMITTED),
        _H.TIE_LAPSED: to(S.KILLED),
        _H.TURN_CAME: _HAD_ITS_TURN,
    },
    S.KILLING: {
        _H.LAUNCHED: to(S.KILLING),
        _H.LEASE_ASKED: _GIVEN_UP,
        _H.GONE: to(S.KILLING),
        _H.LINKED: to(S.KILLING),
        _H.DRIVER_ENDED: to(S.KILLED),
        _H.DRIVER_LOST: to(S.KILLED),
        _H.REFUSED: to(S.KILLED),
        _H.KILL_ASKED: to(S.KILLING),
        _H.HOLDER_ENDED: to(S.KILLED),
        _H.UNCONFIRMED: to(S.KILLED),
        _H.RESTART_DUE: _NOT_DUE,
        _H.TIE_LAPSED: Ignored("it is being killed"),
        _H.TURN_CAME: _HAD_ITS_TURN,
    },
    S.FINISHED: _ENDED_ROW,
    S.FAILED: _ENDED_ROW,
    S.KILLED: _ENDED_ROW,
}


@record
class SubmissionBounds:
    """Every bound of submissions; ``hrm.config`` has the same names, and these defaults.

    ``driver_lease_s``: how long a supervised driver goes on without a renewal by the master.
    ``lease_margin_s``: what is added to it before another driver may start: clocks that run at
    different speeds, and the time that a kill takes. ``renew_s``: how often a lease is renewed.
    ``driver_launches_max``: containers in a row that a node has begun to start and in which no
    driver ran. One that only waited at its node does not count, for its driver had no part in its
    end. ``serial_lease_s``: the lease of unsupervised drivers with a serial key: they outlive the
    master's absence for as long, and a retry waits for as long where a node was lost.
    ``recovery_s``: how long, at least, drivers and the clients of tied ones have to report to a
    master that has just started.
    ``tick_late_s``: after this time without a tick, the master has slept.
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
    serial_lease_s: float = 600.0
    tick_late_s: float = BOUNDS.tick_late_s


@record
class SubmissionRecord:
    """What the store keeps of a submission. Times are seconds since the epoch; 0: not yet.

    ``driver``: the driver's document for its node, as JSON; opaque here, and full of secrets.
    ``files``: the hashes that it needs, as long as it lives. ``restarts``: when it was restarted,
    the latest last. ``launches``: containers in a row that were begun and in which no driver ran.
    ``may_live``: the driver of ``attempt`` had a lease when it last reported, so it may live
    although it is lost. ``ownership_key``: the client made it, and the node of each driver gets it,
    so this is not a digest but the key itself; empty: submitted by an older HRM.
    ``server_scheme``, ``server_port``: of the address at which the driver will serve; empty: it is
    no server (``hrm.spark_servers``). ``first_executors``: what its driver needs to begin; None:
    nothing, or it is not known. ``tie_s``: it is killed after so long without a sign of its client;
    0: it outlives its client. ``serial_key``: of a user's submissions that have the same one, one
    runs at a time, in the order in which they came; empty: with all others. ``attempt`` is 0 until
    its turn has come. ``fenced_until_s``: it has ended, but until then its lost driver may live.
    ``requires``: what the driver's node must meet; None: nothing. ``queue``, ``tags``, ``groups``
    and ``priority``: of the application that holds the driver, as of ``ApplicationRegistered``.
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
    server_scheme: str = ""
    server_port: int = 0
    first_executors: FirstExecutors | None = None
    tie_s: float = 0.0
    serial_key: str = ""
    fenced_until_s: float = 0.0
    requires: NodeRequirement | None = None
    queue: str = ""
    tags: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    priority: int = 0


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
class TieRenewed(_Event):
    """The client that a submission is tied to still waits for it."""

    call_id: int
    submission_id: str
    ownership_key: str = field(default="", repr=False)


@record
class HolderEnded(_Event):
    """The application that holds the driver's container was ended from outside."""

    submission_id: str
    message: str


@record
class SubmissionsTicked(_Event):
    pass


Event: TypeAlias = (
    Submitted
    | DriverLaunched
    | DriverEnded
    | DriverLinked
    | RefusedDriver
    | LeaseAsked
    | KillAsked
    | TieRenewed
    | HolderEnded
    | SubmissionsTicked
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
    """Request the container of this attempt."""

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
    """The driver is dead: what is left of its application must go. ``failed_attempt``: the driver
    that was seen to fail, and whose last application this is: it has failed, too, whatever was
    reported of it before. 0: none."""

    submission_id: str
    application_id: str
    state: SubmissionState
    message: str
    failed_attempt: int = 0


@record
class Changed:
    """To watchers."""

    submission_id: str


@record
class Committed:
    """Reply to a call: what it requested is durable."""

    call_id: int
    submission_id: str


@record
class GrantLease:
    """Reply: the driver may run for ``lease_s`` from when it was requested; 0: without a limit."""

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
