"""Protobuf and JSON to the AppMaster core's dataclasses, and back.

Numbers that come from the driver are clamped to what the wire can hold: a report must not fail
because a counter is large or negative. Its texts and lists are truncated likewise.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hrm import request_bounds
from hrm.core.messages import appmaster as messages
from hrm.core.vocabulary.model import ContainerEnd, ContainerState, EndCause
from hrm.core.vocabulary.node_requirement import NodeRequirement
from hrm.text import shortened
from hrm.v1 import application_pb2, common_pb2
from hrm.wire import requirements
from hrm.wire.enums import APPLICATION_STATE, TO_CONTAINER_STATE, TO_END_CAUSE

__all__ = [
    "attach",
    "counts_alone",
    "events",
    "heartbeat",
    "progress",
    "registration",
    "seen",
    "targets",
    "update",
    "with_unsent",
    "workload_class",
]

_INT32_MAX = 2**31 - 1
_INT64_MAX = 2**63 - 1
_QUERIES_MAX = request_bounds.FIELDS["Progress.streaming_queries"].count
_HOSTS_MAX = request_bounds.FIELDS["ExcludedHosts.hosts"].count
_STAGES_MAX = request_bounds.FIELDS["Progress.stages"].count
_TRAINING_MAX = request_bounds.FIELDS["Progress.training"].count
_EXECUTOR_TASKS_MAX = request_bounds.FIELDS["Progress.executor_tasks"].count
_INTRODUCED = (
    *("name", "user", "queue", "spark_version", "driver_host", "web_url"),
    "submission_key",
)
_LAUNCH = (
    *("driver_url", "spark_version", "environment", "java_options", "extra_class_path"),
    "decommissions",
)
_DRIVER_PYTHON = "HRM_DRIVER_PYTHON"
_CLASSES = {
    "": common_pb2.WORKLOAD_CLASS_UNSPECIFIED,
    "BATCH": common_pb2.WORKLOAD_CLASS_BATCH,
    "STREAM": common_pb2.WORKLOAD_CLASS_STREAM,
}


def seen(status: common_pb2.ContainerStatus) -> messages.ContainerSeen:
    """A container in the master's representation. Unknown values of a newer master are mapped to
    the most harmless ones: a state to a waiting container, a cause to an end without blame."""
    state = TO_CONTAINER_STATE.get(status.state, ContainerState.PENDING)
    return messages.container_seen(
        status.executor_id,
        status.resource_profile_id,
        state,
        status.node,
        _end(status.end) if state is ContainerState.ENDED else None,
    )


def _end(message: common_pb2.ContainerEnd) -> ContainerEnd:
    cause = TO_END_CAUSE.get(message.cause, EndCause.LOST)
    return ContainerEnd(
        cause=cause,
        exit_code=message.exit_code,
        message=message.message,
        lost_host=message.lost_host,
    )


def events(
    notice: application_pb2.ApplicationNotice, last_executor_number: int, now: float
) -> list[messages.Event]:
    """The master's messages in a session; the last number is of the registration before it."""
    match notice.WhichOneof("notice"):
        case "attached":
            return [
                messages.SessionOpened(
                    now=now,
                    epoch=notice.attached.epoch,
                    containers=tuple(map(seen, notice.attached.containers)),
                    last_executor_number=last_executor_number,
                    executors_max=_executors_max(notice.attached.limit),
                )
            ]
        case "container":
            return [messages.ContainerListed(now=now, container=seen(notice.container))]
        case "changed":
            return [
                messages.ContainerListed(now=now, container=seen(status))
                for status in notice.changed.containers
            ]
        case "refused":
            refused = notice.refused
            return [
                messages.ExecutorsRefused(
                    now=now,
                    executor_ids=tuple(refused.executor_ids),
                    profile=refused.resource_profile_id,
                    message=refused.message,
                )
            ]
        case "limit":
            executors_max = _executors_max(notice.limit)
            return [messages.ExecutorLimitSet(now=now, executors_max=executors_max)]
        case "end":
            return [messages.EndOrdered(now=now, message=notice.end.message)]
    return []


def _executors_max(limit: application_pb2.ExecutorLimit) -> int | None:
    return max(1, limit.executors_max) if limit.HasField("executors_max") else None


