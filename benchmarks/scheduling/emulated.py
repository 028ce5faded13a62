"""Emulated agents and AppMasters: real streams, real messages, the real token; no processes.

An agent registers one node, says RUNNING of every container that it is given and ENDED ``hold_s``
later, and sends heartbeats with the full list of what it has, as a real one does. All agents of a
generator share a few connections: what is measured is the master, not the number of sockets.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import grpc
import grpc.aio

from benchmarks.scheduling.cells import NODE_SLOTS, TASK, Cell, node_names
from hrm import wire
from hrm.rpc import MESSAGE_BYTES_MAX
from hrm.v1 import application_pb2 as app_pb
from hrm.v1 import application_pb2_grpc, common_pb2, node_pb2, node_pb2_grpc

__all__ = ["Agents", "Application"]

_EOF: Any = vars(grpc.aio)["EOF"]  # which its stubs do not know

CHANNELS = 4
_OPTIONS = [
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.enable_http_proxy", 0),
    # Without it all channels to one address share one connection.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),
]
_RETRY_S = 0.2
_CALL_LIMIT_S = 60.0


class _Agent:
    """One node."""

    def __init__(self, agents: Agents, name: str) -> None:
        self.agents = agents
        self.name = name
        self.containers: dict[str, common_pb2.ContainerStatus] = {}
        self.sequence = itertools.count(1)
        self.call: Any = None
        self._outgoing: deque[node_pb2.NodeMessage] = deque()
        self._writing = False

    async def live(self, stub: node_pb2_grpc.NodeServiceStub) -> None:
        """Stay registered until cancelled."""
        while True:
            with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                await self._session(stub)
            self.call = None
            self.agents.up.discard(self.name)
            await asyncio.sleep(_RETRY_S)

    async def _session(self, stub: node_pb2_grpc.NodeServiceStub) -> None:
        self._outgoing.clear()
        call = stub.Connect(metadata=self.agents.metadata, wait_for_ready=True)
        await call.write(node_pb2.NodeMessage(sequence=next(self.sequence), register=self._hello()))
        first = await call.read()
        if first is _EOF:
            return
        self.call = call
        self.agents.up.add(self.name)
        self.agents.registered()
        while (message := await call.read()) is not _EOF:
            self._take(message)

    def _hello(self) -> node_pb2.RegisterNode:
        unit = node_pb2.ResourceUnit(
            resource_unit_id=f"{self.name}/cpu",
            capacity=common_pb2.Resources(vcores=NODE_SLOTS, memory_mib=NODE_SLOTS * 4096),
            run_limit=NODE_SLOTS,
        )
        return node_pb2.RegisterNode(
            name=self.name, identity=self.name, incarnation=f"{self.name}-1", host="127.0.0.1",
            endpoint="127.0.0.1:1", resource_units=[unit], containers=self.containers.values(),
            isolation="none", platform="cpu",
        )  # fmt: skip

    def _take(self, message: node_pb2.MasterMessage) -> None:
        kind = message.WhichOneof("message")
        if kind == "assign":
            spec = message.assign
            self.agents.told(spec.container_id)
            if spec.container_id in self.containers:
                return
            now = time.time()
            status = common_pb2.ContainerStatus(
                container_id=spec.container_id, application_id=spec.application_id,
                executor_id=spec.executor_id, workload_class=spec.workload_class,
                resources=spec.resources, node=self.name, resource_unit_id=spec.resource_unit_id,
                state=common_pb2.CONTAINER_STATE_RUNNING, assigned_at_s=now, started_at_s=now,
            )  # fmt: skip
            self.containers[spec.container_id] = status
            self.send(node_pb2.NodeMessage(container=status))
            if self.agents.hold_s is not None:
                loop = asyncio.get_running_loop()
                loop.call_later(self.agents.hold_s, self._end, spec.container_id)
        elif kind == "stop":
            self._end(message.stop.container_id, common_pb2.END_CAUSE_RELEASED)

    def _end(self, container_id: str, cause: Any = common_pb2.END_CAUSE_EXITED) -> None:
        status = self.containers.pop(container_id, None)
        if status is not None:
            status.state = common_pb2.CONTAINER_STATE_ENDED
            status.ended_at_s = time.time()
            status.end.cause = cause
            self.send(node_pb2.NodeMessage(container=status))

    def beat(self) -> None:
        usage = node_pb2.NodeUsage(cpu_percent=50.0, memory_used_mib=1024, memory_total_mib=65536)
        beat = node_pb2.NodeHeartbeat(usage=usage, containers=self.containers.values())
        self.send(node_pb2.NodeMessage(heartbeat=beat))

    def send(self, message: node_pb2.NodeMessage) -> None:
        if self.call is None:
            return
        message.sequence = next(self.sequence)
        self._outgoing.append(message)
        if not self._writing:
            self._writing = True
            self.agents.spawn(self._write())

    async def _write(self) -> None:
        """One writer at a time; a stream that broke loses what the next registration says anew."""
        try:
            while self._outgoing and self.call is not None:
                await self.call.write(self._outgoing.popleft())
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            self._outgoing.clear()
        finally:
            self._writing = False


class Agents:
    """All emulated nodes of this process, and the AppMasters that ask for containers on them.

    ``hold_s``: how long a container runs; None: until it is stopped.
    """

    def __init__(self, target: str, token: str, nodes: int, hold_s: float | None) -> None:
        self.hold_s = hold_s
        self.metadata = (("authorization", f"Bearer {token}"),)
        self.channels = [
            grpc.aio.insecure_channel(target, options=_OPTIONS) for _ in range(CHANNELS)
        ]
        self.up: set[str] = set()
        self.on_told: dict[str, Callable[[str], None]] = {}
        self.told_count = 0
        self._agents = [_Agent(self, name) for name in node_names(nodes)]
        self._tasks: set[asyncio.Task[None]] = set()
        self._all_up = asyncio.Event()

    async def start(self, heartbeat_interval_s: float, limit_s: float) -> float:
        """Register all; seconds until the last was answered."""
        begun_s = time.perf_counter()
        stubs = [node_pb2_grpc.NodeServiceStub(channel) for channel in self.channels]
        for agent, stub in zip(self._agents, itertools.cycle(stubs), strict=False):
            self.spawn(agent.live(stub))
        await self.all_registered(limit_s)
        self.spawn(self._beat(heartbeat_interval_s))
        return time.perf_counter() - begun_s

    async def all_registered(self, limit_s: float) -> None:
        async with asyncio.timeout(limit_s):
            while len(self.up) < len(self._agents):
                self._all_up.clear()
                await self._all_up.wait()

    def registered(self) -> None:
        if len(self.up) == len(self._agents):
            self._all_up.set()

    def running(self) -> int:
        """Containers that the nodes have."""
        return sum(len(agent.containers) for agent in self._agents)

    def told(self, container_id: str) -> None:
        self.told_count += 1
        heard = self.on_told.get(container_id.rpartition("-")[0])
        if heard is not None:
            heard(container_id)

    def spawn(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _beat(self, interval_s: float) -> None:
        """Heartbeats of all nodes, spread evenly over the interval."""
        parts = 20
        while True:
            for part in range(parts):
                await asyncio.sleep(interval_s / parts)
                for agent in self._agents[part::parts]:
                    agent.beat()

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for channel in self.channels:
            await channel.close(None)


class Application:
    """One AppMaster's session."""

    def __init__(self, agents: Agents, cell: Cell, key: str) -> None:
        self._agents = agents
        self._cell = cell
        self._key = key
        number = hash(key) % len(agents.channels)
        self._stub = application_pb2_grpc.ApplicationServiceStub(agents.channels[number])
        self.application_id = ""
        self.delays_s: list[float] = []
        self._missing = 0
        self._asked_at_s = 0.0
        self._told = asyncio.Event()
        self._call: Any = None
        self._reading: asyncio.Task[None] | None = None
        self._executors = itertools.count(1)

    async def open(self) -> None:
        """Register and attach."""
        request = app_pb.RegisterApplicationRequest(
            name="bench", user="bench", submission_key=self._key,
            declared_class=wire.WORKLOAD_CLASS[self._cell.workload_class],
        )  # fmt: skip
        metadata = self._agents.metadata
        answer = await self._stub.Register(request, metadata=metadata, timeout=_CALL_LIMIT_S)
        self.application_id = answer.application_id
        self._agents.on_told[self.application_id] = self._heard
        self._call = self._stub.Session(metadata=metadata)
        attach = app_pb.AttachApplication(application_id=answer.application_id, epoch=answer.epoch)
        await self._call.write(app_pb.ApplicationUpdate(attach=attach))
        await self._call.read()
        self._reading = asyncio.create_task(self._read())

    async def ask(self, tasks: int) -> None:
        """Ask for containers; done when the agents have been told of all of them."""
        containers = [
            app_pb.ContainerRequest(
                executor_id=str(next(self._executors)),
                resources=common_pb2.Resources(vcores=TASK.vcores, memory_mib=TASK.memory_mib),
            )
            for _ in range(tasks)
        ]
        self._missing = tasks
        self._told.clear()
        request = app_pb.RequestContainers(containers=containers)
        self._asked_at_s = time.perf_counter()
        await self._call.write(app_pb.ApplicationUpdate(request=request))
        await asyncio.wait_for(self._told.wait(), _CALL_LIMIT_S)

    def _heard(self, _container_id: str) -> None:
        self.delays_s.append(time.perf_counter() - self._asked_at_s)
        self._missing -= 1
        if self._missing == 0:
            self._told.set()

    async def _read(self) -> None:
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            while await self._call.read() is not _EOF:
                pass

    async def finish(self) -> None:
        """Say that it succeeded, and hear the end."""
        done = app_pb.ApplicationFinished(state=common_pb2.APPLICATION_STATE_SUCCEEDED)
        await self._call.write(app_pb.ApplicationUpdate(finished=done))
        await self._call.done_writing()
        assert self._reading is not None
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._reading, _CALL_LIMIT_S)
        self._agents.on_told.pop(self.application_id, None)
