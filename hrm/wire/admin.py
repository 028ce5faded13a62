"""Calls of operators to a master, as events, and its responses: cluster, nodes, applications.

``hrm.master.admin_service`` chooses and pages them; the CLI renders them.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Sequence
from typing import Any

from hrm.core.master.core import MasterCore
from hrm.core.master.entities import Application, Node
from hrm.core.master.state import MasterState
from hrm.core.messages import events as e
from hrm.core.scheduling.scheduler import Scheduler
from hrm.core.vocabulary.estimate_errors import ErrorSummary
from hrm.core.vocabulary.feasibility import Column
from hrm.core.vocabulary.model import (
    NOTHING,
    ApplicationId,
    ContainerState,
    NodeName,
    NodeState,
    Resources,
)
from hrm.errors import InvalidRequest
from hrm.identity.roles import Identity
from hrm.v1 import admin_pb2 as pb
from hrm.wire import codec, driver_reports, node_stream, requirements

__all__ = [
    "from_application",
    "from_cluster",
    "from_node",
    "from_run_times",
    "to_drain",
    "to_kill",
    "to_node_states",
    "to_priority_request",
    "to_rebinding",
]

MOVE_WITHIN_MAX_S = 3600.0
STEPS_MAX = 1_000
"""Of one request for another priority; far more than a master takes in a period."""

_WAITING = (ContainerState.ASSIGNED, ContainerState.WAITING)


def to_kill(
    request: pb.KillApplicationRequest, call_id: int, now: float, by: Identity
) -> e.KillRequested:
    """A call of ``KillApplication``.

    Raises:
        InvalidRequest: a field is malformed.
    """
    return e.KillRequested(
        now=now,
        call_id=call_id,
        application_id=ApplicationId(request.application_id),
        reason=codec.to_text(request.reason, "reason") or f"killed by {by}",
        by="" if by.role.rules else str(by),
    )


def to_priority_request(
    request: pb.ChangePriorityRequest, call_id: int, now: float, by: Identity
) -> e.PriorityRequested:
    """A call of ``ChangePriority``.

    Raises:
        InvalidRequest: a field is malformed or out of range.
    """
    steps = codec.to_whole(request.steps, "steps", -STEPS_MAX, STEPS_MAX)
    if not steps:
        raise InvalidRequest("steps is 0; give how many up, as 1, or down, as -1")
    return e.PriorityRequested(
        now=now,
        call_id=call_id,
        application_id=ApplicationId(request.application_id),
        steps=steps,
        by=str(by),
        user="" if by.role.rules else by.name,
    )


def to_drain(request: pb.DrainNodesRequest, call_id: int, now: float) -> e.DrainRequested:
    """A call of ``DrainNodes``.

    Raises:
        InvalidRequest: a field is malformed, or it contradicts another.
    """
    move_within_s = request.move_within_s
    if not request.names:
        raise InvalidRequest("name at least one node; hrm nodes lists them")
    if not 0 <= move_within_s <= MOVE_WITHIN_MAX_S:
        raise InvalidRequest(
            f"move_within_s is {move_within_s}; it must be from 0 to {MOVE_WITHIN_MAX_S:g}"
        )
    if request.undo and move_within_s:
        raise InvalidRequest("undo and move_within_s exclude each other")
    return e.DrainRequested(
        now=now,
        call_id=call_id,
        nodes=tuple(NodeName(name) for name in request.names),
        undo=request.undo,
        move_within_s=move_within_s,
        reason=codec.to_text(request.reason, "reason"),
    )


def to_rebinding(request: pb.BindNodeRequest, call_id: int, now: float) -> e.RebindRequested:
    """A call of ``BindNode``.

    Raises:
        InvalidRequest: a field is malformed or out of range.
    """
    node = NodeName(codec.to_name(request.name, "name"))
    return e.RebindRequested(now=now, call_id=call_id, node=node, **node_stream.to_binding(request))


def to_node_states(numbers: Sequence[int]) -> set[NodeState]:
    """The states of a filter.

    Raises:
        InvalidRequest: one is none.
    """
    known = {number: state for state, number in codec.NODE_STATE.items()}
    for number in numbers:
        if number not in known:
            raise InvalidRequest(f"states has {number}, which is no state of a node")
    return {known[number] for number in numbers}


def from_cluster(core: MasterCore, now: float, **agent_error: Any) -> pb.Cluster:
    """``agent_error``: the fields of the message that the core does not know."""
    master_state = core.master_state
    states = [node.state for node in master_state.nodes.values()]
    capacity, free = _totals(master_state)
    live = master_state.live_applications()
    lease = core.negotiator.lease
    held = lease.holder is not None and now < lease.expires_at_s
    return pb.Cluster(
        epoch=core.epoch,
        nodes_alive=states.count(NodeState.ALIVE),
        nodes_draining=states.count(NodeState.DRAINING),
        nodes_lost=states.count(NodeState.LOST),
        capacity=codec.from_resources(capacity),
        free=codec.from_resources(free),
        applications_live=len(live),
        applications_ended=len(master_state.applications) - len(live),
        containers_running=_count(master_state, ContainerState.RUNNING),
        containers_waiting=_count(master_state, *_WAITING),
        containers_pending=_count(master_state, ContainerState.PENDING),
        schedulers=[_from_scheduler(x, now) for x in core.placement.schedulers.values()],
        lease=pb.Lease(
            holder=lease.holder or "" if held else "",
            expires_in_s=lease.expires_at_s - now if held else 0.0,
            token=lease.token,
        ),
        claims_committed=core.negotiator.committed,
        claims_queued=core.negotiator.queued,
        claims_aborted=core.negotiator.aborted,
        run_time_errors=_from_errors(
            master_state.estimate_errors.summary(), learned=len(master_state.run_times.rows)
        ),
        recovery=_from_recovery(core, now) if master_state.recovering else None,
        incomplete=not master_state.sees_all(now),
        **agent_error,
    )


def _from_recovery(core: MasterCore, now: float) -> pb.Recovery:
    nodes = core.nodes
    return pb.Recovery(
        nodes_known=nodes.known_at_start,
        nodes_back=nodes.returned,
        ends_in_s=max(0.0, core.recovery_ends_at_s - now),
        may_lack_nodes=nodes.may_lack_nodes,
    )


def _from_errors(errors: ErrorSummary, *, learned: int) -> pb.RunTimeErrors:
    message = pb.RunTimeErrors(containers=errors.known, unknown=errors.unknown, learned=learned)
    if errors.known:
        message.median, message.p90 = errors.median, errors.p90
    return message


def from_application(app: Application, *, has_classes: bool = False) -> pb.Application:
    """An application, without its containers. ``has_classes``: so has the order of its queue."""
    record = app.record
    message = pb.Application(
        application_id=app.application_id,
        name=record.name,
        user=record.user,
        queue=record.queue,
        priority=record.priority,
        state=codec.APPLICATION_STATE[app.life.state],
        workload_class=codec.WORKLOAD_CLASS[record.workload_class],
        class_evidence=record.class_evidence,
        spark_version=record.spark_version,
        driver_host=record.driver_host,
        web_url=record.web_url,
        driver_start=record.driver_start,
        submitted_at_s=record.submitted_at_s,
        first_running_at_s=record.first_running_at_s,
        ended_at_s=record.ended_at_s,
        message=record.message,
        scheduler=app.scheduler,
        containers_running=len(app.in_state(ContainerState.RUNNING)),
        containers_waiting=len(app.in_state(*_WAITING)),
        containers_pending=len(app.in_state(ContainerState.PENDING)),
        mean_wait_s=app.waited_s / app.waits if app.waits else 0.0,
        gang_min=app.gang_min or record.gang_min,
        submission_id=record.submission_id,
        submission_attempt=record.submission_attempt,
        input_bytes=record.input_bytes,
    )
    if app.progress is not None:
        message.progress.CopyFrom(driver_reports.from_progress(app.progress))
    if app.training is not None:
        message.training.CopyFrom(driver_reports.from_training(app.training))
    if app.executors_max is not None:
        message.executors_max = app.executors_max
    if app.progress is None and record.tasks_total:  # it had ended before this master
        message.progress.tasks_total = record.tasks_total
        message.progress.tasks_completed = record.tasks_completed
        message.progress.tasks_failed = record.tasks_failed
    if has_classes:
        message.priority_class = codec.PRIORITY_CLASS[record.stands.priority_class]
        message.priority_tenths = record.stands.tenths
        message.interruptions = record.stands.interruptions
    return message


def from_run_times(master_state: MasterState, app: Application) -> list[pb.RunTime]:
    """For each profile its containers have, the run times known from earlier applications."""
    containers = (*app.ended, *app.containers.values())
    profiles = sorted({0} | {x.request.resource_profile_id for x in containers})
    keys = [(app.record.name, app.record.user, profile) for profile in profiles]
    rows = [master_state.run_times.rows[key] for key in keys if key in master_state.run_times.rows]
    return [
        pb.RunTime(
            resource_profile_id=row.resource_profile_id,
            mean_s=row.mean_s,
            containers=row.containers,
            expected_s=row.expected_s(app.record.input_bytes),
            mean_input_bytes=row.input_bytes,
        )
        for row in rows
    ]


def _count(master_state: MasterState, *states: ContainerState) -> int:
    apps = master_state.applications.values()
    return sum(x.state in states for app in apps for x in app.containers.values())


def _totals(master_state: MasterState) -> tuple[Resources, Resources]:
    """The cluster's capacity and its free part, shared cores counted once."""
    state = master_state.state
    total, free = NOTHING, NOTHING
    for row in state.rows.values():
        unit = state.queue(row).unit
        total += unit.own_capacity
        free += unit.own(_resources(state.free[row]))
    return total, free


