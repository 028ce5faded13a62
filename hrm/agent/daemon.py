"""``hrm agent``: the interpreter around ``NodeCore`` on a live machine.

Everything that happens (a message, an end, a sample, the clock) becomes an event of the core, and
these modules carry out its commands:

    link        the stream to and from the master      containers  commands, processes, their
    reports     what is reported to the master                     starts and stops, logs
    tracker     samples of usage, breached limits      server      log pages
    parts       what is specific to an agent of Spark

While the master is unreachable the core continues, and the next registration reports all of it.

SIGTERM or SIGINT first ends the containers with a grace period, then the agent (a second signal
ends the grace period). A crash leaves the containers running for the next agent on this directory,
and so does SIGTERM with ``keep_containers``.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import time
from dataclasses import replace
from functools import partial

import grpc.aio
import structlog

from hrm import descriptors, rpc, tls
from hrm.agent import isolation as isolating
from hrm.agent.containers import shim
from hrm.agent.containers.app_files import application_files
from hrm.agent.containers.containers import ContainerSupervisor, Ended
from hrm.agent.containers.log_links import LogLinks
from hrm.agent.containers.logs import Logs
from hrm.agent.containers.processes import Processes
from hrm.agent.containers.scratch import SHUFFLE_DIR, Scratch
from hrm.agent.disk_watch import DiskWatch
from hrm.agent.enrolment import enrolled
from hrm.agent.gpu.mps import Mps
from hrm.agent.housekeeping import Housekeeping
from hrm.agent.link import Link
from hrm.agent.machine import Machine, describe, ending, keep_binding
from hrm.agent.parts import (
    CommandOf,
    StartShortcuts,
    gpu_use_records,
    shuffle_service,
    spark_commands,
)
from hrm.agent.reports import Reports
from hrm.agent.server import serve
from hrm.agent.shuffle import ShuffleService
from hrm.agent.tracker import Sample, Tracker
from hrm.agent.workers import check_policy
from hrm.config import AgentSettings
from hrm.core.messages import commands as c
from hrm.core.messages import events as e
from hrm.core.vocabulary.model import (
    ContainerEnd,
    ContainerId,
    ContainerSpec,
    ContainerState,
    ContainerStatus,
    EndCause,
    Followed,
    WorkloadClass,
)
from hrm.core.vocabulary.node_requirement import Runtime
from hrm.errors import HrmError, InvalidConfig, StaleEpoch
from hrm.identity.registry import NodeAuthority
from hrm.tls_server import server_tls
from hrm.v1 import node_pb2
from hrm.wire import node_stream as node_wire

__all__ = ["READY_FILE", "Agent", "run"]

READY_FILE = "ready.json"
_STOP_MARGIN_S = 30.0
_FLUSH_LIMIT_S = 3.0
_log = structlog.get_logger("hrm.agent")


class Agent:
    """One agent from start to end, which is ``run``."""

    def __init__(
        self,
        settings: AgentSettings,
        machine: Machine,
        token: str,
        command_of: CommandOf,
        runtimes: tuple[Runtime, ...],
        shortcuts: StartShortcuts | None = None,
        shuffle: ShuffleService | None = None,
        scratch: Scratch | None = None,
    ) -> None:
        self._scratch = scratch or Scratch()
        self._shortcuts = shortcuts
        self._settings = settings
        self._shuffle = shuffle
        self._machine = machine
        self._authority = NodeAuthority(token)
        self._tls = server_tls(settings)
        self._gpu_uses = gpu_use_records(settings, machine)
        policy = self._gpu_uses.policy if self._gpu_uses is not None else None
        self._core = machine.core(settings, policy)
        self._containers = self._supervising()
        self._tracker = self._watching()
        self._mps = Mps(settings.mps, settings.work_dir, machine.hardware.gpus)
        links = LogLinks(
            machine.ownership_key, asked_s=settings.log_link_s, keep_s=settings.log_links_keep_s
        )
        self._logs = Logs(self._containers.dir, links, self._is_over)
        self._reports = Reports(
            settings,
            machine,
            self._core,
            logs=self._logs,
            mps=self._mps,
            shortcuts=shortcuts,
            runtimes=runtimes,
            gpu_uses=self._gpu_uses,
        )
        self._processes = Processes(
            self._containers,
            command_of=command_of,
            machine=machine,
            logs=self._logs,
            mps=self._mps,
            tracker=self._tracker,
            shuffle=shuffle,
            on_start=self._started,
            on_failure=self._ended,
        )
        self._loop = asyncio.get_running_loop()
        self._housekeeping = Housekeeping(settings, self._containers, self._core, shuffle)
        self._ending = asyncio.Event()
        self._keeping = False
        self._end_now = asyncio.Event()
        self._link = self._to_master()

    def _to_master(self) -> Link:
        return Link(
            target=self._settings.master,
            open_channel=self._open_channel,
            register=self._reports.registration,
            on_message=self._message_received,
            on_up=self._connected,
            on_down=lambda: self._deliver(e.MasterDisconnected(now=time.time())),
            heartbeat=lambda: self._deliver(e.HeartbeatDue(now=time.time())),
            delay_max_s=self._settings.reconnect_delay_max_s,
            proven=self._tls is not None,
        )

    def _supervising(self) -> ContainerSupervisor:
        settings, machine, shortcuts = self._settings, self._machine, self._shortcuts
        return ContainerSupervisor(
            settings.work_dir,
            machine.isolation.driver,
            rebuild=self._rebuild_isolation,
            log_bytes_max=settings.log_bytes_max,
            log_files_max=settings.log_files_max,
            on_end=self._container_ended,
            account_of=machine.run_as.account_of,
            warm=shortcuts.warm if shortcuts is not None else None,
            scratch=self._scratch,
            files=application_files(settings),
            unpacked_bytes_max=settings.unpacked_mib_max << 20,
        )

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
                free_min_mib=settings.disk_free_min_mib,
                shuffle_dirs=self._scratch.shuffle_places or (settings.work_dir / SHUFFLE_DIR,),
                scratch_dirs=self._scratch.places,
                leaving=self._containers.leaving,
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
        self._authority.token = rpc.read_token(self._settings.token_file)
        return _channel(self._settings)

    # --- the life of the agent ----------------------------------------------------------------

    async def live(self) -> None:
        """Serve until requested to end. Raises an error that makes continuing pointless."""
        async with contextlib.AsyncExitStack() as stack:
            self._reports.endpoint = await serve(
                stack,
                self._settings,
                self._authority,
                self._logs,
                secure=self._tls,
            )
            self._tracker.start()
            stack.push_async_callback(asyncio.to_thread, self._tracker.stop)
            stack.push_async_callback(self._containers.close)
            await asyncio.to_thread(self._mps.start)
            await self._adopt()
            if self._shortcuts is not None:
                self._shortcuts.start()
                stack.push_async_callback(self._shortcuts.close)
            for number in (signal.SIGTERM, signal.SIGINT):
                self._loop.add_signal_handler(number, self._end_signalled, number)
                stack.callback(self._loop.remove_signal_handler, number)
            if self._shuffle is not None:
                serving = asyncio.create_task(self._shuffle.run())
                stack.push_async_callback(_cancelled, serving)
            cleaning = asyncio.create_task(self._housekeeping.run())
            linked = asyncio.create_task(self._link.run())
            end_requested = asyncio.create_task(self._ending.wait())
            try:
                await asyncio.wait((linked, end_requested), return_when=asyncio.FIRST_COMPLETED)
                if linked.done():
                    # The agent fails, not its containers.
                    self._keeping = self._settings.keep_containers
                    linked.result()
            finally:
                self._ending.set()
                await (self._leave_containers() if self._keeping else self._end_containers())
                if not self._containers.running:
                    await asyncio.to_thread(self._mps.stop)
                await self._link.close(_FLUSH_LIMIT_S)
                if self._gpu_uses is not None:
                    self._gpu_uses.save()
                for task in (cleaning, linked, end_requested):
                    task.cancel()
                await asyncio.gather(cleaning, linked, end_requested, return_exceptions=True)
                (self._settings.work_dir / READY_FILE).unlink(missing_ok=True)
                self._machine.isolation.driver.close()

    def _end_signalled(self, number: int) -> None:
        if self._ending.is_set():
            self._end_now.set()
        else:
            self._keeping = number == signal.SIGTERM and self._settings.keep_containers
        self._ending.set()

    async def _adopt(self) -> None:
        for adopted in await self._containers.adopt():
            spec, order = adopted.spec, adopted.order
            self._processes.adopt(adopted)
            event = e.ContainerAdopted(
                now=time.time(), spec=spec, started_at_s=adopted.started_at_s
            )
            if order is not None:
                decommissioning = order.decommission
                event = replace(event, stopping=order.reason, decommissioning=decommissioning)
            self._deliver(event)
            _log.info("adopted", container=spec.container_id, running=adopted.ended is None)
            if adopted.ended is not None:
                self._container_ended(spec.container_id, adopted.ended)

    async def _leave_containers(self) -> None:
        """What runs is left to the next agent on this directory. What waits here would be lost,
        since none of it is on the disk."""
        await self._processes.all_started(_STOP_MARGIN_S)
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
        """Stop the waiting containers first, streams last of them, so that freed capacity starts
        none, and none is preempted for one that ends."""
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
        end_now = asyncio.create_task(self._end_now.wait())
        await asyncio.wait((ended, end_now), return_when=asyncio.FIRST_COMPLETED)
        end_now.cancel()
        if not ended.done():
            self._processes.end_now()
        await ended

    async def _all_ended(self, limit_s: float) -> None:
        await self._processes.all_started(limit_s)
        if await self._containers.drain(limit_s):
            return
        if self._containers.running:
            _log.error("containers still run; the next agent on this directory adopts them")
        else:
            _log.warning("files of containers are left; the next agent removes them")

    # --- events in, commands out --------------------------------------------------------------

    def _deliver(self, event: e.NodeEvent) -> None:
        for command in self._core.handle(event):
            match command:
                case c.StartProcess():
                    unit = self._core.units[command.spec.unit_id].unit
                    self._processes.start(command.spec, unit)
                case c.StopProcess():
                    spec = self._core.containers[command.container_id].spec
                    self._processes.stop(command, spec)
                case c.PinProcess():
                    self._processes.pin(command)
                case c.ReportContainer():
                    status = self._reports.status(command.status)
                    self._link.send(node_wire.from_container(status))
                case c.ReplyToRebinding():
                    self._link.send(node_wire.from_rebinding(command))
                    _log.info("another binding was requested", answer=command.message)
                case c.RegisterAgain():
                    self._register_again(command)
                case c.SendHeartbeat():
                    self._link.send(self._reports.heartbeat(command))
                case c.ForgetContainer():
                    self._containers.acknowledge(command.container_id)
                case c.DeleteShuffleFiles():
                    self._housekeeping.delete_shuffle_files(command.application_id)

    def _register_again(self, command: c.RegisterAgain) -> None:
        """The units have changed; report it to the master after this turn's other messages."""
        if command.why:
            _log.info("automatic binding", what=command.why)
        if command.binding is not None:
            try:
                keep_binding(self._settings, command.binding)
            except OSError as error:
                _log.warning("cannot keep the binding for the next start", why=str(error))
        self._loop.call_soon(self._link.reconnect)

    def _container_ended(self, container_id: str, ended: Ended) -> None:
        order = self._processes.ended(container_id) or ended.order
        limits = self._core.containers.get(ContainerId(container_id))
        spec = limits.spec if limits is not None else None
        self._ended(container_id, ending(ended, order, spec))

    def _started(self, spec: ContainerSpec) -> None:
        if self._gpu_uses is not None and self._is_over(spec.container_id) is False:
            self._gpu_uses.began(spec)

    def _ended(self, container_id: str, end: ContainerEnd) -> None:
        _log.info(
            "ended",
            container=container_id,
            cause=end.cause.value,
            exit_code=end.exit_code,
            message=end.message,
        )
        if self._gpu_uses is not None:
            self._gpu_uses.ended(ContainerId(container_id), end)
        now = time.time()
        self._deliver(e.ProcessEnded(now=now, container_id=ContainerId(container_id), end=end))

    def _is_over(self, container_id: str) -> bool | None:
        known = self._core.containers.get(ContainerId(container_id))
        return None if known is None else known.life.state is ContainerState.ENDED

    def _sampled(self, sample: Sample) -> None:
        """Called in the tracker's thread."""
        with contextlib.suppress(RuntimeError):  # the loop has closed: no receiver is left
            self._loop.call_soon_threadsafe(self._take, sample)

    def _take(self, sample: Sample) -> None:
        self._reports.sample = sample
        if self._gpu_uses is not None:
            self._gpu_uses.sampled(sample.gpu_uses)
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
            if sample.closed != self._core.closed:
                _log.warning("closed to new containers", why=sample.closed or "no longer")
                now, why = time.time(), sample.closed
                self._deliver(e.NodeClosed(now=now, why=why) if why else e.NodeOpened(now=now))

    # --- the master ---------------------------------------------------------------------------

    def _connected(self, master: Followed, first: bool) -> None:
        epoch = master.epoch
        if not self._core.accepts(epoch):
            raise StaleEpoch(
                f"the master at {self._settings.master} has epoch {epoch}, this node has followed "
                f"{self._core.epoch}; waiting for the newer one"
            )
        if self._gpu_uses is not None:
            self._gpu_uses.connected()
        connected = e.MasterConnected(now=time.time(), epoch=epoch, epoch_id=master.epoch_id)
        self._deliver(connected)
        if not first:
            _log.info("connected again", master=self._settings.master, epoch=epoch)
            return
        ready = {
            "name": self._machine.name,
            "endpoint": self._reports.endpoint,
            "log_pages": self._logs.address,
            "master": self._settings.master,
            "isolation": self._machine.isolation.driver.name,
        }
        shim.write_json(self._settings.work_dir / READY_FILE, ready)
        print(describe(self._machine, self._settings.master), flush=True)

    def _message_received(self, message: node_pb2.MasterMessage) -> None:
        if message.WhichOneof("message") == "policy":
            self._policy_ordered(message)
            return
        event = node_wire.to_event(message, time.time())
        if isinstance(event, e.AssignReceived):
            if self._ending.is_set():
                return
            self._containers.work_dir(event.spec.container_id)  # refuses an unusable id
        if event is not None:
            self._deliver(event)

    def _policy_ordered(self, message: node_pb2.MasterMessage) -> None:
        guard = self._gpu_uses.guard if self._gpu_uses is not None else None
        if guard is not None and self._core.accepts(message.epoch):
            guard.follow(message.policy)


