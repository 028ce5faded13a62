"""``hrm agent``: the interpreter around ``NodeCore`` on a live machine.

Everything that happens (a message, an end, a sample, the clock) becomes an event; what the core
wants done is done here: processes by ``containers``, messages by ``link``. While the master is
away the core goes on: executors run, waiting ones start, and the next registration tells the
master all of it.

The life of an agent: lock the work directory, adopt what runs, listen for readers of logs, connect
and stay connected. SIGTERM or SIGINT end its containers first, politely, then the agent (a second
signal cuts the politeness short). A crash leaves the containers running for the next agent on this
directory, and so does SIGTERM with ``keep_containers``: then an agent can be restarted under them.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import grpc.aio
import structlog

from hrm import rpc, tls, wire
from hrm.agent import file_cache, shim
from hrm.agent import isolation as isolating
from hrm.agent.containers import Containers, Ended, StopOrder
from hrm.agent.disk import DiskWatch
from hrm.agent.driver import driver_launch, files_dir
from hrm.agent.housekeeping import Housekeeping
from hrm.agent.link import Link
from hrm.agent.logs import LogPages, Logs, LogService
from hrm.agent.machine import Machine, auto_binding, describe, ending, keep_binding
from hrm.agent.mps import Mps
from hrm.agent.own_log import configure_logging
from hrm.agent.pipeline_gpus import GpuService
from hrm.agent.pipeline_runtime import PipelineRuntime
from hrm.agent.shortcuts import Shortcuts
from hrm.agent.shuffle import SHUFFLE_DIR, ShuffleService
from hrm.agent.tracker import Sample, Tracker
from hrm.config import AgentSettings
from hrm.core import commands as c
from hrm.core import events as e
from hrm.core.model import (
    ApplicationId,
    ContainerEnd,
    ContainerId,
    ContainerSpec,
    ContainerState,
    ContainerStatus,
    EndCause,
    Gpu,
    WorkloadClass,
)
from hrm.core.node import NodeCore
from hrm.errors import HrmError, InvalidConfig
from hrm.pipeline.local import SOCKET_VARIABLE
from hrm.spark.launch import Launch, executor_launch, find_java, find_spark
from hrm.tls_server import listen, server_tls
from hrm.v1 import common_pb2, node_pb2, node_pb2_grpc, pipeline_pb2_grpc

__all__ = ["READY_FILE", "Agent", "CommandOf", "run"]

READY_FILE = "ready.json"
_STOP_MARGIN_S = 30.0
_FLUSH_LIMIT_S = 3.0
_SOCKET_PATH_MAX = 100
_SERVER_GRACE_S = 1.0
_log = structlog.get_logger("hrm.agent")

CommandOf = Callable[[ContainerSpec, Path, str, str, Gpu | None], Launch]
"""Makes the command of a container: specification, work directory, addresses of its two logs, the
GPU of its unit."""


class Agent:
    """One agent from start to end. ``run`` is the whole of it."""

    def __init__(
        self,
        settings: AgentSettings,
        machine: Machine,
        token: str,
        command_of: CommandOf,
        spark_versions: tuple[str, ...],
        shortcuts: Shortcuts | None = None,
        shuffle: ShuffleService | None = None,
    ) -> None:
        self._shortcuts = shortcuts
        self._settings = settings
        self._shuffle = shuffle
        self._machine = machine
        self._token = token
        self._tls = server_tls(settings)
        self._command_of = command_of
        self._core = NodeCore(
            machine.name,
            machine.units,
            hardware=machine.hardware,
            binding=machine.binding,
            auto_binding=auto_binding(settings),
            preemption_grace_s=settings.preemption_grace_s if settings.preemption else None,
        )
        driver = machine.isolation.driver
        self._socket = _socket(settings.work_dir) if machine.pipelines is not None else None
        self._containers = Containers(
            settings.work_dir,
            driver,
            rebuild=self._rebuild_isolation,
            log_bytes_max=settings.log_bytes_max,
            log_files_max=settings.log_files_max,
            on_end=self._container_ended,
            environment={} if self._socket is None else {SOCKET_VARIABLE: str(self._socket)},
            account_of=machine.run_as.account_of,
            warm=shortcuts.warm if shortcuts is not None else None,
        )
        self._tracker = self._watching()
        self._mps = Mps(settings.mps, settings.work_dir, machine.hardware.gpus)
        self._logs = Logs(self._containers.dir, token, self._is_over)
        self._sample: Sample | None = None
        self._starting: dict[str, asyncio.Task[None]] = {}
        self._stops: dict[str, StopOrder] = {}
        self._removing: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        self._housekeeping = Housekeeping(settings, self._containers, self._core, shuffle)
        self._ending = asyncio.Event()
        self._keeping = False
        self._hurry = asyncio.Event()
        self._link = Link(
            target=settings.master,
            open_channel=self._open_channel,
            register=self._registration,
            on_message=self._master_said,
            on_up=self._connected,
            on_down=self._disconnected,
            heartbeat=lambda: self._deliver(e.HeartbeatDue(now=time.time())),
            delay_max_s=settings.reconnect_delay_max_s,
        )
        self._pipelines: PipelineRuntime | None = None
        if machine.pipelines is not None:
            self._pipelines = PipelineRuntime(
                settings, machine.pipelines, machine.identity, self._open_channel
            )
        self._spark_versions = spark_versions
        self._endpoint = ""

    def _watching(self) -> Tracker:
        settings = self._settings
        return Tracker(
            settings.usage_interval_s,
            self._sampled,
            disk=DiskWatch(
                self._containers.dir,
                interval_s=settings.disk_interval_s,
                limit_mib=settings.disk_limit_mib,
                node_limit_mib=settings.disk_node_limit_mib,
                beside=settings.work_dir / SHUFFLE_DIR,
            ),
            device_memory=self._machine.device_memory,
        )

    def _rebuild_isolation(self, name: str) -> isolating.Isolation:
        make = isolating.DRIVERS[name]
        vcores = self._machine.capacity.vcores
        return make(self._machine.identity, vcores, self._settings.cpu_limit)

    def _open_channel(self) -> grpc.aio.Channel:
        """To the master. Its files are read again for every connection: a renewed token, or
        authority, needs no restart."""
        settings = self._settings
        token = rpc.read_token(settings.token_file)
        ca = tls.ca_file(settings.token_file, settings.tls_ca)
        return rpc.channel(settings.master, token, tls.read_ca(ca))

    # --- the life of the agent ----------------------------------------------------------------

    async def live(self) -> None:
        """Serve until told to end. Raises what makes going on senseless."""
        async with contextlib.AsyncExitStack() as stack:
            await self._serve_logs(stack)
            self._tracker.start()
            stack.push_async_callback(asyncio.to_thread, self._tracker.stop)
            stack.push_async_callback(self._containers.close)
            await asyncio.to_thread(self._mps.start)
            await self._adopt()
            if self._pipelines is not None:
                await self._pipelines.start()
                stack.push_async_callback(self._pipelines.close)
            if self._shortcuts is not None:
                self._shortcuts.start()
                stack.push_async_callback(self._shortcuts.close)
            for number in (signal.SIGTERM, signal.SIGINT):
                self._loop.add_signal_handler(number, self._told_to_end, number)
                stack.callback(self._loop.remove_signal_handler, number)
            if self._shuffle is not None:
                serving = asyncio.create_task(self._shuffle.run())
                stack.push_async_callback(_cancelled, serving)
            cleaning = asyncio.create_task(self._housekeeping.run())
            linked = asyncio.create_task(self._link.run())
            told = asyncio.create_task(self._ending.wait())
            try:
                await asyncio.wait((linked, told), return_when=asyncio.FIRST_COMPLETED)
                if linked.done():
                    linked.result()
            finally:
                self._ending.set()
                await (self._leave_containers() if self._keeping else self._end_containers())
                if await self._containers.drain(0.0):
                    await asyncio.to_thread(self._mps.stop)
                await self._link.close(_FLUSH_LIMIT_S)
                for task in (cleaning, linked, told):
                    task.cancel()
                await asyncio.gather(cleaning, linked, told, return_exceptions=True)
                (self._settings.work_dir / READY_FILE).unlink(missing_ok=True)
                self._machine.isolation.driver.close()

    def _told_to_end(self, number: int) -> None:
        if self._ending.is_set():
            self._hurry.set()
        else:
            self._keeping = number == signal.SIGTERM and self._settings.keep_containers
        self._ending.set()

    async def _serve_logs(self, stack: contextlib.AsyncExitStack) -> None:
        settings = self._settings
        server = grpc.aio.server(
            interceptors=[rpc.TokenInterceptor(self._token)], options=rpc.SERVER_OPTIONS
        )
        service = LogService(self._logs)
        node_pb2_grpc.add_AgentServiceServicer_to_server(service, server)
        if self._pipelines is not None:
            gpus = GpuService(self._pipelines)
            pipeline_pb2_grpc.add_GpuServiceServicer_to_server(gpus, server)
            await self._serve_gpus(stack, gpus)
        try:
            port = listen(server, f"{settings.host}:{settings.port}", self._tls)
        except RuntimeError as error:
            raise InvalidConfig(
                f"cannot listen on {settings.host}:{settings.port}: the port is in use or the "
                f"address is not this machine's; choose others with --host and --port"
            ) from error
        await server.start()
        stack.push_async_callback(server.stop, _SERVER_GRACE_S)
        try:
            pages = LogPages(self._logs, self._tls)
            serving = await pages.start(settings.host, settings.log_port)
        except OSError as error:
            raise InvalidConfig(
                f"cannot serve log pages on {settings.host}:{settings.log_port}: "
                f"{error.strerror}; choose another port with --log-port"
            ) from error
        stack.callback(serving.close)
        self._endpoint = f"{settings.host}:{port}"
        self._logs.address = f"{settings.host}:{serving.sockets[0].getsockname()[1]}"

    async def _serve_gpus(self, stack: contextlib.AsyncExitStack, gpus: GpuService) -> None:
        """To programs of this machine that hold no token: executors. Who may open the socket may
        ask, and that is whose containers these are."""
        path = self._socket
        if path is None:
            _log.warning("no socket for GPUs", why="the work directory's path is too long")
            return
        path.unlink(missing_ok=True)
        server = grpc.aio.server(options=rpc.SERVER_OPTIONS)
        pipeline_pb2_grpc.add_GpuServiceServicer_to_server(gpus, server)
        server.add_insecure_port(f"unix:{path}")
        await server.start()
        path.chmod(0o600)
        stack.push_async_callback(server.stop, _SERVER_GRACE_S)

    async def _adopt(self) -> None:
        for adopted in await self._containers.adopt():
            spec = adopted.spec
            if adopted.ended is None:
                self._track(spec)
            event = e.ContainerAdopted(
                now=time.time(), spec=spec, started_at_s=adopted.started_at_s
            )
            if adopted.order is not None:
                self._stops[spec.container_id] = order = adopted.order
                decommissioning = order.decommission
                event = replace(event, stopping=order.reason, decommissioning=decommissioning)
            self._deliver(event)
            _log.info("adopted", container=spec.container_id, running=adopted.ended is None)
            if adopted.ended is not None:
                self._container_ended(spec.container_id, adopted.ended)

    async def _leave_containers(self) -> None:
        """What runs is for the next agent on this directory. What waits here would be lost: nothing
        of it is on the disk."""
        await self._all_started(_STOP_MARGIN_S)
        left = 0
        for status in sorted(self._core.statuses(), key=_batch_that_waits_first):
            if status.state is ContainerState.WAITING:
                reason = f"the agent of node {self._machine.name} is restarted"
                self._stop_now(status.container_id, reason, only_if_waiting=True)
            left += status.state in (ContainerState.RUNNING, ContainerState.STOPPING)
        _log.info("leaving containers to the next agent", containers=left)

    def _stop_now(
        self, container_id: ContainerId, reason: str, *, only_if_waiting: bool = False
    ) -> None:
        stop = e.StopReceived(
            now=time.time(),
            epoch=self._core.epoch,
            container_id=container_id,
            cause=EndCause.NODE_LOST,
            reason=reason,
            grace_s=self._settings.stop_grace_s,
            only_if_waiting=only_if_waiting,
        )
        self._deliver(stop)

    async def _end_containers(self) -> None:
        """Stop the waiting ones first, streams last of them, so that room that appears starts
        nobody, and nobody makes way for one that ends."""
        grace_s = self._settings.stop_grace_s
        live = [s for s in self._core.statuses() if s.state is not ContainerState.ENDED]
        if live:
            _log.info("ending containers", containers=len(live), grace_s=grace_s)
        for status in sorted(live, key=_batch_that_waits_first):
            reason = (
                f"the agent of node {self._machine.name} was shut down, and its containers with it"
            )
            self._stop_now(status.container_id, reason)
        ended = asyncio.create_task(self._all_ended(grace_s + _STOP_MARGIN_S))
        hurried = asyncio.create_task(self._hurry.wait())
        await asyncio.wait((ended, hurried), return_when=asyncio.FIRST_COMPLETED)
        hurried.cancel()
        if not ended.done():
            for container_id, order in self._stops.items():
                self._containers.stop(container_id, order, 0.0)
        await ended

    async def _all_started(self, limit_s: float) -> None:
        latest_s = time.monotonic() + limit_s
        while self._starting and (left_s := latest_s - time.monotonic()) > 0:
            await asyncio.wait(tuple(self._starting.values()), timeout=left_s)

    async def _all_ended(self, limit_s: float) -> None:
        await self._all_started(limit_s)
        if not await self._containers.drain(limit_s):
            _log.error("containers still run; the next agent on this directory adopts them")

    # --- events in, commands out --------------------------------------------------------------

    def _deliver(self, event: e.NodeEvent) -> None:
        for command in self._core.handle(event):
            match command:
                case c.StartProcess():
                    self._start(command.spec)
                case c.StopProcess():
                    self._stop(command)
                case c.ReportContainer():
                    status = wire.from_status(self._dressed(command.status))
                    self._link.send(node_pb2.NodeMessage(container=status))
                case c.AnswerRebinding():
                    answer = node_pb2.RebindingAnswer(
                        request_id=command.request_id,
                        accepted=command.accepted,
                        message=command.message,
                    )
                    self._link.send(node_pb2.NodeMessage(rebinding=answer))
                    _log.info("asked for another binding", answer=command.message)
                case c.RegisterAgain():
                    self._register_again(command)
                case c.SendHeartbeat():
                    self._link.send(node_pb2.NodeMessage(heartbeat=self._heartbeat(command)))

    def _register_again(self, command: c.RegisterAgain) -> None:
        """The units have changed; after all that is to be said now, the master hears of it."""
        if command.why:
            _log.info("automatic binding", what=command.why)
        if command.binding is not None:
            try:
                keep_binding(self._settings, command.binding)
            except OSError as error:
                _log.warning("cannot keep the binding for the next start", why=str(error))
        self._loop.call_soon(self._link.reconnect)

    def _heartbeat(self, command: c.SendHeartbeat) -> node_pb2.NodeHeartbeat:
        usage = wire.from_usage(self._sample.node) if self._sample else None
        statuses = (wire.from_status(self._dressed(status)) for status in command.statuses)
        shortcuts = self._shortcuts.report() if self._shortcuts is not None else ()
        return node_pb2.NodeHeartbeat(
            usage=usage,
            containers=statuses,
            shortcuts=[wire.from_shortcut(shortcut) for shortcut in shortcuts],
        )

    def _dressed(self, status: ContainerStatus) -> ContainerStatus:
        """With what the core does not know: usage and the logs' addresses."""
        if status.started_at_s == 0.0:
            return status
        return replace(
            status,
            stdout_url=self._logs.url(status.container_id, "stdout"),
            stderr_url=self._logs.url(status.container_id, "stderr"),
            usage=self._sample.containers.get(status.container_id) if self._sample else None,
        )

    def _start(self, spec: ContainerSpec) -> None:
        task = asyncio.create_task(self._launch(spec))
        self._starting[spec.container_id] = task
        task.add_done_callback(lambda _: self._starting.pop(spec.container_id, None))

    async def _launch(self, spec: ContainerSpec) -> None:
        container_id = spec.container_id
        try:
            unit = self._core.units[spec.unit_id].unit
            launch = self._command_of(
                spec,
                self._containers.work_dir(container_id),
                self._logs.url(container_id, "stdout"),
                self._logs.url(container_id, "stderr"),
                unit.gpu,
            )
            held = unit.gpu if spec.resources.gpu_memory_mib else None
            closed = self._machine.gpu_devices.closed(held)
            shared = self._mps.environment(held, spec.resources.gpu_memory_mib)
            launch = replace(launch, environment={**launch.environment, **shared})
            if self._shuffle is not None and self._shuffle.serves(spec):
                launch = self._shuffle.prepare(spec, launch)
            await self._containers.start(spec, launch, unit.cpus, closed)
        except Exception as error:
            if not isinstance(error, HrmError):
                _log.exception("launching failed", container=container_id)
            self._stops.pop(container_id, None)
            end = ContainerEnd(cause=EndCause.LAUNCH_FAILED, message=str(error))
            self._ended(container_id, end)
            return
        self._track(spec)
        _log.info("started", container=container_id, resources=str(spec.resources))

    def _track(self, spec: ContainerSpec) -> None:
        pid = self._containers.shim_pid(spec.container_id)
        if pid is not None:
            self._tracker.watch(
                spec.container_id,
                pid,
                self._containers.isolation_of(spec.container_id),
                limit_mib=spec.resources.memory_mib,
                heap_mib=spec.heap_mib,
                gpu_limit_mib=spec.resources.gpu_memory_mib,
            )

    def _stop(self, command: c.StopProcess) -> None:
        known = self._core.containers[command.container_id]
        decommission = command.decommission and known.spec.launch.decommissions
        order = StopOrder(cause=command.cause, reason=command.reason, decommission=decommission)
        self._stops[command.container_id] = order
        _log.info("stopping", container=command.container_id, why=command.reason)

        def stop(_: object = None) -> None:
            self._containers.stop(command.container_id, order, command.grace_s)

        starting = self._starting.get(command.container_id)
        if starting is None:
            stop()
        else:
            starting.add_done_callback(stop)

    def _container_ended(self, container_id: str, ended: Ended) -> None:
        self._tracker.unwatch(container_id)
        order = self._stops.pop(container_id, None) or ended.order
        limits = self._core.containers.get(ContainerId(container_id))
        spec = limits.spec if limits is not None else None
        self._ended(container_id, ending(ended, order, spec))

    def _ended(self, container_id: str, end: ContainerEnd) -> None:
        _log.info(
            "ended",
            container=container_id,
            cause=end.cause.value,
            exit_code=end.exit_code,
            message=end.message,
        )
        now = time.time()
        self._deliver(e.ProcessEnded(now=now, container_id=ContainerId(container_id), end=end))

    def _is_over(self, container_id: str) -> bool | None:
        known = self._core.containers.get(ContainerId(container_id))
        return None if known is None else known.life.state is ContainerState.ENDED

    def _sampled(self, sample: Sample) -> None:
        """In the tracker's thread."""
        with contextlib.suppress(RuntimeError):  # the loop has closed: nobody wants to know
            self._loop.call_soon_threadsafe(self._take, sample)

    def _take(self, sample: Sample) -> None:
        self._sample = sample
        for breach in sample.breaches:
            container_id = ContainerId(breach.container_id)
            event = e.ContainerOverLimit(
                now=time.time(),
                container_id=container_id,
                message=breach.message,
                cause=breach.cause,
            )
            self._deliver(event)
        if not self._ending.is_set():
            used = tuple((ContainerId(x), y.cpu_percent) for x, y in sample.containers.items())
            self._deliver(e.UsageMeasured(now=time.time(), cpu_percent=used))

    # --- the master ---------------------------------------------------------------------------

    def _registration(self) -> node_pb2.RegisterNode:
        machine, settings = self._machine, self._settings
        return node_pb2.RegisterNode(
            name=machine.name,
            identity=machine.identity,
            incarnation=machine.incarnation,
            host=settings.host,
            endpoint=self._endpoint,
            resource_units=[wire.from_unit(q.unit) for q in self._core.units.values()],
            containers=[wire.from_status(self._dressed(s)) for s in self._core.statuses()],
            isolation=machine.isolation.driver.name,
            spark_versions=self._spark_versions,
            platform=settings.platform,
            remarks=[*machine.remarks, *filter(None, [self._mps.remark])],
        )

    def _connected(self, epoch: int, first: bool) -> None:
        self._deliver(e.MasterConnected(now=time.time(), epoch=epoch))
        if not first:
            _log.info("connected again", master=self._settings.master, epoch=epoch)
            return
        ready = {
            "name": self._machine.name,
            "endpoint": self._endpoint,
            "log_pages": self._logs.address,
            "master": self._settings.master,
            "isolation": self._machine.isolation.driver.name,
        }
        shim.write_json(self._settings.work_dir / READY_FILE, ready)
        print(describe(self._machine, self._settings.master), flush=True)

    def _disconnected(self) -> None:
        self._deliver(e.MasterDisconnected(now=time.time()))

    def _master_said(self, message: node_pb2.MasterMessage) -> None:
        now, epoch = time.time(), message.epoch
        kind = message.WhichOneof("message")
        if kind == "assign" and not self._ending.is_set():
            self._assigned(message)
        elif kind == "stop":
            stop = message.stop
            cause = wire.to_end(common_pb2.ContainerEnd(cause=stop.cause)).cause
            event = e.StopReceived(
                now=now,
                epoch=epoch,
                container_id=ContainerId(stop.container_id),
                cause=cause,
                reason=stop.reason,
                grace_s=stop.grace_s,
                only_if_waiting=stop.only_if_waiting,
                decommission=stop.decommission,
            )
            self._deliver(event)
        elif kind == "acknowledge":
            ids = tuple(ContainerId(i) for i in message.acknowledge.container_ids)
            if epoch >= self._core.epoch:
                for container_id in ids:
                    self._containers.acknowledge(container_id)
            self._deliver(e.EndsAcknowledged(now=now, epoch=epoch, container_ids=ids))
        elif kind == "drop_shuffle_files":
            if self._shuffle is not None and epoch >= self._core.epoch:
                application_id = ApplicationId(message.drop_shuffle_files.application_id)
                removing = asyncio.create_task(self._shuffle.forget(application_id))
                self._removing.add(removing)
                removing.add_done_callback(self._removing.discard)
        elif kind == "rebind":
            rebind = message.rebind
            wish = wire.to_binding(rebind)
            self._deliver(
                e.RebindReceived(now=now, epoch=epoch, request_id=rebind.request_id, **wish)
            )
        elif kind == "set_class":
            changed = message.set_class
            workload_class = wire.to_class(changed.workload_class, "set_class.workload_class")
            if workload_class is not None:
                container_id = ContainerId(changed.container_id)
                self._deliver(
                    e.ContainerClassSet(
                        now=now,
                        epoch=epoch,
                        container_id=container_id,
                        workload_class=workload_class,
                    )
                )

    def _assigned(self, message: node_pb2.MasterMessage) -> None:
        spec = wire.to_spec(message.assign)
        self._containers.work_dir(spec.container_id)  # refuses an id that cannot name one
        self._deliver(e.AssignReceived(now=time.time(), epoch=message.epoch, spec=spec))