def _resources(vector: Any) -> Resources:
    return Resources(*map(int, vector[: Column.SLOTS]))


def _from_scheduler(scheduler: Scheduler, now: float) -> pb.Scheduler:
    delays = scheduler.delays_s
    delay_p50_s, delay_p99_s = _quantiles([seconds for seconds, _ in delays])
    decision_p50_s, decision_p99_s = _quantiles([x for x, has_lacked in delays if not has_lacked])
    wait_p50_s, wait_p99_s = _quantiles([x for x, has_lacked in delays if has_lacked])
    return pb.Scheduler(
        name=scheduler.name,
        queued_jobs=len(scheduler.jobs),
        rounds=scheduler.rounds,
        placed=scheduler.placed,
        retries=scheduler.retries,
        delay_p50_s=delay_p50_s,
        delay_p99_s=delay_p99_s,
        decision_p50_s=decision_p50_s,
        decision_p99_s=decision_p99_s,
        capacity_wait_p50_s=wait_p50_s,
        capacity_wait_p99_s=wait_p99_s,
        oldest_wait_s=scheduler.oldest_wait_s(now),
    )


def _quantiles(seconds: Collection[float]) -> tuple[float, float]:
    """The median and the 99th percentile; 0 where there are none."""
    if not seconds:
        return 0.0, 0.0
    ordered = sorted(seconds)
    return statistics.median(ordered), ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]


