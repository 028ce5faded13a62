"""Messages between a master and AppMasters, as events and notices: the master's side.

The AppMaster's side is ``hrm.wire.appmaster``, which is loaded next to every driver and needs
neither these events nor their checks.
"""

from __future__ import annotations

from collections.abc import Iterable

from hrm import ownership_keys
from hrm.core.messages import commands as c
from hrm.core.messages import events as e
from hrm.core.vocabulary.model import (
    ApplicationId,
    ContainerRequest,
    ContainerStatus,
    WorkloadClass,
)
from hrm.core.vocabulary.node_requirement import lasting
from hrm.errors import InvalidRequest
from hrm.v1 import application_pb2 as pb
from hrm.wire import codec, driver_reports, requirements

__all__ = [
    "attached",
    "from_admitted",
    "from_changes",
    "from_notice",
    "to_attachment",
    "to_event",
    "to_registration",
]

PRIORITY_MAX = 999_999_999


def to_registration(
    request: pb.RegisterApplicationRequest,
    call_id: int,
    now: float,
    groups: tuple[str, ...] = (),
    *,
    proven: bool = False,
) -> e.ApplicationRegistered:
    """A call of ``Register``. ``groups``: those of its user. ``proven``: see the event.

    Raises:
        InvalidRequest: a field is malformed.
    """
    if request.application_id:
        codec.to_name(request.application_id, "application_id")
    return e.ApplicationRegistered(
        now=now,
        call_id=call_id,
        application_id=ApplicationId(request.application_id),
        submission_key=codec.to_name(request.submission_key, "submission_key"),
        name=codec.to_text(request.name, "name"),
        user=codec.to_text(request.user, "user"),
        queue=codec.to_text(request.queue, "queue"),
        tags=tuple(codec.to_text(tag, "tags") for tag in request.tags),
        groups=groups,
        priority=codec.to_whole(request.priority, "priority", -PRIORITY_MAX, PRIORITY_MAX),
        spark_version=codec.to_text(request.spark_version, "spark_version"),
        driver_host=codec.to_text(request.driver_host, "driver_host"),
        web_url=codec.to_text(request.web_url, "web_url"),
        driver_start=codec.to_text(request.driver_start, "driver_start"),
        declared_class=codec.to_class(request.declared_class, "declared_class"),
        launch=codec.to_launch(request.launch),
        gang_min=codec.to_gang_min(request.gang_min),
        stream_min=codec.to_gang_min(request.stream_min),
        input_bytes=codec.to_whole(request.input_bytes, "input_bytes", 0, codec.COUNT_MAX),
        submission_id=codec.to_text(request.submission_id, "submission_id"),
        submission_attempt=request.submission_attempt,
        owner=ownership_keys.owner_of(request.ownership_key),
        followed=codec.to_followed(request),
        requires=lasting(requirements.to_requirement(request.requires)),
        proven=proven,
    )


def to_attachment(update: pb.ApplicationUpdate, session: int, now: float) -> e.ApplicationAttached:
    """The first message of a session; its call has no number yet.

    Raises:
        InvalidRequest: it is another one, or a field is malformed.
    """
    if update.WhichOneof("update") != "attach":
        raise InvalidRequest("the first message of a session must be `attach`")
    attach = update.attach
    return e.ApplicationAttached(
        now=now,
        call_id=0,
        application_id=ApplicationId(codec.to_name(attach.application_id, "application_id")),
        session=session,
        epoch=attach.epoch,
        owner=ownership_keys.owner_of(attach.ownership_key),
    )