async def run(settings: AgentSettings, command_of: CommandOf | None = None) -> int:
    """Be an agent until a signal ends it; the exit status.

    ``command_of`` makes the containers' commands; Spark executors where it is not given.
    """
    configure_logging()
    try:
        token = rpc.read_token(settings.token_file)
        with Machine.prepare(settings) as machine:
            shortcuts: Shortcuts | None = None
            versions: tuple[str, ...] = ()
            if command_of is None:
                command_of, versions, shortcuts = _spark_commands(settings, machine)
            for remark in machine.remarks:
                _log.info("how containers are kept apart", what=remark)
            for name, why in machine.isolation.passed_over.items():
                _log.info("isolation passed over", driver=name, why=why)
            shuffle = _shuffle_service(settings, run_as=machine.run_as.active)
            agent = Agent(settings, machine, token, command_of, versions, shortcuts, shuffle)
            await agent.live()
    except HrmError as error:
        print(f"hrm agent: {error.message}", file=sys.stderr, flush=True)
        return 1
    return 0


def _shuffle_service(settings: AgentSettings, *, run_as: bool) -> ShuffleService | None:
    if not settings.shuffle_service:
        return None
    if run_as:
        raise InvalidConfig(
            "shuffle_service and run_as = submitter exclude each other: the service reads shuffle "
            "files as root, and a link in the place of one would let any user read any file; set "
            "run_as = off, leave shuffle_service out, or run the agent as another user than root"
        )
    return ShuffleService(
        directory=settings.work_dir.absolute() / SHUFFLE_DIR,
        port=settings.shuffle_service_port,
        memory_mib=settings.shuffle_service_memory_mib,
        spark=find_spark(settings.spark_home),
        java=find_java(settings.java_home),
    )


