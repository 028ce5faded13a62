"""AdminService: queries and commands of operators and their tools. Never changes the core's state
directly."""

from __future__ import annotations

import asyncio
import contextlib
import statistics
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import grpc.aio

from hrm import __version__, text
from hrm.core.master.explain import explain, explain_past
from hrm.core.master.state import Application, MasterState, Node
from hrm.core.messages import commands as c
from hrm.core.messages import events as e
from hrm.core.scheduling.scheduler import Scheduler
from hrm.core.vocabulary.history import StateEvent
from hrm.core.vocabulary.model import (
    NOTHING,
    ApplicationId,
    ContainerState,
    NodeName,
    NodeState,
    Resources,
)
from hrm.errors import InvalidRequest, NotFound, Unavailable
from hrm.master.interpreter import Interpreter
from hrm.master.log_sources import LogSources, no_log, refusal_of
from hrm.master.paging import MESSAGE_LISTED, NAME_LISTED, page
from hrm.pipelines.core.cluster import PipelineCluster
from hrm.pipelines.core.model import TaskId
from hrm.v1 import admin_pb2 as pb
from hrm.v1 import admin_pb2_grpc, common_pb2, node_pb2, node_pb2_grpc
from hrm.wire import codec

__all__ = ["AdminService"]

LISTED_DEFAULT = 100
LISTED_MAX = 1_000_000
CONTAINERS_BYTES_MAX = 32 * 1024 * 1024
"""Per application and response: some 100,000 containers; the latest, where there are more."""
CONTAINERS_AT_ONCE = 500
"""Of a response with containers, between which the loop runs: a millisecond or two."""
MOVE_WITHIN_MAX_S = 3600.0
LINK_TIMEOUT_S = 10.0
LOG_IDLE_TIMEOUT_S = 60.0
LOG_FOLLOW_TIMEOUT_S = 24 * 3600.0

_WAITING = (ContainerState.ASSIGNED, ContainerState.WAITING)