def to_event(
    update: pb.ApplicationUpdate, application_id: ApplicationId, now: float
) -> e.MasterEvent | None:
    """Any later message of a session; None: a heartbeat.

    Raises:
        InvalidRequest: it is not allowed here, or a field is malformed.
    """
    match update.WhichOneof("update"):
        case "request":
            requests = tuple(map(_to_request, update.request.containers))
            return e.ContainersRequested(
                now=now,
                application_id=application_id,
                requests=requests,
                again=update.request.again if update.request.HasField("again") else None,
            )
        case "release":
            return e.ContainersReleased(
                now=now,
                application_id=application_id,
                executor_ids=tuple(
                    codec.to_name(x, "executor_ids") for x in update.release.executor_ids
                ),
                reason=codec.to_text(update.release.reason, "reason"),
            )
        case "progress":
            counts = driver_reports.to_progress(update.progress)
            tasks = driver_reports.to_executor_tasks(update.progress)
            return e.ProgressReported(
                now=now,
                application_id=application_id,
                progress=counts,
                tasks=tasks,
                training=driver_reports.to_training(update.progress),
            )
        case "class_changed":
            change = update.class_changed
            observed = codec.to_class(change.workload_class, "workload_class")
            return e.WorkloadClassObserved(
                now=now,
                application_id=application_id,
                workload_class=observed or WorkloadClass.BATCH,
                evidence=codec.to_text(change.evidence, "evidence"),
            )
        case "excluded_hosts":
            hosts = requirements.to_hosts(update.excluded_hosts.hosts)
            return e.HostsExcluded(now=now, application_id=application_id, hosts=hosts)
        case "finished":
            state = codec.to_application_state(update.finished.state, "state")
            if not state.ended:
                raise InvalidRequest(f"an application cannot finish as {state.value}")
            return e.ApplicationFinished(
                now=now,
                application_id=application_id,
                state=state,
                message=codec.to_text(update.finished.message, "message"),
            )
        case "heartbeat":
            return None
        case kind:
            raise InvalidRequest(f"an attached application may not send {kind or 'nothing'}")


def _to_request(message: pb.ContainerRequest) -> ContainerRequest:
    return codec.to_request(
        message.executor_id,
        message.resource_profile_id,
        message.resources,
        message.heap_mib,
        message.expected_duration_s,
        message.gpus,
        message.hosts,
        message.locality_wait_s,
        yields=message.yields,
    )


def from_admitted(
    result: c.ApplicationAdmitted, heartbeat_interval_s: float, node_timeout_s: float, token: str
) -> pb.RegisterApplicationResponse:
    return pb.RegisterApplicationResponse(
        application_id=result.application_id,
        epoch=result.epoch,
        containers=[codec.from_status(x) for x in result.containers],
        heartbeat_interval_s=heartbeat_interval_s,
        last_executor_number=result.last_executor_number,
        node_timeout_s=node_timeout_s,
        token=token,
        epoch_id=result.epoch_id,
    )


def attached(result: c.ApplicationAdmitted) -> pb.ApplicationNotice:
    """The first message of a master in a session."""
    hello = pb.AttachedApplication(
        epoch=result.epoch,
        containers=[codec.from_status(x) for x in result.containers],
        limit=_limit(result.executors_max),
    )
    return pb.ApplicationNotice(attached=hello)


def _limit(executors_max: int | None) -> pb.ExecutorLimit:
    return pb.ExecutorLimit(executors_max=executors_max)


def from_changes(statuses: Iterable[ContainerStatus]) -> pb.ApplicationNotice:
    """Many notices of containers as one message: the cost of a message is mostly per message."""
    changed = pb.ContainersChanged(containers=[codec.from_status(x) for x in statuses])
    return pb.ApplicationNotice(changed=changed)


def from_notice(notice: c.Notice) -> pb.ApplicationNotice:
    """A notice of the master's core to an application."""
    match notice:
        case c.ContainerChanged():
            return pb.ApplicationNotice(container=codec.from_status(notice.status))
        case c.RequestRefused():
            refused = pb.RequestRefused(
                executor_ids=notice.executor_ids,
                resource_profile_id=notice.resource_profile_id,
                message=notice.message,
            )
            return pb.ApplicationNotice(refused=refused)
        case c.ExecutorLimit():
            return pb.ApplicationNotice(limit=_limit(notice.executors_max))
        case c.EndApplication():
            end = pb.EndApplication(
                state=codec.APPLICATION_STATE[notice.state], message=notice.message
            )
            return pb.ApplicationNotice(end=end)
