"""PipelineService: clients' calls, and one stream per worker, around ``PipelineTasks``."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import AsyncIterator, Mapping
from typing import Any, TypeAlias

import grpc
import grpc.aio
import structlog

from hrm import clock, ownership_keys, rpc_server
from hrm.core.vocabulary.model import ContainerId, NodeName
from hrm.errors import AlreadyExists, HrmError, InvalidRequest, LimitReached, NotFound
from hrm.identity.caller import caller, check_scope, check_user, is_own, user_of
from hrm.identity.roles import IdentityKind
from hrm.master.container_uses import ContainerUseReports
from hrm.master.paging import check_limit, page
from hrm.pipelines.core import cluster_messages as m
from hrm.pipelines.core.model import TaskId
from hrm.pipelines.core.task_record import TaskRecord
from hrm.pipelines.master.streams import Watcher, WorkerStream
from hrm.pipelines.master.tasks import PipelineTasks
from hrm.v1 import pipeline_pb2 as pb
from hrm.v1 import pipeline_pb2_grpc
from hrm.wire import codec, pipeline_stream
from hrm.wire import pipelines as pw
from hrm.wire.requirements import to_labels

__all__ = ["PipelineService"]

_OF_ALL = frozenset(
    {"task_id", "pipeline", "submitted_at_s", "state", "outcome", "user", "application_id"}
)
"""What all may see of others' tasks; their state is in one word."""

WATCHED_TASKS_MAX = 100_000
_MB = 1e6

log = structlog.get_logger("master.pipelines")

_Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]