async def _cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def _spark_commands(
    settings: AgentSettings, machine: Machine
) -> tuple[CommandOf, tuple[str, ...], Shortcuts]:
    spark, java = find_spark(settings.spark_home), find_java(settings.java_home)
    shortcuts = Shortcuts(settings, spark, java)

    def command_of(
        spec: ContainerSpec, work_dir: Path, stdout: str, stderr: str, gpu: Gpu | None
    ) -> Launch:
        account = machine.run_as.account_of(spec.user)
        if spec.launch.driver:
            return driver_launch(
                spec,
                spark=spark,
                java=java,
                settings=settings,
                work_dir=work_dir,
                cache_dir=file_cache.own_place(files_dir(settings), account),
            )
        return executor_launch(
            spec,
            spark=spark,
            java=java,
            host=settings.host,
            work_dir=work_dir,
            stdout_url=stdout,
            stderr_url=stderr,
            gpu=gpu,
            archive=shortcuts.archives.choose(spec, other_user=account is not None),
        )

    return command_of, (spark.version,), shortcuts


def _batch_that_waits_first(status: ContainerStatus) -> tuple[bool, bool]:
    """A key to sort by: batch that waits, streams that wait, everybody else."""
    stream = status.workload_class is WorkloadClass.STREAM
    return (status.state is not ContainerState.WAITING, stream)


def _socket(work_dir: Path) -> Path | None:
    """Where the socket for GPUs is; None: the system takes no path of this length."""
    path = work_dir.absolute() / "gpus.sock"
    return path if len(str(path).encode()) < _SOCKET_PATH_MAX else None
