"""A master of one file for tests of the Spark side: real gRPC, real executors, no scheduling.

It admits one application, immediately starts every requested executor on this machine, and lets a
test break things: kill an executor, refuse a size, abort the session.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from hrm import rpc, rpc_server
from hrm.core.vocabulary.model import (
    ApplicationId,
    ContainerId,
    ContainerSpec,
    ResourceUnitId,
    WorkloadClass,
)
from hrm.core.vocabulary.model import Resources as CoreResources
from hrm.spark.launch import executor_launch, find_java, find_spark
from hrm.v1 import (
    application_pb2,
    application_pb2_grpc,
    common_pb2,
    submission_pb2,
    submission_pb2_grpc,
)
from hrm.wire import codec
from tests.spark_tools import executor_archive

__all__ = ["FakeMaster", "fake_master", "until"]


async def until(condition: Callable[[], Any], timeout_s: float = 30.0, what: str = "") -> None:
    """Waits for a condition, with a deadline."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what or condition}"
        await asyncio.sleep(0.02)


@dataclass
class Executor:
    request: application_pb2.ContainerRequest
    process: asyncio.subprocess.Process | None = None
    state: int = common_pb2.CONTAINER_STATE_PENDING
    end: common_pb2.ContainerEnd | None = None
    released: bool = False


