"""A master's PipelineService over real gRPC, and workers that a test plays.

A worker that is played has no node: the master requests it, and it connects with the token of its
application, as one does whose container runs.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from hrm import rpc
from hrm.core.vocabulary.model import container_id_of
from hrm.master import daemon
from hrm.pipelines.core.model import TaskId
from hrm.pipelines.core.workload import Workload
from hrm.pipelines.master.tasks import PipelineTasks
from hrm.v1 import pipeline_pb2 as pb
from hrm.v1 import pipeline_pb2_grpc
from hrm.wire import pipelines as pw
from tests.core.pipeline.building import Node, capacity, pipeline, subtask
from tests.master.test_services import Running, running

LIMIT_S = 10.0
DONE = pb.PipelineTaskOutcome.PIPELINE_TASK_OUTCOME_DONE


class Served:
    """``tasks``: the master's own; ``stub``: with the cluster's token."""

    def __init__(self, master: Running, tasks: PipelineTasks) -> None:
        self.master = master
        self.tasks = tasks
        self.stub: Any = pipeline_pb2_grpc.PipelineServiceStub(master.channel)
        self._channels: list[grpc.aio.Channel] = []

    @property
    def live(self) -> list[str]:
        """The tasks that have not ended."""
        return [x.spec.task_id for x in self.tasks.workloads.records(ended=False)]

    def workload_of(self, task_id: str) -> Workload:
        return self.tasks.workloads.of_task[TaskId(task_id)]

    def stub_of(self, workload: Workload) -> Any:
        """With the token of the workload's application."""
        token = self.tasks.host._token_of(workload.application_id, workload.key.user)
        channel = rpc.channel(self.master.address, token)
        self._channels.append(channel)
        return pipeline_pb2_grpc.PipelineServiceStub(channel)

    def worker(
        self,
        task_id: str,
        number: int = 1,
        *,
        name: str = "",
        identity: str = "i1",
        **register: Any,
    ) -> FakeWorker:
        """The ``number``-th worker of a task's workload connects. ``name``: another one's."""
        workload = self.workload_of(task_id)
        name = name or container_id_of(workload.application_id, str(number))
        return FakeWorker(self.stub_of(workload), name, identity, **register)

    async def placed(
        self, task_id: str, *, gpus: int = 0, **more: Any
    ) -> tuple[FakeWorker, pb.PlacePipelineTask]:
        """Submit a task, and connect a worker with so many GPUs; returns when it has got the
        order."""
        await self.stub.Submit(request(task_id=task_id, **more))
        worker = self.worker(task_id, gpus=gpus)
        await worker.receive("registered")
        await worker.receive("data")
        return worker, await worker.receive("place")

    async def ended(self, task_id: str) -> pb.PipelineTaskEnd:
        async with asyncio.timeout(LIMIT_S):
            async for update in self.stub.Watch(pb.WatchPipelineTasksRequest(task_ids=[task_id])):
                if update.HasField("ended"):
                    return update.ended  # type: ignore[no-any-return]
        raise AssertionError("it has no end")

    async def result(self, task_id: str, **more: Any) -> bytes:
        call = self.stub.GetResult(pb.GetPipelineResultRequest(task_id=task_id, **more))
        return b"".join([chunk.data async for chunk in call])

    async def close(self) -> None:
        for channel in self._channels:
            await channel.close(None)


@asynccontextmanager
async def serving(directory: Path, **settings: Any) -> AsyncIterator[Served]:
    """A whole master on a free port of the loopback, with a fresh state or that of the last one."""
    made: list[PipelineTasks] = []

    class Kept(PipelineTasks):
        def __init__(self, *arguments: Any, **named: Any) -> None:
            super().__init__(*arguments, **named)
            made.append(self)

    (directory / "master" / "address").unlink(missing_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(daemon, "PipelineTasks", Kept)
        async with running(directory, **settings) as master:
            served = Served(master, made[0])
            try:
                yield served
                assert not master.serving.done(), "the master goes on"
            finally:
                await served.close()


def request(**more: Any) -> pb.SubmitPipelineTaskRequest:
    spec = more.pop("pipeline", None) or pw.from_pipeline(pipeline(subtask("a")))
    return pb.SubmitPipelineTaskRequest(pipeline=spec, **({"payload": b"x", "user": "ada"} | more))


@contextmanager
def refused(code: grpc.StatusCode, *parts: str) -> Iterator[None]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        yield
    assert caught.value.code() is code, caught.value.details()
    for part in parts:
        assert part in (caught.value.details() or "")


class FakeWorker:
    """One end of a worker's stream, played by a test."""

    def __init__(self, stub: Any, name: str, identity: str = "i1", **register: Any) -> None:
        self.name = name
        self._outgoing: asyncio.Queue[pb.NodePipelineMessage] = asyncio.Queue()
        node = Node(capacity(name, cores=1, gpus=register.pop("gpus", 0)))
        load = pw.from_load(node.core.load(0.0))
        load.policies.extend(register.pop("policies", ()))
        message = pb.RegisterPipelineNode(
            capacity=pw.from_capacity(node.core.capacity),
            identity=identity,
            load=load,
            **register,
        )
        self.send_update(register=message)
        self._call = stub.Connect(self._all())
        self._messages = aiter(self._call)

    def send_update(self, **fields: Any) -> None:
        self._outgoing.put_nowait(pb.NodePipelineMessage(**fields))

    async def _all(self) -> AsyncIterator[pb.NodePipelineMessage]:
        while True:
            yield await self._outgoing.get()

    async def receive(self, kind: str) -> Any:
        """The next message, which must be of this kind."""
        async with asyncio.timeout(LIMIT_S):
            message = await anext(self._messages)
        assert message.WhichOneof("message") == kind, message
        return getattr(message, kind)

    async def disconnected(self) -> None:
        """Returns when the master has ended the stream."""
        with contextlib.suppress(StopAsyncIteration):
            message = await self.receive("anything")
            raise AssertionError(message)

    def hang_up(self) -> None:
        self._call.cancel()

    def end(self, attempt: pb.PipelineAttempt, result: bytes, **more: Any) -> None:
        self.send_update(data=pb.PipelineData(attempt=attempt, data=result[:2]))
        self.send_update(data=pb.PipelineData(attempt=attempt, offset=2, data=result[2:]))
        end = pb.PipelineTaskEnd(outcome=DONE, result_bytes=len(result), **more)
        self.send_update(ended=pb.PipelineAttemptEnd(attempt=attempt, end=end))