def from_node(master_state: MasterState, node: Node, now: float) -> pb.Node:
    message = pb.Node(
        name=node.name,
        host=node.host,
        endpoint=node.endpoint,
        state=codec.NODE_STATE[node.state],
        isolation=node.isolation,
        spark_versions=node.spark_versions,
        registered_at_s=node.registered_at_s,
        last_heard_s_ago=max(0.0, now - node.last_heard_s),
        platform=node.platform,
        shortcuts=[node_stream.from_shortcut(shortcut) for shortcut in node.shortcuts],
        remarks=node.remarks,
        labels=sorted(node.properties.labels),
        runtimes=[requirements.from_runtime(x) for x in node.properties.runtimes or ()],
    )
    tracker = master_state.exclusions
    for exclusion in tracker.of_all(now):
        if exclusion.node == node.name:
            message.excluded_for_s = exclusion.until_s - now
            message.exclusion = exclusion.why
    message.excluded_applications = tracker.applications_without(node.name, now, master_state.live)
    if node.usage is not None:
        message.usage.CopyFrom(node_stream.from_usage(node.usage))
    for unit in node.units:
        status = message.resource_units.add(unit=node_stream.from_unit(unit))
        queue = master_state.state.find(unit.unit_id)
        if queue is not None:
            free = _resources(queue.free)
            status.free.CopyFrom(codec.from_resources(free))
            status.running = len(queue.running)
            status.waiting_stream = len(queue.stream_waiting)
            status.waiting_batch = len(queue.batch_waiting) + len(queue.yielding_waiting)
    return message
