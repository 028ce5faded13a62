"""What passes between the core of submissions and the master's core, in the terms of each.

The core of submissions has drivers and attempts, the master's has applications and containers. A
driver's container belongs to an application of the submission's id, its holder, whose AppMaster is
played by the interpreter of these cores. Both interpreters translate here, the live master's and
the simulator's, so that what the simulator proves of ends and leases is what runs.
"""

from __future__ import annotations

from hrm.core.master.state import MasterState
from hrm.core.messages import events as e
from hrm.core.messages import submissions as m
from hrm.core.vocabulary.ends import Start, end_rule
from hrm.core.vocabulary.model import (
    ApplicationId,
    ApplicationState,
    ContainerRequest,
    ContainerState,
    ContainerStatus,
    LaunchContext,
    WorkloadClass,
)
from hrm.core.vocabulary.ownership import MASTER

__all__ = [
    "application_end",
    "driver_event",
    "driver_release",
    "driver_request",
    "holder_registration",
]

_APPLICATION_STATE = {
    m.SubmissionState.FINISHED: ApplicationState.SUCCEEDED,
    m.SubmissionState.FAILED: ApplicationState.FAILED,
    m.SubmissionState.KILLED: ApplicationState.KILLED,
}


def holder_registration(
    record: m.SubmissionRecord, launch: LaunchContext, *, known: bool, call_id: int, now: float
) -> e.ApplicationRegistered:
    """Of the application that holds the driver's containers; ``known``: it was there before."""
    app_id = ApplicationId(record.submission_id)
    return e.ApplicationRegistered(
        now=now,
        call_id=call_id,
        application_id=app_id if known else ApplicationId(""),
        new_id=app_id,
        submission_key=app_id,
        name=f"{record.name} (driver)",
        user=record.user,
        declared_class=WorkloadClass.STREAM if record.stream else WorkloadClass.BATCH,
        launch=launch,
        owner=MASTER,
    )


def driver_request(
    record: m.SubmissionRecord, command: m.RequestDriver, now: float
) -> e.ContainersRequested:
    """The attempt is the number of the executor that the holder asks for."""
    request = ContainerRequest(
        executor_id=str(command.attempt),
        resource_profile_id=0,
        resources=record.resources,
        heap_mib=record.heap_mib,
    )
    application_id = ApplicationId(command.submission_id)
    return e.ContainersRequested(now=now, application_id=application_id, requests=(request,))


def driver_release(command: m.ReleaseDriver, now: float) -> e.ContainersReleased:
    return e.ContainersReleased(
        now=now,
        application_id=ApplicationId(command.submission_id),
        executor_ids=(str(command.attempt),),
        reason=command.reason,
    )


def application_end(command: m.EndHolder | m.EndLinked, now: float) -> e.ApplicationFinished:
    """The end of the holder, or of the application that the driver had made."""
    if isinstance(command, m.EndHolder):
        application_id, message = command.submission_id, command.message or command.state.value
    else:
        application_id, message = command.application_id, command.message
    return e.ApplicationFinished(
        now=now,
        application_id=ApplicationId(application_id),
        state=_APPLICATION_STATE[command.state],
        message=message,
    )


def driver_event(
    record: m.SubmissionRecord, status: ContainerStatus, master_state: MasterState, now: float
) -> m.DriverLaunched | m.DriverEnded | None:
    """The event, or None where the container neither runs nor has ended.

    ``lost``: the driver was not seen to end, so it may live. ``killed``: the application that this
    very driver had made was killed. ``waited``: its node is not known to have begun to start it;
    had it a lease by then, the submission's state shows it.
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
    app = master_state.applications.get(linked)
    killed = (
        app is not None
        and app.record.state is ApplicationState.KILLED
        and app.record.submission_attempt == attempt
    )
    started, rule = status.started_at_s > 0, end_rule(end)
    return m.DriverEnded(
        now=now,
        submission_id=submission_id,
        attempt=attempt,
        exit_code=end.exit_code,
        message=end.message or end.cause.value,
        lost=rule.unseen,
        killed=killed,
        launched=started and rule.start is not Start.FAILED,
        waited=not started and rule.start is Start.UNKNOWN and end.exit_code < 0,
    )