async def run(settings: AgentSettings, command_of: CommandOf | None = None) -> int:
    """Run an agent until a signal ends it; returns the exit status.

    ``command_of`` makes the containers' commands; the default makes those of Spark.
    """
    descriptors.raise_limit()
    try:
        rpc.read_token(settings.token_file)  # first: a refusal must leave nothing behind
        check_policy(settings)
        with Machine.prepare(settings) as machine:
            token = await enrolled(settings, machine.name, partial(_channel, settings))
            shortcuts: StartShortcuts | None = None
            runtimes: tuple[Runtime, ...] = ()
            if command_of is None:
                command_of, runtimes, shortcuts = spark_commands(settings, machine)
            for remark in machine.remarks:
                _log.info("isolation of containers", what=remark)
            for name, why in machine.isolation.passed_over.items():
                _log.info("isolation passed over", driver=name, why=why)
            run_as = machine.run_as.active
            scratch = Scratch.of(settings, machine.identity, run_as=run_as)
            shuffle = shuffle_service(settings, scratch, run_as=run_as)
            agent = Agent(
                settings, machine, token, command_of, runtimes, shortcuts, shuffle, scratch
            )
            await agent.live()
    except HrmError as error:
        print(f"hrm agent: {error.message}", file=sys.stderr, flush=True)
        # The status that systemd does not try again: a wrong setting stays wrong.
        return 2 if isinstance(error, InvalidConfig) else 1
    return 0


def _channel(settings: AgentSettings) -> grpc.aio.Channel:
    """To the master."""
    token = rpc.read_token(settings.token_file)
    ca = tls.ca_file(settings.token_file, settings.tls_ca)
    allow = settings.allow_clear_text
    return rpc.channel(settings.master, token, tls.read_ca(ca), allow_clear_text=allow)


async def _cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def _batch_that_waits_first(status: ContainerStatus) -> tuple[bool, bool]:
    """A sort key: batch that waits, streams that wait, all others."""
    stream = status.workload_class is WorkloadClass.STREAM
    return (status.state is not ContainerState.WAITING, stream)
