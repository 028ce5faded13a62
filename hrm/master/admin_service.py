"""AdminService: queries and commands of operators and their tools. Never changes the core's state
directly."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

import grpc
import grpc.aio

from hrm import __version__, text
from hrm.core.master.entities import Application, Node
from hrm.core.master.explain import explain, explain_past
from hrm.core.master.priorities import has_classes
from hrm.core.master.state import MasterState
from hrm.core.messages import commands as c
from hrm.core.vocabulary.history import StateEvent
from hrm.core.vocabulary.model import (
    ApplicationId,
    NodeName,
)
from hrm.errors import InvalidRequest, NotFound, Unavailable
from hrm.identity.caller import caller
from hrm.identity.roles import IdentityKind
from hrm.master.interpreter import Interpreter
from hrm.master.log_sources import LogSources, no_log, refusal_of
from hrm.master.owners import Owners, hide_application
from hrm.master.paging import MESSAGE_LISTED, NAME_LISTED, check_limit, page
from hrm.pipelines.core.model import TaskId
from hrm.pipelines.core.pipelines_core import PipelinesCore
from hrm.v1 import admin_pb2 as pb
from hrm.v1 import admin_pb2_grpc, common_pb2, node_pb2, node_pb2_grpc
from hrm.wire import admin as admin_wire
from hrm.wire import codec
from hrm.wire import queues as queue_wire

__all__ = ["AdminService"]

LISTED_DEFAULT = 100
LISTED_MAX = 1_000_000
CONTAINERS_BYTES_MAX = 32 * 1024 * 1024
"""Per application and response: some 100,000 containers; the latest, where there are more."""
CONTAINERS_AT_ONCE = 500
"""Of a response with containers, between which the loop runs: a millisecond or two."""
LINK_TIMEOUT_S = 10.0
LOG_IDLE_TIMEOUT_S = 60.0
LOG_FOLLOW_TIMEOUT_S = 24 * 3600.0


class AdminService(admin_pb2_grpc.AdminServiceServicer):
    """``address``: where this master listens; ``to_agent``: a channel to a node's agent;
    ``check_own``: may the caller ask about a task; ``calls_refused``: the number of calls refused
    for limits of their identities."""

    def __init__(
        self,
        master: Interpreter,
        address: str,
        to_agent: Callable[[Node], grpc.aio.Channel],
        pipelines: PipelinesCore,
        check_own: Callable[[TaskId], None],
        owners: Owners,
        calls_refused: Callable[[], int],
    ) -> None:
        self._master = master
        self._owners = owners
        self._calls_refused = calls_refused
        self._pipelines = pipelines
        self._check_own = check_own
        self._address = address
        self._to_agent = to_agent
        self._started_at_s = master.now()
        self._logs = LogSources(master)
        self._making = asyncio.Lock()

    @property
    def _master_state(self) -> MasterState:
        return self._master.core.master_state

    async def GetCluster(self, request: Any, context: Any) -> pb.Cluster:  # noqa: N802
        return admin_wire.from_cluster(
            self._master.core,
            self._master.now(),
            version=__version__,
            started_at_s=self._started_at_s,
            address=self._address,
            paused="" if self._master.full is None else self._master.full.message,
            calls_refused=self._calls_refused(),
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
        if request.states:
            states = admin_wire.to_node_states(request.states)
            listed = [node for node in listed if node.state in states]
        messages, token = page(
            listed,
            lambda x: (x.name,),
            lambda x: admin_wire.from_node(self._master_state, x, now),
            request,
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
        chosen: Iterable[Application] = apps.values()
        if request.queue:
            queue = queue_wire.queue_named(self._master.core.queues.tree, request.queue)
            chosen = [app for app in chosen if queue_wire.is_below(app.record.queue, queue)]
        listed, token = page(
            chosen,
            lambda app: (app.record.submitted_at_s, app.application_id),
            self._listed,
            request,
            limit=limit,
        )
        return pb.ListApplicationsResponse(applications=listed, next_page_token=token)

    async def GetApplication(  # noqa: N802
        self, request: pb.GetApplicationRequest, context: Any
    ) -> pb.Application:
        limit = check_limit(request.containers_limit)
        return await self._whole(self._find(request.application_id), limit)

    async def ExplainApplication(  # noqa: N802
        self, request: pb.ExplainApplicationRequest, context: Any
    ) -> pb.Explanation:
        application_id = ApplicationId(request.application_id)
        task_id = TaskId(request.application_id)
        pipelines = self._pipelines
        if pipelines.find(task_id) is not None:
            self._check_own(task_id)
            details, summary = pipelines.chosen(task_id), pipelines.explain(task_id)
            return pb.Explanation(application_id=task_id, summary=summary, details=details)
        self._owners.check(application_id)
        history = await self._history(application_id)
        app = self._master_state.applications.get(application_id)
        if app is None and history:
            summary, details = explain_past(history)
        else:
            app = self._find(application_id)
            summary, details = explain(self._master_state, app, self._master.now(), history)
            of_training = self._master.core.elastic.line(app)
            details += [of_training] if of_training else []
        return pb.Explanation(application_id=application_id, summary=summary, details=details)

    async def KillApplication(  # noqa: N802
        self, request: pb.KillApplicationRequest, context: Any
    ) -> pb.Application:
        app = self._find(request.application_id)
        self._owners.check(request.application_id)
        by = caller()
        await self._master.call(
            lambda call_id: admin_wire.to_kill(request, call_id, self._master.now(), by)
        )
        return await self._whole(app, 0)

    async def ChangePriority(  # noqa: N802
        self, request: pb.ChangePriorityRequest, context: Any
    ) -> pb.Application:
        app = self._find(request.application_id)
        self._owners.check(request.application_id)
        by = caller()
        await self._master.call(
            lambda call_id: admin_wire.to_priority_request(request, call_id, self._master.now(), by)
        )
        return await self._whole(app, 0)

    async def DrainNodes(  # noqa: N802
        self, request: pb.DrainNodesRequest, context: Any
    ) -> pb.ListNodesResponse:
        await self._master.call(
            lambda call_id: admin_wire.to_drain(request, call_id, self._master.now())
        )
        return self._nodes(request.names)

    async def BindNode(  # noqa: N802
        self, request: pb.BindNodeRequest, context: Any
    ) -> pb.BindNodeResponse:
        result = await self._master.call(
            lambda call_id: admin_wire.to_rebinding(request, call_id, self._master.now())
        )
        assert isinstance(result, c.Rebound)
        return pb.BindNodeResponse(message=result.message)

    async def ReadLogs(  # noqa: N802
        self, request: pb.ReadLogsRequest, context: Any
    ) -> AsyncIterator[node_pb2.LogChunk]:
        self._owners.check(request.application_id)
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
        async with self._to_agent(node) as channel:
            chunks = aiter(node_pb2_grpc.AgentServiceStub(channel).ReadLog(ask))
            try:
                with contextlib.suppress(StopAsyncIteration):
                    while True:
                        yield await asyncio.wait_for(anext(chunks), idle_s)
            except TimeoutError:
                raise no_log(node, f"nothing came for {idle_s:.0f} s") from None
            except grpc.aio.AioRpcError as error:
                raise refusal_of(node, error, "did not return the log") from error

    async def LinkLog(self, request: pb.LinkLogRequest, context: Any) -> node_pb2.LogLink:  # noqa: N802
        self._owners.check(request.application_id)
        identity = caller()
        container_id, node = await self._logs.find(
            ApplicationId(request.application_id), request.executor_id
        )
        ask = node_pb2.LinkContainerLogRequest(
            container_id=container_id,
            stream=request.stream or "stderr",
            asker=request.asker if identity.kind is IdentityKind.CLUSTER else identity.name,
        )
        async with self._to_agent(node) as channel:
            stub = node_pb2_grpc.AgentServiceStub(channel)
            try:
                link: node_pb2.LogLink = await stub.LinkLog(ask, timeout=LINK_TIMEOUT_S)
            except grpc.aio.AioRpcError as error:
                raise refusal_of(node, error, "returned no link") from error
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
            raise NotFound(
                f"no such application: {application_id!r}; hrm apps --all lists them, and hrm "
                f"pipeline list --all the tasks of pipelines"
            )
        return app

    def _nodes(self, names: Any) -> pb.ListNodesResponse:
        now = self._master.now()
        known = [
            self._master_state.nodes[name] for name in names if name in self._master_state.nodes
        ]
        nodes = [admin_wire.from_node(self._master_state, node, now) for node in known]
        return pb.ListNodesResponse(nodes=nodes)

    def _message(self, app: Application) -> pb.Application:
        return admin_wire.from_application(app, has_classes=has_classes(self._master_state, app))

    def _listed(self, app: Application) -> pb.Application:
        """For a list: long user-supplied text is truncated, what only ``show`` prints left out."""
        message = self._message(app)
        for field in ("name", "user", "queue"):
            setattr(message, field, text.shortened(getattr(message, field), NAME_LISTED))
        message.message = text.shortened(message.message, MESSAGE_LISTED)
        del message.progress.stages[:]
        if not self._owners.is_own(app.application_id):
            hide_application(message)
        return message

    async def _whole(self, app: Application, limit: int) -> pb.Application:
        """With its latest containers (``limit`` 0: all), of which there may be 100,000: one such
        response is built at a time, in parts, so that other calls are served in between."""
        async with self._making:
            message = self._message(app)
            message.run_times.extend(admin_wire.from_run_times(self._master_state, app))
            containers = [*app.ended, *app.containers.values()]
            message.containers_total = len(containers)
            containers.sort(key=lambda x: x.requested_at_s)
            containers = containers[-limit:] if limit else containers
            statuses: list[common_pb2.ContainerStatus] = []
            for first in range(0, len(containers), CONTAINERS_AT_ONCE):
                part = containers[first : first + CONTAINERS_AT_ONCE]
                statuses += [codec.from_status(self._master_state.status(x)) for x in part]
                await asyncio.sleep(0)
            message.containers.extend(_latest(statuses))
            if not self._owners.is_own(app.application_id):
                hide_application(message)
            return message


def _latest(statuses: list[common_pb2.ContainerStatus]) -> list[common_pb2.ContainerStatus]:
    """The latest, as many as fit into one response."""
    bytes_left, first = CONTAINERS_BYTES_MAX, len(statuses)
    while first and bytes_left > 0:
        first -= 1
        bytes_left -= statuses[first].ByteSize()
    return statuses[first:]