class AdminService(admin_pb2_grpc.AdminServiceServicer):
    """``address``: where this master listens; ``to_agent``: a channel to an agent's endpoint."""

    def __init__(
        self,
        master: Interpreter,
        address: str,
        to_agent: Callable[[str], grpc.aio.Channel],
        pipelines: PipelineCluster,
    ) -> None:
        self._master = master
        self._pipelines = pipelines
        self._address = address
        self._to_agent = to_agent
        self._started_at_s = master.now()
        self._logs = LogSources(master)
        self._making = asyncio.Lock()

    @property
    def _master_state(self) -> MasterState:
        return self._master.core.master_state

    async def GetCluster(self, request: Any, context: Any) -> pb.Cluster:  # noqa: N802
        now = self._master.now()
        core = self._master.core
        master_state = self._master_state
        states = [node.state for node in master_state.nodes.values()]
        capacity, free = _totals(master_state)
        live = master_state.live_applications()
        lease = core.negotiator.lease
        held = lease.holder is not None and now < lease.expires_at_s
        return pb.Cluster(
            version=__version__,
            epoch=core.epoch,
            started_at_s=self._started_at_s,
            address=self._address,
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
            schedulers=[_scheduler(x) for x in core.placement.schedulers.values()],
            lease=pb.Lease(
                holder=lease.holder or "" if held else "",
                expires_in_s=lease.expires_at_s - now if held else 0.0,
                token=lease.token,
            ),
            claims_committed=core.negotiator.committed,
            claims_queued=core.negotiator.queued,
            claims_aborted=core.negotiator.aborted,
            paused="" if self._master.full is None else self._master.full.message,
        )

    async def ListNodes(  # noqa: N802
        self, request: pb.ListNodesRequest, context: Any
    ) -> pb.ListNodesResponse:
        now = self._master.now()
        nodes = self._master_state.nodes
        if request.name:
            one = nodes.get(NodeName(request.name))
            listed = [] if one is None else [one]
        else:
            listed = list(nodes.values())
        messages, token = page(
            listed, lambda x: (x.name,), lambda x: _node(self._master_state, x, now), request
        )
        return pb.ListNodesResponse(nodes=messages, next_page_token=token)

    async def ListApplications(  # noqa: N802
        self, request: pb.ListApplicationsRequest, context: Any
    ) -> pb.ListApplicationsResponse:
        limit = request.limit or LISTED_DEFAULT
        if not 1 <= limit <= LISTED_MAX:
            raise InvalidRequest(f"limit is {limit}; it must be from 1 to {LISTED_MAX}")
        master_state = self._master_state
        apps = master_state.applications if request.include_ended else master_state.live
        listed, token = page(
            apps.values(),
            lambda app: (app.record.submitted_at_s, app.application_id),
            self._listed,
            request,
            limit=limit,
        )
        return pb.ListApplicationsResponse(applications=listed, next_page_token=token)

    async def GetApplication(  # noqa: N802
        self, request: pb.GetApplicationRequest, context: Any
    ) -> pb.Application:
        return await self._whole(self._find(request.application_id))

    async def ExplainApplication(  # noqa: N802
        self, request: pb.ExplainApplicationRequest, context: Any
    ) -> pb.Explanation:
        application_id = ApplicationId(request.application_id)
        task_id = TaskId(request.application_id)
        pipelines = self._pipelines
        if task_id in pipelines.tasks or task_id in pipelines.ended:
            summary, details = pipelines.explain(task_id), pipelines.chosen(task_id)
            return pb.Explanation(application_id=task_id, summary=summary, details=details)
        history = await self._history(application_id)
        app = self._master_state.applications.get(application_id)
        if app is None and history:
            summary, details = explain_past(history)
        else:
            app = self._find(application_id)
            summary, details = explain(self._master_state, app, self._master.now(), history)
        return pb.Explanation(application_id=application_id, summary=summary, details=details)

    async def KillApplication(  # noqa: N802
        self, request: pb.KillApplicationRequest, context: Any
    ) -> pb.Application:
        app = self._find(request.application_id)
        await self._master.call(
            lambda call_id: e.KillRequested(
                now=self._master.now(),
                call_id=call_id,
                application_id=app.application_id,
                reason=codec.to_text(request.reason, "reason"),
            )
        )
        return await self._whole(app)

    async def DrainNodes(  # noqa: N802
        self, request: pb.DrainNodesRequest, context: Any
    ) -> pb.ListNodesResponse:
        names = tuple(NodeName(name) for name in request.names)
        if not names:
            raise InvalidRequest("name at least one node; hrm nodes lists them")
        move_within_s = request.move_within_s
        if not 0 <= move_within_s <= MOVE_WITHIN_MAX_S:
            raise InvalidRequest(
                f"move_within_s is {move_within_s}; it must be from 0 to {MOVE_WITHIN_MAX_S:g}"
            )
        if request.undo and move_within_s:
            raise InvalidRequest("undo and move_within_s exclude each other")
        await self._master.call(
            lambda call_id: e.DrainRequested(
                now=self._master.now(),
                call_id=call_id,
                nodes=names,
                undo=request.undo,
                move_within_s=move_within_s,
            )
        )
        return self._nodes(names)

    async def BindNode(  # noqa: N802
        self, request: pb.BindNodeRequest, context: Any
    ) -> pb.BindNodeResponse:
        node = NodeName(codec.to_name(request.name, "name"))
        wish = codec.to_binding(request)
        answer = await self._master.call(
            lambda call_id: e.RebindRequested(
                now=self._master.now(), call_id=call_id, node=node, **wish
            )
        )
        assert isinstance(answer, c.Rebound)
        return pb.BindNodeResponse(message=answer.message)

    async def ReadLogs(  # noqa: N802
        self, request: pb.ReadLogsRequest, context: Any
    ) -> AsyncIterator[node_pb2.LogChunk]:
        container_id, node = await self._logs.find(
            ApplicationId(request.application_id), request.executor_id
        )
        ask = node_pb2.ReadLogRequest(
            container_id=container_id,
            stream=request.stream or "stderr",
            tail_bytes=request.tail_bytes,
            follow=request.follow,
        )
        idle_s = LOG_FOLLOW_TIMEOUT_S if request.follow else LOG_IDLE_TIMEOUT_S
        async with self._to_agent(node.endpoint) as channel:
            chunks = aiter(node_pb2_grpc.AgentServiceStub(channel).ReadLog(ask))
            try:
                with contextlib.suppress(StopAsyncIteration):
                    while True:
                        yield await asyncio.wait_for(anext(chunks), idle_s)
            except TimeoutError:
                raise no_log(node, f"nothing came for {idle_s:.0f} s") from None
            except grpc.aio.AioRpcError as error:
                raise refusal_of(node, error, "does not give the log") from error

    async def LinkLog(self, request: pb.LinkLogRequest, context: Any) -> node_pb2.LogLink:  # noqa: N802
        container_id, node = await self._logs.find(
            ApplicationId(request.application_id), request.executor_id
        )
        ask = node_pb2.LinkContainerLogRequest(
            container_id=container_id, stream=request.stream or "stderr", asker=request.asker
        )
        async with self._to_agent(node.endpoint) as channel:
            stub = node_pb2_grpc.AgentServiceStub(channel)
            try:
                link: node_pb2.LogLink = await stub.LinkLog(ask, timeout=LINK_TIMEOUT_S)
            except grpc.aio.AioRpcError as error:
                raise refusal_of(node, error, "gives no link") from error
        return link

    async def _history(self, application_id: ApplicationId) -> list[StateEvent]:
        journal = self._master.journal
        if journal is None:
            return []
        await journal.flush()
        try:
            return await journal.story(application_id)
        except Unavailable:
            return []  # the list from the core's state is useful without it

    def _find(self, application_id: str) -> Application:
        app = self._master_state.applications.get(ApplicationId(application_id))
        if app is None:
            raise NotFound(f"no such application: {application_id!r}; hrm apps --all lists them")
        return app

    def _nodes(self, names: Any) -> pb.ListNodesResponse:
        now = self._master.now()
        known = [
            self._master_state.nodes[name] for name in names if name in self._master_state.nodes
        ]
        nodes = [_node(self._master_state, node, now) for node in known]
        return pb.ListNodesResponse(nodes=nodes)

    def _listed(self, app: Application) -> pb.Application:
        """For a list: long user-supplied text is truncated, what only ``show`` prints left out."""
        message = self._application(app)
        for field in ("name", "user", "tenant"):
            setattr(message, field, text.shortened(getattr(message, field), NAME_LISTED))
        message.message = text.shortened(message.message, MESSAGE_LISTED)
        del message.progress.stages[:]
        return message

    async def _whole(self, app: Application) -> pb.Application:
        """With its containers, of which there may be 100,000: one such response is built at a time,
        in parts, so that other calls are served in between."""
        async with self._making:
            message = self._application(app)
            message.run_times.extend(_run_times(self._master_state, app))
            containers = (*app.ended, *app.containers.values())
            statuses: list[common_pb2.ContainerStatus] = []
            for first in range(0, len(containers), CONTAINERS_AT_ONCE):
                part = containers[first : first + CONTAINERS_AT_ONCE]
                statuses += [codec.from_status(self._master_state.status(x)) for x in part]
                await asyncio.sleep(0)
            statuses.sort(key=lambda x: x.requested_at_s)
            message.containers.extend(_latest(statuses))
            return message

    def _application(self, app: Application) -> pb.Application:
        record = app.record
        message = pb.Application(
            application_id=app.application_id,
            name=record.name,
            user=record.user,
            tenant=record.tenant,
            state=codec.APPLICATION_STATE[app.life.state],
            workload_class=codec.WORKLOAD_CLASS[record.workload_class],
            class_evidence=record.class_evidence,
            spark_version=record.spark_version,
            driver_host=record.driver_host,
            web_url=record.web_url,
            submitted_at_s=record.submitted_at_s,
            first_running_at_s=record.first_running_at_s,
            ended_at_s=record.ended_at_s,
            message=record.message,
            scheduler=app.scheduler,
            containers_running=len(app.in_state(ContainerState.RUNNING)),
            containers_waiting=len(app.in_state(*_WAITING)),
            containers_pending=len(app.in_state(ContainerState.PENDING)),
            mean_wait_s=app.waited_s / app.waits if app.waits else 0.0,
            gang_min=record.gang_min,
            submission_id=record.submission_id,
            submission_attempt=record.submission_attempt,
        )
        if app.progress is not None:
            message.progress.CopyFrom(codec.from_progress(app.progress))
        elif record.tasks_total:  # it had ended before this master
            message.progress.tasks_total = record.tasks_total
            message.progress.tasks_completed = record.tasks_completed
            message.progress.tasks_failed = record.tasks_failed
        return message


