"""Emulated agents and AppMasters: real streams, real messages, the real token; no processes.

An agent registers one node, runs what it is ordered to for as long as ``Agents.hold_s`` says,
queues what does not fit yet (streams first), and sends heartbeats with all that it has. An
AppMaster registers, attaches, requests once, receives notices, and finishes. Both live in one
process and take times by one clock. All streams share a few connections: what is measured is the
master, not its sockets.

Unlike real agents, they start no process and preempt no batch container for a stream.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import time
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import grpc
import grpc.aio

from benchmarks.processes import BenchmarkError
from benchmarks.scheduling.cells import NODE_SLOTS, TASK, node_names
from hrm.core.vocabulary.model import Resources, WorkloadClass
from hrm.rpc import MESSAGE_BYTES_MAX
from hrm.v1 import admin_pb2, admin_pb2_grpc, application_pb2_grpc, common_pb2, node_pb2_grpc
from hrm.v1 import application_pb2 as app_pb
from hrm.v1 import node_pb2 as node_pb
from hrm.wire import codec

__all__ = ["Agents", "Application", "run"]

_EOF: Any = vars(grpc.aio)["EOF"]  # missing in its stubs

CHANNELS = 4
NODE_MEMORY_MIB = NODE_SLOTS * 4096
_OPTIONS = [
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.enable_http_proxy", 0),
    # Without this all channels to one address share one connection.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),
]
_RETRY_S = 0.2
_CALL_LIMIT_S = 60.0
_LIMIT_S = 300.0
_BEATS_A_ROUND = 20

T = TypeVar("T")


@functools.cache
def _runner() -> asyncio.Runner:
    return asyncio.Runner()


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run on the only loop of this process: gRPC stays with the first that it has used."""
    return _runner().run(work)


class _Agent:
    """One node.

    Invariants: ``containers`` has all and only those that were assigned and not reported as ended;
    one of them is in ``_waiting`` iff it has not begun to run, and ``_free`` (vcores, MiB) is the
    capacity without those that run.
    """

    def __init__(self, agents: Agents, name: str, memory_mib: int) -> None:
        self.agents = agents
        self.name = name
        self.containers: dict[str, common_pb2.ContainerStatus] = {}
        self.sequence = itertools.count(1)
        self.call: Any = None
        self._memory_mib = memory_mib
        self._free = [NODE_SLOTS, memory_mib]
        self._waiting: dict[str, common_pb2.ContainerStatus] = {}
        self._outgoing: deque[node_pb.NodeMessage] = deque()
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
        await call.write(node_pb.NodeMessage(sequence=next(self.sequence), register=self._hello()))
        first = await call.read()
        if first is _EOF:
            return
        self.call = call
        self.agents.up.add(self.name)
        self.agents.registered()
        while (message := await call.read()) is not _EOF:
            self._take(message)

    def _hello(self) -> node_pb.RegisterNode:
        unit = node_pb.ResourceUnit(
            resource_unit_id=f"{self.name}/cpu",
            capacity=common_pb2.Resources(vcores=NODE_SLOTS, memory_mib=self._memory_mib),
            run_limit=NODE_SLOTS,
        )
        return node_pb.RegisterNode(
            name=self.name, identity=self.name, incarnation=f"{self.name}-1", host="127.0.0.1",
            endpoint="127.0.0.1:1", resource_units=[unit], containers=self.containers.values(),
            isolation="none", platform="cpu",
        )  # fmt: skip

    def _take(self, message: node_pb.MasterMessage) -> None:
        kind = message.WhichOneof("message")
        if kind == "assign":
            spec = message.assign
            self.agents.container_assigned(spec)
            if spec.container_id in self.containers:
                return
            status = common_pb2.ContainerStatus(
                container_id=spec.container_id, application_id=spec.application_id,
                executor_id=spec.executor_id, workload_class=spec.workload_class,
                resources=spec.resources, node=self.name, resource_unit_id=spec.resource_unit_id,
                state=common_pb2.CONTAINER_STATE_WAITING, assigned_at_s=time.time(),
            )  # fmt: skip
            self.containers[spec.container_id] = status
            if self._waiting or not self._start(status):
                self._waiting[spec.container_id] = status
                self._report(status)
        elif kind == "stop":
            self._end(message.stop.container_id, common_pb2.END_CAUSE_RELEASED)

    def _start(self, status: common_pb2.ContainerStatus) -> bool:
        """Start it, if it fits."""
        vcores, memory_mib = status.resources.vcores, status.resources.memory_mib
        if vcores > self._free[0] or memory_mib > self._free[1]:
            return False
        self._free[0] -= vcores
        self._free[1] -= memory_mib
        status.state = common_pb2.CONTAINER_STATE_RUNNING
        status.started_at_s = time.time()
        self._report(status)
        if self.agents.hold_s is not None:
            loop = asyncio.get_running_loop()
            loop.call_later(self.agents.hold_s, self._end, status.container_id)
        return True

    def _end(self, container_id: str, cause: Any = common_pb2.END_CAUSE_EXITED) -> None:
        status = self.containers.pop(container_id, None)
        if status is None:
            return
        if self._waiting.pop(container_id, None) is None:
            self._free[0] += status.resources.vcores
            self._free[1] += status.resources.memory_mib
        status.state = common_pb2.CONTAINER_STATE_ENDED
        status.ended_at_s = time.time()
        status.end.cause = cause
        self._report(status)
        if self._waiting:
            batch = common_pb2.WORKLOAD_CLASS_BATCH
            for each in sorted(self._waiting.values(), key=lambda x: x.workload_class == batch):
                if self._start(each):
                    del self._waiting[each.container_id]

    def _report(self, status: common_pb2.ContainerStatus) -> None:
        self.send(node_pb.NodeMessage(container=status))

    def beat(self) -> None:
        usage = node_pb.NodeUsage(cpu_percent=50.0, memory_used_mib=1024, memory_total_mib=65536)
        beat = node_pb.NodeHeartbeat(usage=usage, containers=self.containers.values())
        self.send(node_pb.NodeMessage(heartbeat=beat))

    def send(self, message: node_pb.NodeMessage) -> None:
        if self.call is None:
            return
        message.sequence = next(self.sequence)
        self._outgoing.append(message)
        if not self._writing:
            self._writing = True
            self.agents.spawn(self._write())

    async def _write(self) -> None:
        """One writer at a time; what a broken stream loses is in the next registration."""
        try:
            while self._outgoing and self.call is not None:
                await self.call.write(self._outgoing.popleft())
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            self._outgoing.clear()
        finally:
            self._writing = False


