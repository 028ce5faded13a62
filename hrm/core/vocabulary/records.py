"""What the store keeps of an application: the intent, never a secret, never an observation."""

from __future__ import annotations

from dataclasses import dataclass

from hrm.core.vocabulary.model import ApplicationId, ApplicationState, WorkloadClass
from hrm.core.vocabulary.priority_class import Standing

__all__ = ["ApplicationRecord", "number_at", "reserved_number"]

_RESERVED = 100
"""So many numbers of executors are reserved at a time."""
_NUMBERS = 1_000_000_000
"""Spark has those of executors below 2^31."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplicationRecord:
    """The durable part of an application. Times are seconds since the epoch; 0: not yet.

    ``last_executor_number``: none of its executors has a higher number until it is written again
    (``reserved_number``). ``gang_min``: how many of its first containers start together, 0 and 1:
    each by itself;
    ``stream_min`` the same where it is a stream, 0: all of its first request. ``input_bytes``: how
    much it reads, 0: not stated.
    ``class_guessed``: it counts as a stream because its last run was one, and nothing has confirmed
    that yet.
    ``driver_start``: how its driver started, in words; empty: as any program.
    ``queue``: the leaf of the tree of queues that it is in; empty: registered by an older HRM.
    ``priority``: where that orders by priority, the highest first. ``standing``: where it stands in
    a queue whose order is ``classes``; None: as ``priority`` declares.
    ``submission_id`` and ``submission_attempt`` name the driver that made it, in cluster mode.
    ``tasks_…`` are what its driver had counted when it ended. ``owner``: the digest of its
    ownership key; empty: registered by an older HRM.
    """

    application_id: ApplicationId
    submission_key: str
    name: str
    user: str
    queue: str = ""
    priority: int = 0
    state: ApplicationState = ApplicationState.SUBMITTED
    workload_class: WorkloadClass = WorkloadClass.BATCH
    declared_class: WorkloadClass | None = None
    class_evidence: str = ""
    class_guessed: bool = False
    spark_version: str = ""
    driver_host: str = ""
    web_url: str = ""
    driver_start: str = ""
    submitted_at_s: float = 0.0
    first_running_at_s: float = 0.0
    ended_at_s: float = 0.0
    message: str = ""
    last_executor_number: int = 0
    gang_min: int = 0
    stream_min: int = 0
    input_bytes: int = 0
    submission_id: str = ""
    submission_attempt: int = 0
    tasks_total: int = 0
    tasks_completed: int = 0
    tasks_failed: int = 0
    owner: str = ""
    standing: Standing | None = None

    @property
    def stands(self) -> Standing:
        """Where it stands in a queue whose order is ``classes``."""
        return self.standing or Standing.as_declared(self.priority)


def reserved_number(last: int) -> int:
    """Up to which numbers of executors are reserved where ``last`` is the highest that is used.

    Requests are not written, so a master that takes over does not know the latest. It need not: an
    AppMaster that has lost them, too, begins after all that may have been used."""
    return max(1, -(-last // _RESERVED)) * _RESERVED


def number_at(now: float) -> int:
    """After which number executors begin where it is not known which have been used: the store has
    lost the application, and its AppMaster has started again. No earlier time gives as many."""
    return int(now) % _NUMBERS
