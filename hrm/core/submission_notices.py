"""What the master says of a driver's container, as the submissions' core takes it.

Both interpreters translate here, the live master's and the simulator's, so that what the simulator
proves of ends and leases is what runs.
"""

from __future__ import annotations

from hrm.core import submission_messages as m
from hrm.core.ledger import Ledger
from hrm.core.model import (
    ApplicationId,
    ApplicationState,
    ContainerState,
    ContainerStatus,
    EndCause,
)

__all__ = ["driver_event"]

_LOST = (EndCause.NODE_LOST, EndCause.LOST)
_SAYS_NOTHING = (*_LOST, EndCause.PREEMPTED)
"""Causes that are no sign that its node had tried to start it."""


def driver_event(
    record: m.SubmissionRecord, status: ContainerStatus, ledger: Ledger, now: float
) -> m.DriverLaunched | m.DriverEnded | None:
    """The event, or None where the container neither runs nor has ended.

    ``lost``: nobody has seen the driver end, so it may live. ``killed``: somebody killed the
    application that this very driver had made. ``waited``: nobody has heard that its node
    had begun to start it; had it a lease by then, the submission's state says so.
    """
    submission_id, attempt = record.submission_id, int(status.executor_id)
    if status.state is ContainerState.RUNNING:
        return m.DriverLaunched(
            now=now, submission_id=submission_id, attempt=attempt, node=status.node
        )
    if status.state is not ContainerState.ENDED or status.end is None:
        return None
    end = status.end
    linked = ApplicationId("".join(record.application_ids[-1:]))
    app = ledger.applications.get(linked)
    killed = (
        app is not None
        and app.record.state is ApplicationState.KILLED
        and app.record.submission_attempt == attempt
    )
    started = status.started_at_s > 0
    return m.DriverEnded(
        now=now,
        submission_id=submission_id,
        attempt=attempt,
        exit_code=end.exit_code,
        message=end.message or end.cause.value,
        lost=end.cause in _LOST,
        killed=killed,
        launched=started and end.cause is not EndCause.LAUNCH_FAILED,
        waited=not started and end.cause in _SAYS_NOTHING and end.exit_code < 0,
    )