class PipelineService(pipeline_pb2_grpc.PipelineServiceServicer):
    def __init__(
        self, tasks: PipelineTasks, heartbeat_interval_s: float, uses: ContainerUseReports
    ) -> None:
        """``uses``: what nodes have recorded of containers' use of GPUs."""
        self._tasks = tasks
        self._uses = uses
        self._heartbeat_interval_s = heartbeat_interval_s

    async def Submit(  # noqa: N802
        self, request: pb.SubmitPipelineTaskRequest, context: _Context
    ) -> pb.SubmitPipelineTaskResponse:
        task_id = pw.to_task_id(request.task_id or uuid.uuid4().hex)
        size, limit = len(request.payload), self._tasks.payload_bytes_max
        if size > limit:
            raise InvalidRequest(
                f"the input has {size} bytes, more than pipeline_payload_mib allows "
                f"({limit >> 20} MiB); put it where the nodes can read it, and submit its path"
            )
        size_mb = request.size_mb or size / _MB
        request.user = user_of(request.user)
        task = pw.to_task(request, task_id, size_mb=size_mb, submitted_at_s=clock.now())
        files = pw.to_files(request.files)
        await self._tasks.submit(
            task,
            request.payload,
            raw=request.raw,
            files=files,
            key=pw.check_key(request.result_key),
            owner=ownership_keys.owner_of(request.ownership_key),
            queue=codec.to_text(request.queue, "queue"),
            scope=caller().scope,
            labels=tuple(sorted(to_labels(request.node_labels))),
        )
        return pb.SubmitPipelineTaskResponse(task_id=task_id)

    async def Watch(  # noqa: N802
        self, request: pb.WatchPipelineTasksRequest, context: _Context
    ) -> AsyncIterator[pb.PipelineTaskUpdate]:
        if not 1 <= len(request.task_ids) <= WATCHED_TASKS_MAX:
            raise InvalidRequest(f"task_ids: name 1 to {WATCHED_TASKS_MAX} tasks")
        for task_id in request.task_ids:
            self._tasks.check_own(TaskId(task_id))
        watcher = self._tasks.watch([TaskId(one) for one in request.task_ids])
        try:
            async for update in _updates(watcher):
                yield update
        finally:
            self._tasks.unwatch(watcher)
        if watcher.overflowed:
            raise LimitReached("updates came faster than read; watch again")

    async def GetResult(  # noqa: N802
        self, request: pb.GetPipelineResultRequest, context: _Context
    ) -> AsyncIterator[pb.PipelineResultChunk]:
        task_id = TaskId(request.task_id)
        self._tasks.check_own(task_id)
        self._tasks.check_owner(task_id, ownership_keys.owner_of(request.ownership_key))
        async with contextlib.aclosing(self._tasks.files.chunks(task_id, "out")) as chunks:
            async for data in chunks:
                yield pb.PipelineResultChunk(data=data)
        if request.forget:
            self._tasks.fetched(task_id)

    async def Cancel(  # noqa: N802
        self, request: pb.CancelPipelineTaskRequest, context: _Context
    ) -> pb.CancelPipelineTaskResponse:
        self._tasks.check_own(TaskId(request.task_id))
        self._tasks.cancel(TaskId(request.task_id), request.reason)
        return pb.CancelPipelineTaskResponse()

    async def List(  # noqa: N802
        self, request: pb.ListPipelineTasksRequest, context: _Context
    ) -> pb.ListPipelineTasksResponse:
        workloads = self._tasks.workloads
        records = list(workloads.records(ended=request.all))
        places = workloads.places()
        tasks, token = page(
            records,
            lambda x: (x.spec.submitted_at_s, x.spec.task_id),
            lambda x: self._listed(x, places),
            request,
            limit=check_limit(request.limit),
        )
        live = [] if request.page_token else workloads.live.values()
        return pb.ListPipelineTasksResponse(
            tasks=tasks,
            nodes=[
                pipeline_stream.from_row(
                    row,
                    application_id=workload.application_id,
                    node=self._tasks.node_of(row.capacity.name),
                )
                for workload in live
                for row in workload.cluster.table.nodes.values()
            ],
            policy=self._tasks.policy.name,
            policy_faults=sum(x.cluster.policy_faults for x in live),
            next_page_token=token,
        )

    async def GetProfiles(  # noqa: N802
        self, request: pb.GetPipelineProfilesRequest, context: _Context
    ) -> pb.GetPipelineProfilesResponse:
        if not request.name:
            raise InvalidRequest(
                "name: give a pipeline, the kind of one of its steps, or the name of an application"
            )
        by_cluster = caller().kind is IdentityKind.CLUSTER
        user = request.user or (request.asker if by_cluster else caller().name)
        check_user("what was measured", user)
        return pw.from_profiles(
            self._tasks.estimates.profiles(user, request.name), self._uses.of(user, request.name)
        )

    def _listed(self, record: TaskRecord, places: Mapping[TaskId, int]) -> pb.PipelineTaskInfo:
        """Where it is, what it waits for and how it failed may quote data: for its user and
        operators alone."""
        task_id = record.spec.task_id
        workloads = self._tasks.workloads
        more = {
            "application_id": workloads.application_of(task_id),
            "node": self._tasks.node_of(record.node),
        }
        if is_own(record.spec.user, self._tasks.scopes.get(task_id, "")):
            explained = workloads.explain(task_id, places)
            return pipeline_stream.from_record(record, explained, **more)
        if record.outcome is not None:
            state = record.outcome.value
        else:
            state = "it waits for a worker" if record.node is None else "at a worker"
        seen = pipeline_stream.from_record(record, state, **more)
        for field, _ in seen.ListFields():
            if field.name not in _OF_ALL:
                seen.ClearField(field.name)
        return seen

    # --- workers ------------------------------------------------------------------------------

    async def Connect(self, requests: Any, context: _Context) -> None:  # noqa: N802
        """One worker's stream, from its registration to its end."""
        name, stream = await self._register(requests)
        log.info("worker has connected", worker=name)
        try:
            await rpc_server.both_ways(
                self._read(requests, name, stream),
                self._write(name, stream, context),
                stream.stream_ended.wait(),
            )
        except HrmError as error:
            log.warning("worker sent a bad message", worker=name, error=error.message)
            raise
        finally:
            self._tasks.leave(name, stream)
            log.info("the stream of a worker is down", worker=name)

    async def _register(self, requests: Any) -> tuple[NodeName, WorkerStream]:
        first = await rpc_server.first_message(requests, "a registration")
        joining = self._tasks.joining(first)
        name = joining.event.capacity.name
        workload = self._tasks.workloads.of_worker.get(ContainerId(name))
        if workload is None:
            raise NotFound(f"{name} is no worker of a live application; workers are started by HRM")
        check_scope(workload.application_id)
        other = self._tasks.streams.get(name)
        if other is not None and other.identity != joining.identity:
            raise AlreadyExists(f"another live process reports as {name!r}")
        return name, self._tasks.join(joining)

    async def _read(self, requests: Any, name: NodeName, stream: WorkerStream) -> None:
        async for message in requests:
            if stream.closed:
                return
            await self._tasks.take_report(name, message)

    async def _write(self, name: NodeName, stream: WorkerStream, context: _Context) -> None:
        estimates = self._tasks.estimates.whole(name)
        await context.write(pipeline_stream.registered(self._heartbeat_interval_s, estimates))
        while (item := await stream.queue.get()) is not None:
            if isinstance(item, pb.MasterPipelineMessage):
                await context.write(item)
                stream.written(item)
            else:
                await self._place(item, context)

    async def _place(self, command: m.PlaceTask, context: _Context) -> None:
        order = self._tasks.placing(command)
        if order is None:
            return
        offset = 0
        chunks = self._tasks.files.chunks(command.task.task_id, "in")
        async with contextlib.aclosing(chunks):
            async for data in chunks:
                if self._tasks.placing(command) is None:
                    return
                await context.write(pipeline_stream.input_piece(order.attempt, offset, data))
                offset += len(data)
        if self._tasks.placing(command) is None:
            return
        await context.write(pipeline_stream.sending(order))


async def _updates(watcher: Watcher) -> AsyncIterator[pb.PipelineTaskUpdate]:
    """Until all watched tasks have ended, or the watcher was too slow."""
    while True:
        watcher.changed.clear()
        while watcher.updates:
            yield watcher.updates.popleft()
        if watcher.overflowed or not watcher.open:
            if not watcher.updates:
                return
            continue
        await watcher.changed.wait()