def _latest(statuses: list[common_pb2.ContainerStatus]) -> list[common_pb2.ContainerStatus]:
    """The last of them, as many as fit into one response."""
    room, first = CONTAINERS_BYTES_MAX, len(statuses)
    while first and room > 0:
        first -= 1
        room -= statuses[first].ByteSize()
    return statuses[first:]


def _run_times(master_state: MasterState, app: Application) -> list[pb.RunTime]:
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
        )
        for row in rows
    ]


def _count(master_state: MasterState, *states: ContainerState) -> int:
    apps = master_state.applications.values()
    return sum(x.state in states for app in apps for x in app.containers.values())


def _totals(master_state: MasterState) -> tuple[Resources, Resources]:
    """What the cluster has and what of it is free, shared cores counted once."""
    state = master_state.state
    total, free = NOTHING, NOTHING
    for row in state.rows.values():
        unit = state.queue(row).unit
        total += unit.own_capacity
        free += unit.own(_resources(state.free[row]))
    return total, free


def _resources(vector: Any) -> Resources:
    return Resources(int(vector[0]), int(vector[1]), int(vector[2]))


def _scheduler(scheduler: Scheduler) -> pb.Scheduler:
    delays = sorted(scheduler.delays_s)
    p99 = delays[min(len(delays) - 1, int(0.99 * len(delays)))] if delays else 0.0
    return pb.Scheduler(
        name=scheduler.name,
        queued_jobs=len(scheduler.jobs),
        rounds=scheduler.rounds,
        placed=scheduler.placed,
        retries=scheduler.retries,
        delay_p50_s=statistics.median(delays) if delays else 0.0,
        delay_p99_s=p99,
    )


def _node(master_state: MasterState, node: Node, now: float) -> pb.Node:
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
        shortcuts=[codec.from_shortcut(shortcut) for shortcut in node.shortcuts],
        remarks=node.remarks,
    )
    book = master_state.exclusions
    for exclusion in book.of_all(now):
        if exclusion.node == node.name:
            message.excluded_for_s = exclusion.until_s - now
            message.exclusion = exclusion.why
    message.excluded_applications = book.applications_without(node.name, now, master_state.live)
    if node.usage is not None:
        message.usage.CopyFrom(codec.from_usage(node.usage))
    for unit in node.units:
        status = message.resource_units.add(unit=codec.from_unit(unit))
        queue = master_state.state.find(unit.unit_id)
        if queue is not None:
            free = Resources(queue.free[0], queue.free[1], queue.free[2])
            status.free.CopyFrom(codec.from_resources(free))
            status.running = len(queue.running)
            status.waiting_stream = len(queue.stream_waiting)
            status.waiting_batch = len(queue.batch_waiting)
    return message