def targets(items: list[dict[str, Any]]) -> tuple[messages.ProfileTarget, ...]:
    """The driver's targets."""
    return tuple(
        messages.ProfileTarget(
            profile=int(item["profile"]),
            count=int(item["count"]),
            vcores=int(item["vcores"]),
            heap_mib=int(item["heap_mib"]),
            memory_mib=int(item["memory_mib"]),
            gpu_memory_mib=int(item["gpu_memory_mib"]) if item.get("gpus") else 0,
            gpus=int(item.get("gpus", 0)),
            unknown_resources=tuple(item.get("unknown_resources", ())),
            hosts=tuple(item.get("hosts", ())),
            local_executors=int(item.get("local_executors", 0)),
        )
        for item in items
    )


def workload_class(name: str) -> common_pb2.WorkloadClass:
    """STREAM, BATCH or nothing.

    Raises:
        KeyError: another name.
    """
    return _CLASSES[name]


def update(command: messages.Command) -> application_pb2.ApplicationUpdate | None:
    """The message to the master for ``command``; None: it is for Spark."""
    match command:
        case messages.RequestContainers():
            request = application_pb2.RequestContainers(containers=map(_ask, command.asks))
            if command.again is not None:
                request.again = command.again
            return application_pb2.ApplicationUpdate(request=request)
        case messages.ReleaseContainers():
            return application_pb2.ApplicationUpdate(
                release=application_pb2.ReleaseContainers(
                    executor_ids=command.executor_ids, reason=_words(command.reason)
                )
            )
        case messages.ReportClass():
            return application_pb2.ApplicationUpdate(
                class_changed=application_pb2.ClassChanged(
                    workload_class=workload_class(command.workload_class),
                    evidence=_words(command.evidence),
                )
            )
        case messages.ReportExclusions():
            hosts = command.hosts[:_HOSTS_MAX]
            return application_pb2.ApplicationUpdate(
                excluded_hosts=application_pb2.ExcludedHosts(hosts=hosts)
            )
        case messages.FinishApplication():
            return application_pb2.ApplicationUpdate(
                finished=application_pb2.ApplicationFinished(
                    state=APPLICATION_STATE[command.state], message=_words(command.message)
                )
            )
        case _:
            return None


def _ask(ask: messages.ContainerAsk) -> application_pb2.ContainerRequest:
    target = ask.target
    return application_pb2.ContainerRequest(
        executor_id=ask.executor_id,
        resource_profile_id=target.profile,
        resources=common_pb2.Resources(
            vcores=target.vcores,
            memory_mib=target.memory_mib,
            gpu_memory_mib=target.gpu_memory_mib * max(1, target.gpus),
        ),
        heap_mib=min(target.heap_mib, _INT32_MAX),
        gpus=target.gpus,
        hosts=ask.hosts,
        locality_wait_s=ask.locality_wait_s,
    )


def registration(
    hello: Mapping[str, Any],
    *,
    application_id: str,
    ownership_key: str,
    submission_id: str,
    submission_attempt: int,
    submission_ownership_key: str,
    followed: tuple[int, str],
) -> application_pb2.RegisterApplicationRequest:
    """``hello``: what the plugin introduces the driver with."""
    launch = hello["launch"]
    node = hello.get("node", {})
    return application_pb2.RegisterApplicationRequest(
        application_id=application_id,
        declared_class=workload_class(hello["class"].upper()),
        gang_min=hello.get("gang_min", 0),
        stream_min=hello.get("stream_min", 0),
        input_bytes=hello.get("input_bytes", 0),
        tags=hello.get("tags", ()),
        priority=hello.get("priority", 0),
        driver_start=hello.get("start", ""),
        submission_id=submission_id,
        submission_attempt=submission_attempt,
        ownership_key=ownership_key,
        submission_ownership_key=submission_ownership_key,
        followed_epoch=followed[0],
        followed_epoch_id=followed[1],
        launch=common_pb2.SparkLaunch(
            **{name: launch[name] for name in _LAUNCH},
            files=launch.get("files", ()),
            decommission_signal=launch.get("decommission_signal", ""),
        ),
        requires=requirements.from_requirement(
            NodeRequirement(
                labels=frozenset(node.get("labels", ())),
                spark=hello["spark_version"],
                scala=node.get("scala", ""),
                java=node.get("java", ""),
                # A driver on a node states its Python where executors run their node's.
                python=node.get("python") or launch["environment"].get(_DRIVER_PYTHON, ""),
            )
        ),
        **{name: hello[name] for name in _INTRODUCED},
    )


