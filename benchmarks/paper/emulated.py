"""Nodes and AppMasters that speak to a real master as real ones do, many in one process.

An emulated agent opens a ``NodeService`` stream of its own, registers, sends heartbeats, reports
every container that it is told to run as running, and acknowledges nothing it was not told. An
emulated AppMaster registers, keeps a session, asks once, and notes when it is told of a place for
each of its containers. Streams are multiplexed over a few connections; messages are the generated
classes, so what is measured includes the wire.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from dataclasses import dataclass, field
from typing import Any

import grpc.aio

from benchmarks.processes import BenchmarkError
from hrm.v1 import application_pb2 as app_pb
from hrm.v1 import application_pb2_grpc, common_pb2, node_pb2, node_pb2_grpc

__all__ = ["Agents", "Application", "Master"]

CONNECTIONS = 4
REGISTER_AT_ONCE = 64
READY_TIMEOUT_S = 60.0
_LOOK_S = 0.02
_OPTIONS = [
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", 64 * 1024 * 1024),
]


class Master:
    """Connections to a master. Closes them at the end of its context."""

    def __init__(self, target: str, token: str) -> None:
        self.metadata = (("authorization", f"Bearer {token}"),)
        self._channels = [
            grpc.aio.insecure_channel(target, options=_OPTIONS) for _ in range(CONNECTIONS)
        ]
        self._turn = itertools.cycle(self._channels)

    async def __aenter__(self) -> Master:
        return self

    async def __aexit__(self, *_: object) -> None:
        for channel in self._channels:
            await channel.close(None)

    def channel(self) -> grpc.aio.Channel:
        """The next connection in turn."""
        return next(self._turn)


class _Agent:
    """One node. ``containers``: what it holds or has not been acknowledged; ``assigned_s``: when
    each container that it was ever told of arrived, seconds since the epoch."""

    def __init__(self, master: Master, name: str, vcores: int, memory_mib: int) -> None:
        self.name = name
        self.containers: dict[str, common_pb2.ContainerStatus] = {}
        self.assigned_s: dict[str, float] = {}
        self._master = master
        self._resources = common_pb2.Resources(vcores=vcores, memory_mib=memory_mib)
        self._sequence = 0
        self._one_at_a_time = asyncio.Lock()
        self._call: Any = None

    async def register(self) -> None:
        stub = node_pb2_grpc.NodeServiceStub(self._master.channel())
        self._call = stub.Connect(metadata=self._master.metadata)
        unit = node_pb2.ResourceUnit(
            resource_unit_id=f"{self.name}/cpu", capacity=self._resources,
            run_limit=self._resources.vcores,
        )  # fmt: skip
        register = node_pb2.RegisterNode(
            name=self.name, identity=self.name, incarnation="1", host="127.0.0.1",
            endpoint="127.0.0.1:1", resource_units=[unit],
        )  # fmt: skip
        await self._send(register=register)
        answer = await self._call.read()
        if not isinstance(answer, node_pb2.MasterMessage) or not answer.HasField("registered"):
            raise BenchmarkError(f"{self.name} was not registered")

    async def serve(self) -> None:
        while isinstance(message := await self._call.read(), node_pb2.MasterMessage):
            kind = message.WhichOneof("message")
            if kind == "assign":
                await self._assigned(message.assign)
            elif kind == "stop":
                await self._stopped(message.stop)
            elif kind == "acknowledge":
                for container_id in message.acknowledge.container_ids:
                    self.containers.pop(container_id, None)

    async def beat(self) -> None:
        await self._send(heartbeat=node_pb2.NodeHeartbeat(containers=self.containers.values()))

    def leave(self) -> None:
        if self._call is not None:
            self._call.cancel()

    async def _assigned(self, spec: common_pb2.ContainerSpec) -> None:
        now = time.time()
        status = common_pb2.ContainerStatus(
            container_id=spec.container_id, application_id=spec.application_id,
            executor_id=spec.executor_id, resource_profile_id=spec.resource_profile_id,
            workload_class=spec.workload_class, resources=spec.resources,
            state=common_pb2.CONTAINER_STATE_RUNNING, node=self.name,
            resource_unit_id=spec.resource_unit_id, assigned_at_s=now, started_at_s=now,
        )  # fmt: skip
        self.containers[spec.container_id] = status
        self.assigned_s[spec.container_id] = now
        await self._send(container=status)

    async def _stopped(self, stop: node_pb2.StopContainer) -> None:
        status = self.containers.get(stop.container_id)
        if status is not None:
            status.state = common_pb2.CONTAINER_STATE_ENDED
            status.ended_at_s = time.time()
            status.end.cause = stop.cause
            status.end.exit_code = 143
            await self._send(container=status)

    async def _send(self, **message: Any) -> None:
        async with self._one_at_a_time:
            self._sequence += 1
            await self._call.write(node_pb2.NodeMessage(sequence=self._sequence, **message))


class Agents:
    """All nodes of a cluster, for as long as its context lasts."""

    def __init__(
        self, master: Master, count: int, *, heartbeat_s: float, vcores: int = 16,
        memory_mib: int = 65_536,
    ) -> None:  # fmt: skip
        self._agents = [_Agent(master, f"n{i}", vcores, memory_mib) for i in range(count)]
        self._heartbeat_s = heartbeat_s
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Agents:
        gate = asyncio.Semaphore(REGISTER_AT_ONCE)

        async def enter(agent: _Agent) -> None:
            async with gate:
                await agent.register()

        async with asyncio.timeout(READY_TIMEOUT_S):
            await asyncio.gather(*map(enter, self._agents))
        self._tasks = [asyncio.create_task(agent.serve()) for agent in self._agents]
        self._tasks.append(asyncio.create_task(self._beat()))
        return self

    async def __aexit__(self, *_: object) -> None:
        for agent in self._agents:
            agent.leave()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def assigned_s(self) -> dict[str, list[float]]:
        """By application, when nodes were told of its containers; seconds since the epoch."""
        found: dict[str, list[float]] = {}
        for agent in self._agents:
            for container_id, at_s in agent.assigned_s.items():
                found.setdefault(container_id.rpartition("-x")[0], []).append(at_s)
        return found

    async def empty(self) -> None:
        """Return once no node knows any container."""
        while any(agent.containers for agent in self._agents):  # noqa: ASYNC110 - one look for all
            await asyncio.sleep(_LOOK_S)

    async def _beat(self) -> None:
        """Every node in turn, evenly over the interval."""
        step_s = self._heartbeat_s / len(self._agents)
        due_s = time.monotonic()
        for agent in itertools.cycle(self._agents):
            due_s += step_s
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))
            with contextlib.suppress(grpc.aio.AioRpcError):
                await agent.beat()


@dataclass
class Application:
    """One job. ``told_s``: when the AppMaster heard of a container's place, seconds after it had
    asked (``asked_s``, since the epoch), by executor."""

    application_id: str
    call: Any
    containers: int
    asked_s: float = 0.0
    told_s: dict[str, float] = field(default_factory=dict)
    running: set[str] = field(default_factory=set)

    @classmethod
    async def attach(cls, master: Master, key: str, containers: int) -> Application:
        stub = application_pb2_grpc.ApplicationServiceStub(master.channel())
        admitted = await stub.Register(
            app_pb.RegisterApplicationRequest(
                name=key, user="benchmark", submission_key=key,
                declared_class=common_pb2.WORKLOAD_CLASS_BATCH,
            ),
            metadata=master.metadata,
        )  # fmt: skip
        call = stub.Session(metadata=master.metadata)
        attach = app_pb.AttachApplication(
            application_id=admitted.application_id, epoch=admitted.epoch
        )
        await call.write(app_pb.ApplicationUpdate(attach=attach))
        hello = await call.read()
        if not isinstance(hello, app_pb.ApplicationNotice) or not hello.HasField("attached"):
            raise BenchmarkError(f"{key} was not attached")
        return cls(admitted.application_id, call, containers)

    async def ask(self, run_s: float) -> None:
        """Send the one request; ``place`` reads the answers."""
        resources = common_pb2.Resources(vcores=1, memory_mib=1024)
        wanted = [
            app_pb.ContainerRequest(
                executor_id=str(x), resources=resources, expected_duration_s=run_s
            )
            for x in range(1, self.containers + 1)
        ]
        update = app_pb.ApplicationUpdate(request=app_pb.RequestContainers(containers=wanted))
        self.asked_s = time.time()
        await self.call.write(update)

    async def place(self) -> None:
        """Read until every container runs.

        Raises:
            BenchmarkError: the master refused, or ended the session.
        """
        while len(self.running) < self.containers:
            notice = await self.call.read()
            told = isinstance(notice, app_pb.ApplicationNotice)
            if told and notice.HasField("container"):
                statuses = [notice.container]
            elif told and notice.HasField("changed"):
                statuses = list(notice.changed.containers)
            else:
                raise BenchmarkError(f"{self.application_id}: no container but {notice!r}")
            for status in statuses:
                if status.node and status.executor_id not in self.told_s:
                    self.told_s[status.executor_id] = time.time() - self.asked_s
                if status.state == common_pb2.CONTAINER_STATE_RUNNING:
                    self.running.add(status.executor_id)

    async def finish(self) -> None:
        finished = app_pb.ApplicationFinished(state=common_pb2.APPLICATION_STATE_SUCCEEDED)
        await self.call.write(app_pb.ApplicationUpdate(finished=finished))
        while isinstance(await self.call.read(), app_pb.ApplicationNotice):
            pass