class FileServer(submission_pb2_grpc.SubmissionServiceServicer):
    """Keeps what it is sent, in memory. ``limit``: bytes of the largest file that it takes."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.pieces = 0
        self.limit = 1 << 30

    async def FindFiles(self, request: Any, context: Any) -> Any:  # noqa: N802
        for file in request.files:
            if file.size_bytes > self.limit:
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"{file.name} is too large")
        offsets = [len(self.files.get(file.sha256, b"")) for file in request.files if file.sha256]
        return submission_pb2.FindFilesResponse(offsets=offsets)

    async def PutPiece(self, request: Any, context: Any) -> Any:  # noqa: N802
        before = self.files.get(request.file.sha256, b"")
        assert len(before) == request.offset
        self.files[request.file.sha256] = before + request.data
        self.pieces += 1
        return submission_pb2.PutPieceResponse(offset=request.offset + len(request.data))


@dataclass
class FakeMaster(application_pb2_grpc.ApplicationServiceServicer):
    work_dir: Path
    address: str = ""
    token_file: Path = Path()
    vcores_max: int = 4
    epoch: int = 1
    start_executors: bool = True
    application_id: str = "app-fake-0001"
    registrations: list[application_pb2.RegisterApplicationRequest] = field(default_factory=list)
    attaches: list[application_pb2.AttachApplication] = field(default_factory=list)
    registered_at_s: list[float] = field(default_factory=list)
    executors: dict[str, Executor] = field(default_factory=dict)
    updates: list[tuple[float, application_pb2.ApplicationUpdate]] = field(default_factory=list)
    sessions: int = 0
    ended_sessions: int = 0
    problems: list[str] = field(default_factory=list)
    unresponsive: bool = False
    sessions_refused: int = 0
    """So many sessions from now on end before they open."""
    node_timeout_s: float = 15.0
    may_listen: asyncio.Event = field(default_factory=asyncio.Event)
    finished: application_pb2.ApplicationFinished | None = None
    notices: asyncio.Queue[application_pb2.ApplicationNotice | grpc.StatusCode | None] = field(
        default_factory=asyncio.Queue
    )
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    files: FileServer = field(default_factory=FileServer)

    async def Register(self, request: Any, context: Any) -> Any:  # noqa: N802
        self.registrations.append(request)
        self.registered_at_s.append(time.time())
        if request.application_id and request.application_id != self.application_id:
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such application")
        return application_pb2.RegisterApplicationResponse(
            application_id=self.application_id,
            epoch=self.epoch,
            containers=self.live(),
            heartbeat_interval_s=0.5,
            node_timeout_s=self.node_timeout_s,
            last_executor_number=max(map(int, self.executors), default=0),
        )

    async def Session(self, requests: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        try:
            first = await asyncio.wait_for(anext(aiter(requests)), 5)
            assert first.WhichOneof("update") == "attach", first
            self.attaches.append(first.attach)
        except (StopAsyncIteration, TimeoutError, AssertionError) as error:
            self.problems.append(f"no attach: {error!r}")
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "no attach")
        if self.sessions_refused:
            self.sessions_refused -= 1
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the master ends")
        self.sessions += 1
        notices: asyncio.Queue[Any] = asyncio.Queue()
        self.notices = notices
        yield application_pb2.ApplicationNotice(
            attached=application_pb2.AttachedApplication(epoch=self.epoch, containers=self.live())
        )
        reader = asyncio.create_task(self._read(requests, notices))
        try:
            while (notice := await notices.get()) is not None:
                if isinstance(notice, grpc.StatusCode):
                    await context.abort(notice, "the session is cut")
                yield notice
        finally:
            self.ended_sessions += 1
            reader.cancel()

    def live(self) -> list[common_pb2.ContainerStatus]:
        return [
            self._status(e)
            for e in self.executors.values()
            if e.state != common_pb2.CONTAINER_STATE_ENDED
        ]

    def running(self) -> list[Executor]:
        return [e for e in self.executors.values() if e.state == common_pb2.CONTAINER_STATE_RUNNING]

    def break_session(self) -> None:
        self.notices.put_nowait(None)

    def abort_session(self) -> None:
        """Like a master that is gone."""
        self.notices.put_nowait(grpc.StatusCode.UNAVAILABLE)

    def classes(self) -> list[common_pb2.WorkloadClass]:
        return [
            u.class_changed.workload_class for _, u in self.updates if u.HasField("class_changed")
        ]

    async def _read(self, requests: Any, notices: asyncio.Queue[Any]) -> None:
        with contextlib.suppress(grpc.RpcError, asyncio.CancelledError):
            if self.unresponsive:
                await self.may_listen.wait()
            async for update in requests:
                self.updates.append((time.time(), update))
                match update.WhichOneof("update"):
                    case "request":
                        for request in update.request.containers:
                            self._requested(request, notices)
                    case "release":
                        for executor_id in update.release.executor_ids:
                            self._release(executor_id)
                    case "finished":
                        self.finished = update.finished
                        for executor_id in list(self.executors):
                            self._release(executor_id)
                        notices.put_nowait(None)

    def _requested(self, request: Any, notices: asyncio.Queue[Any]) -> None:
        if request.resources.vcores > self.vcores_max:
            refused = application_pb2.RequestRefused(
                executor_ids=[request.executor_id],
                resource_profile_id=request.resource_profile_id,
                message=f"an executor of {request.resources.vcores} vcores fits no node; the "
                f"largest is fake-node with {self.vcores_max}",
            )
            notices.put_nowait(application_pb2.ApplicationNotice(refused=refused))
        elif request.executor_id not in self.executors:
            executor = self.executors[request.executor_id] = Executor(request)
            if self.start_executors:
                task = asyncio.create_task(self._run(executor))
                self.tasks.add(task)
                task.add_done_callback(self.tasks.discard)

    def _release(self, executor_id: str) -> None:
        executor = self.executors.get(executor_id)
        if executor is None or executor.state == common_pb2.CONTAINER_STATE_ENDED:
            return
        executor.released = True
        if executor.process is not None and executor.process.returncode is None:
            executor.process.kill()
        elif executor.process is None:
            self._ended(executor, common_pb2.END_CAUSE_RELEASED, -1)

    async def _run(self, executor: Executor) -> None:
        directory = self.work_dir / executor.request.executor_id
        (directory / "tmp").mkdir(parents=True)
        launch = executor_launch(
            self._spec(executor.request),
            spark=find_spark(), java=find_java(), host="127.0.0.1", work_dir=directory,
            archive=executor_archive(),
        )  # fmt: skip
        for name, text in launch.files.items():
            (directory / name).write_text(text)
        with (directory / "stderr").open("wb") as log:
            executor.process = await asyncio.create_subprocess_exec(
                *launch.argv, env=launch.environment, cwd=directory, stdout=log, stderr=log
            )
        executor.state = common_pb2.CONTAINER_STATE_RUNNING
        self.report(executor)
        code = await executor.process.wait()
        cause = common_pb2.END_CAUSE_RELEASED if executor.released else common_pb2.END_CAUSE_EXITED
        self._ended(executor, cause, code)

    def _ended(self, executor: Executor, cause: Any, code: int) -> None:
        executor.state = common_pb2.CONTAINER_STATE_ENDED
        executor.end = common_pb2.ContainerEnd(
            cause=cause, exit_code=code, message=f"the process ended with {code}"
        )
        self.report(executor)

    def report(self, executor: Executor) -> None:
        self.notices.put_nowait(application_pb2.ApplicationNotice(container=self._status(executor)))

    def _status(self, executor: Executor) -> common_pb2.ContainerStatus:
        status = common_pb2.ContainerStatus(
            executor_id=executor.request.executor_id,
            resource_profile_id=executor.request.resource_profile_id,
            state=executor.state,  # type: ignore[arg-type]
            node="fake-node",
        )
        if executor.end is not None:
            status.end.CopyFrom(executor.end)
        return status

    def _spec(self, request: Any) -> ContainerSpec:
        return ContainerSpec(
            container_id=ContainerId(f"{self.application_id}-{request.executor_id}"),
            application_id=ApplicationId(self.application_id),
            executor_id=request.executor_id,
            resource_profile_id=request.resource_profile_id,
            workload_class=WorkloadClass.BATCH,
            resources=CoreResources(
                vcores=request.resources.vcores, memory_mib=request.resources.memory_mib
            ),
            unit_id=ResourceUnitId("fake-node/0"),
            heap_mib=request.heap_mib,
            launch=codec.to_launch(self.registrations[0].launch),
        )


@contextlib.asynccontextmanager
async def fake_master(work_dir: Path, port: int = 0, **options: Any) -> AsyncIterator[FakeMaster]:
    """A running master; every executor that it started is gone afterwards."""
    token_file = work_dir / "token"
    token = rpc.create_token(token_file)
    master = FakeMaster(work_dir=work_dir / "work", token_file=token_file, **options)
    server = grpc.aio.server(
        interceptors=[rpc_server.AccessInterceptor(token)], options=rpc_server.SERVER_OPTIONS
    )
    application_pb2_grpc.add_ApplicationServiceServicer_to_server(master, server)
    submission_pb2_grpc.add_SubmissionServiceServicer_to_server(master.files, server)
    master.address = f"127.0.0.1:{server.add_insecure_port(f'127.0.0.1:{port}')}"
    await server.start()
    try:
        yield master
    finally:
        for executor in master.executors.values():
            if executor.process is not None and executor.process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(executor.process.pid, signal.SIGKILL)
                await executor.process.wait()
        for task in list(master.tasks):
            task.cancel()
        await server.stop(0)
