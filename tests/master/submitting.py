"""Submissions to a master over real gRPC, and a node that reports what a test orders."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from hrm.v1 import common_pb2, node_pb2, submission_pb2_grpc
from hrm.v1 import submission_pb2 as pb
from tests.master.test_services import TIMEOUT_S, Running, node

RUNNING = common_pb2.CONTAINER_STATE_RUNNING
ENDED = common_pb2.CONTAINER_STATE_ENDED


def stub(master: Running) -> Any:
    return submission_pb2_grpc.SubmissionServiceStub(master.channel)


async def state_of(master: Running, submission_id: str, state: Any) -> pb.Submission:
    """The submission once it is in this state."""
    async with asyncio.timeout(TIMEOUT_S):
        async for found in stub(master).Watch(pb.GetSubmissionRequest(submission_id=submission_id)):
            if found.state == state:
                return found  # type: ignore[no-any-return]
    raise AssertionError(f"it ended as {found.state}")


async def application_is(master: Running, application_id: Any, state: str) -> None:
    """Nothing is left of the application that the driver had registered."""
    app = master.interpreter.core.master_state.applications[application_id]
    async with asyncio.timeout(TIMEOUT_S):
        while app.record.state.value != state:  # noqa: ASYNC110 - nothing is notified
            await asyncio.sleep(0.01)


class Agent:
    """A node: accepts containers, and reports what a test orders."""

    def __init__(self, call: Any) -> None:
        self._call = call
        self._sequence = 1

    async def assigned(self) -> common_pb2.ContainerSpec:
        return (await self._next("assign")).assign  # type: ignore[no-any-return]

    async def stopped(self) -> node_pb2.StopContainer:
        return (await self._next("stop")).stop  # type: ignore[no-any-return]

    async def _next(self, kind: str) -> Any:
        async with asyncio.timeout(TIMEOUT_S):
            while (message := await self._call.read()).WhichOneof("message") != kind:
                pass
            return message

    async def report_state(self, spec: common_pb2.ContainerSpec, state: Any, code: int = 0) -> None:
        status = common_pb2.ContainerStatus(
            container_id=spec.container_id,
            application_id=spec.application_id,
            executor_id=spec.executor_id,
            workload_class=common_pb2.WORKLOAD_CLASS_BATCH,
            resources=spec.resources,
            state=state,
            node="n1",
            resource_unit_id=spec.resource_unit_id,
            started_at_s=1.0,
        )
        if state == ENDED:
            status.end.cause = common_pb2.END_CAUSE_EXITED
            status.end.exit_code = code
            status.end.message = f"exited with code {code}"
        self._sequence += 1
        await self._call.write(node_pb2.NodeMessage(sequence=self._sequence, container=status))


@asynccontextmanager
async def agent(master: Running, name: str = "n1", **fields: Any) -> AsyncIterator[Agent]:
    call = master.nodes.Connect()
    await call.write(node(name, f"identity-{name}", **fields))
    yield Agent(call)
    call.cancel()


def submission(key: str = "k1", **fields: Any) -> pb.SubmitRequest:
    main = pb.DriverResource(role=pb.RESOURCE_ROLE_MAIN, uri="local:/a.py")
    values: dict[str, Any] = {
        "name": "app", "user": "u", "vcores": 1, "memory_mib": 1024, "heap_mib": 512,
        "resources": [main], **fields,
    }  # fmt: skip
    return pb.SubmitRequest(key=key, driver=pb.DriverSpec(**values))


def lease(submission_id: str, attempt: int = 1, **fields: Any) -> pb.LeaseDriverRequest:
    return pb.LeaseDriverRequest(submission_id=submission_id, attempt=attempt, **fields)