class Agents:
    """All emulated nodes of this process, and their connections, which AppMasters share.

    ``hold_s``: how long a container runs from now on; None: until it is stopped. ``large``: how
    many of the nodes, the last ones, have 16 times the memory. ``up``: registered nodes.
    """

    def __init__(
        self, target: str, token: str, nodes: int, hold_s: float | None, *, large: int = 0
    ) -> None:
        self.hold_s = hold_s
        self.metadata = (("authorization", f"Bearer {token}"),)
        self.channels = [
            grpc.aio.insecure_channel(target, options=_OPTIONS) for _ in range(CHANNELS)
        ]
        self.up: set[str] = set()
        self.on_assigned: dict[str, Callable[[], None]] = {}
        self.assigned_count = 0
        self._turn = itertools.cycle(self.channels)
        self._agents = [
            _Agent(self, name, NODE_MEMORY_MIB * (16 if number >= nodes - large else 1))
            for number, name in enumerate(node_names(nodes))
        ]
        self._tasks: set[asyncio.Task[None]] = set()
        self._all_up = asyncio.Event()

    async def start(self, heartbeat_interval_s: float, limit_s: float) -> float:
        """Register all; returns seconds until the last was registered."""
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

    def container_assigned(self, spec: common_pb2.ContainerSpec) -> None:
        self.assigned_count += 1
        callback = self.on_assigned.get(spec.application_id)
        if callback is not None:
            callback()

    def channel(self) -> grpc.aio.Channel:
        """The next connection in turn."""
        return next(self._turn)

    async def cluster(self) -> admin_pb2.Cluster:
        """The master's report about itself."""
        stub = admin_pb2_grpc.AdminServiceStub(self.channels[0])
        request = admin_pb2.GetClusterRequest()
        response = await stub.GetCluster(request, metadata=self.metadata, timeout=_CALL_LIMIT_S)
        assert isinstance(response, admin_pb2.Cluster)
        return response

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _beat(self, interval_s: float) -> None:
        """Heartbeats of all nodes, spread evenly over the interval."""
        while True:
            for part in range(_BEATS_A_ROUND):
                await asyncio.sleep(interval_s / _BEATS_A_ROUND)
                for agent in self._agents[part::_BEATS_A_ROUND]:
                    agent.beat()

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for channel in self.channels:
            await channel.close(None)