def attach(
    application_id: str, epoch: int, ownership_key: str
) -> application_pb2.ApplicationUpdate:
    """The first message of a session."""
    return application_pb2.ApplicationUpdate(
        attach=application_pb2.AttachApplication(
            application_id=application_id, epoch=epoch, ownership_key=ownership_key
        )
    )


def heartbeat() -> application_pb2.ApplicationUpdate:
    return application_pb2.ApplicationUpdate(heartbeat=application_pb2.ApplicationHeartbeat())


def progress(report: Mapping[str, Any]) -> application_pb2.ApplicationUpdate:
    """The driver's counts; its field names are those of the message."""
    counts = {
        name: max(0, min(int(report[name]), _INT32_MAX))
        for name in ("active_jobs", "active_stages", "completed_stages")
    }
    tasks = {
        f"tasks_{name}": max(0, int(report[f"tasks_{name}"]))
        for name in ("total", "running", "completed", "failed")
    }
    message = common_pb2.Progress(
        **counts,
        **tasks,
        mean_task_s=float(report["mean_task_s"]),
        streaming_queries=[_label(name) for name in report["streaming_queries"][:_QUERIES_MAX]],
        stages=[_stage(stage) for stage in report["stages"][:_STAGES_MAX]],
        # Not in the reports of older plugins.
        executor_tasks=[
            _executor_tasks(tasks)
            for tasks in report.get("executor_tasks", ())[:_EXECUTOR_TASKS_MAX]
        ],
        training=[_training(each) for each in report.get("training", ())[-_TRAINING_MAX:]],
    )
    return application_pb2.ApplicationUpdate(progress=message)


def counts_alone(
    update: application_pb2.ApplicationUpdate,
) -> application_pb2.ApplicationUpdate:
    """Of a report, what may be sent again: its counts. Times of tasks count each time they are, and
    so do epochs."""
    if not (update.progress.executor_tasks or update.progress.training):
        return update
    copy = application_pb2.ApplicationUpdate()
    copy.CopyFrom(update)
    copy.progress.ClearField("executor_tasks")
    copy.progress.ClearField("training")
    return copy


def with_unsent(
    update: application_pb2.ApplicationUpdate, unsent: application_pb2.ApplicationUpdate
) -> application_pb2.ApplicationUpdate:
    """A report that replaces one that was not sent, with the times of tasks and the epochs of both;
    the latest, where there are too many."""
    tasks, epochs = unsent.progress.executor_tasks, unsent.progress.training
    if not (tasks or epochs):
        return update
    both = application_pb2.ApplicationUpdate()
    both.CopyFrom(update)
    left = _EXECUTOR_TASKS_MAX - len(update.progress.executor_tasks)
    both.progress.executor_tasks.extend(tasks[-left:] if left > 0 else ())
    latest = [*epochs, *update.progress.training][-_TRAINING_MAX:]
    both.progress.ClearField("training")
    both.progress.training.extend(latest)
    return both


def _executor_tasks(report: Mapping[str, Any]) -> common_pb2.ExecutorTasks:
    return common_pb2.ExecutorTasks(
        executor_id=str(report["executor_id"]),
        stage=shortened(report["stage"], request_bounds.ID),
        tasks=max(0, min(int(report["tasks"]), _INT32_MAX)),
        run_s=max(0.0, float(report["run_s"])),
        input_bytes=max(0, int(report["input_bytes"])),
    )


def _training(report: Mapping[str, Any]) -> common_pb2.TrainingReport:
    """As stated: the master refuses what cannot be, with the reason. Jackson writes what is no
    number as a string."""
    message = common_pb2.TrainingReport(
        epoch=_held(int(report["epoch"])),
        loss=float(report["loss"]),
        seconds=float(report["seconds"]),
        epochs=_held(int(report.get("epochs", 0))),
    )
    if report.get("accuracy") is not None:
        message.accuracy = float(report["accuracy"])
    return message


def _held(number: int) -> int:
    """The nearest number that the wire can hold."""
    return max(-_INT64_MAX, min(number, _INT64_MAX))


def _stage(report: Mapping[str, Any]) -> common_pb2.StageProgress:
    counts = {k: max(0, int(v)) for k, v in report.items() if k.startswith("tasks_")}
    return common_pb2.StageProgress(**{**report, **counts, "name": _label(report["name"])})


def _words(long_text: str) -> str:
    """Untrusted text, truncated to the master's bounds: a long error must not end the session."""
    return shortened(long_text, request_bounds.TEXT)


def _label(name: str) -> str:
    return shortened(name, request_bounds.LABEL)