class Application:
    """One AppMaster's session: ``open``, ``ask``, perhaps ``ran``, ``finish``.

    ``delays_s``: from the request until a node had the order, for each container. With ``follow``
    it reads its notices: ``last_report_s`` is from the request until it has a place for all of its
    containers, ``completion_s`` until the end of the last has been reported to it.
    """

    def __init__(
        self,
        agents: Agents,
        key: str,
        workload_class: WorkloadClass,
        *,
        resources: Resources = TASK,
        follow: bool = False,
    ) -> None:
        self.application_id = ""
        self.delays_s: list[float] = []
        self.last_report_s = 0.0
        self.completion_s = 0.0
        self._agents = agents
        self._key = key
        self._class = workload_class
        self._resources = resources
        self._follow = follow
        self._stub = application_pb2_grpc.ApplicationServiceStub(agents.channel())
        self._missing = 0
        self._unreported: set[str] = set()
        self._unended: set[str] = set()
        self._asked_at_s = 0.0
        self._all_assigned: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._ran: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._call: Any = None
        self._reading: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Register and attach."""
        request = app_pb.RegisterApplicationRequest(
            name="bench", user="bench", submission_key=self._key,
            declared_class=codec.WORKLOAD_CLASS[self._class],
        )  # fmt: skip
        metadata = self._agents.metadata
        response = await self._stub.Register(request, metadata=metadata, timeout=_CALL_LIMIT_S)
        self.application_id = response.application_id
        self._agents.on_assigned[self.application_id] = self._agent_assigned
        self._call = self._stub.Session(metadata=metadata)
        attach = app_pb.AttachApplication(
            application_id=response.application_id, epoch=response.epoch
        )
        await self._call.write(app_pb.ApplicationUpdate(attach=attach))
        await self._call.read()
        self._reading = asyncio.create_task(self._read())

    async def ask(self, tasks: int, run_s: float = 0.0) -> None:
        """Request containers once; done when the agents have the orders for all of them.

        ``run_s``: their declared run time; 0: none is declared.

        Raises:
            BenchmarkError: the master refused, or ended the session (only with ``follow``).
            TimeoutError: the agents did not get the orders in time.
        """
        resources = common_pb2.Resources(
            vcores=self._resources.vcores, memory_mib=self._resources.memory_mib
        )
        names = [str(number) for number in range(1, tasks + 1)]
        containers = [
            app_pb.ContainerRequest(
                executor_id=name, resources=resources, expected_duration_s=run_s
            )
            for name in names
        ]
        self._missing = tasks
        self._unreported, self._unended = set(names), set(names)
        request = app_pb.RequestContainers(containers=containers)
        self._asked_at_s = time.perf_counter()
        await self._call.write(app_pb.ApplicationUpdate(request=request))
        await asyncio.wait_for(self._all_assigned, _LIMIT_S)

    async def ran(self) -> None:
        """Return once every container has ended. Raises as ``ask`` does; needs ``follow``."""
        await asyncio.wait_for(self._ran, _LIMIT_S)

    async def finish(self) -> None:
        """Report success, and wait for the end."""
        done = app_pb.ApplicationFinished(state=common_pb2.APPLICATION_STATE_SUCCEEDED)
        await self._call.write(app_pb.ApplicationUpdate(finished=done))
        await self._call.done_writing()
        assert self._reading is not None
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._reading, _CALL_LIMIT_S)
        self._agents.on_assigned.pop(self.application_id, None)

    def _agent_assigned(self) -> None:
        self.delays_s.append(time.perf_counter() - self._asked_at_s)
        self._missing -= 1
        if self._missing == 0 and not self._all_assigned.done():
            self._all_assigned.set_result(None)

    async def _read(self) -> None:
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            while (notice := await self._call.read()) is not _EOF:
                if self._follow:
                    self._notice(notice)
        if self._follow:
            self._fail("the session has ended")

    def _notice(self, notice: app_pb.ApplicationNotice) -> None:
        if notice.HasField("container"):
            statuses = [notice.container]
        elif notice.HasField("changed"):
            statuses = list(notice.changed.containers)
        else:
            self._fail(f"{notice!r}")
            return
        passed_s = time.perf_counter() - self._asked_at_s
        for status in statuses:
            if status.executor_id in self._unreported and status.node:
                self._unreported.remove(status.executor_id)
                self.last_report_s = passed_s
            if status.state == common_pb2.CONTAINER_STATE_ENDED:
                self._unended.discard(status.executor_id)
        if not self._unended and not self._ran.done():
            self.completion_s = passed_s
            self._ran.set_result(None)

    def _fail(self, why: str) -> None:
        """Pass the reason on to all waiters."""
        for future in (self._all_assigned, self._ran):
            if not future.done():
                future.set_exception(BenchmarkError(f"{self.application_id}: {why}"))
                future.exception()  # retrieved: not every caller waits for both
