"""Carries out the core's commands on processes: makes a container's command from its specification,
starts it and stops it.

An order to stop a container that is still starting waits for the start to finish. An order is kept
until the container has ended, because it is then the reason of the end.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace

import structlog

from hrm.agent.containers.containers import Adopted, ContainerSupervisor, StopOrder
from hrm.agent.containers.logs import Logs
from hrm.agent.gpu.mps import Mps
from hrm.agent.machine import Machine
from hrm.agent.parts import CommandOf
from hrm.agent.shuffle import ShuffleService
from hrm.agent.tracker import Tracker
from hrm.core.messages import commands as c
from hrm.core.vocabulary.model import ContainerEnd, ContainerSpec, EndCause, ResourceUnit
from hrm.errors import HrmError, Misplaced, Unsuitable

__all__ = ["Processes"]

_log = structlog.get_logger("hrm.agent")


class Processes:
    """Containers that start, run, and are to stop. One event loop."""

    def __init__(
        self,
        containers: ContainerSupervisor,
        *,
        command_of: CommandOf,
        machine: Machine,
        logs: Logs,
        mps: Mps,
        tracker: Tracker,
        shuffle: ShuffleService | None,
        on_start: Callable[[ContainerSpec], None],
        on_failure: Callable[[str, ContainerEnd], None],
    ) -> None:
        """``on_start``: a container has a process. ``on_failure``: it could not be started."""
        self._containers = containers
        self._command_of = command_of
        self._machine = machine
        self._logs = logs
        self._mps = mps
        self._tracker = tracker
        self._shuffle = shuffle
        self._on_start = on_start
        self._on_failure = on_failure
        self._starting: dict[str, asyncio.Task[None]] = {}
        self._pins: dict[str, tuple[int, ...]] = {}
        self._stops: dict[str, StopOrder] = {}

    def start(self, spec: ContainerSpec, unit: ResourceUnit) -> None:
        """Start a container on its unit, in the background."""
        task = asyncio.create_task(self._launch(spec, unit))
        self._starting[spec.container_id] = task
        task.add_done_callback(lambda _: self._starting.pop(spec.container_id, None))

    async def _launch(self, spec: ContainerSpec, unit: ResourceUnit) -> None:
        container_id = spec.container_id
        try:
            launch = self._command_of(
                spec,
                self._containers.work_dir(container_id),
                self._logs.url(container_id, "stdout", spec.user),
                self._logs.url(container_id, "stderr", spec.user),
                unit.gpus,
            )
            held = unit.gpus if spec.resources.gpu_memory_mib else ()
            closed = self._machine.gpu_devices.closed(held)
            shared = self._mps.environment(held, spec.resources.gpu_memory_mib)
            launch = replace(launch, environment={**launch.environment, **shared})
            if self._shuffle is not None and self._shuffle.serves(spec):
                launch = self._shuffle.prepare(spec, launch)
            await self._containers.start(spec, launch, unit.cpus, closed)
        except Exception as error:
            if not isinstance(error, HrmError):
                _log.exception("launching failed", container=container_id)
            order = self._stops.pop(container_id, None)
            self._pins.pop(container_id, None)
            end = ContainerEnd(cause=_cause_of(error), message=str(error))
            if order is not None and spec.launch.files:  # the order ended the start
                end = ContainerEnd(cause=order.cause, message=order.reason)
            self._on_failure(container_id, end)
            return
        if (cpus := self._pins.pop(container_id, None)) is not None:
            self._pin(container_id, cpus)
        self._track(spec)
        self._on_start(spec)
        _log.info("started", container=container_id, resources=str(spec.resources))

    def adopt(self, adopted: Adopted) -> None:
        """Take over a container of an earlier run of this agent."""
        spec = adopted.spec
        if adopted.ended is None:
            self._track(spec)
        if adopted.order is not None:
            self._stops[spec.container_id] = adopted.order

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

    def pin(self, command: c.PinProcess) -> None:
        """Hold a container on other CPUs; one that is still starting, once it has started.

        Within the call: what starts next may be given the CPUs that become free.
        """
        if command.container_id in self._starting:
            self._pins[command.container_id] = command.cpus
        else:
            self._pin(command.container_id, command.cpus)

    def _pin(self, container_id: str, cpus: tuple[int, ...]) -> None:
        try:
            self._containers.isolation_of(container_id).pin(container_id, cpus)
        except OSError as error:
            _log.warning(
                "a container stays on the CPUs of before, which others use now",
                container=container_id,
                why=f"{error.strerror} ({error.filename})",
            )

    def stop(self, command: c.StopProcess, spec: ContainerSpec) -> None:
        """Order a container to end, once it has started."""
        decommission = command.decommission and spec.launch.decommissions
        order = StopOrder(
            cause=command.cause,
            reason=command.reason,
            decommission=decommission,
            signal=spec.launch.decommission_signal,
        )
        self._stops[command.container_id] = order
        _log.info("stopping", container=command.container_id, why=command.reason)

        def stop(_: object = None) -> None:
            self._containers.stop(command.container_id, order, command.grace_s)

        starting = self._starting.get(command.container_id)
        if starting is None:
            stop()
        else:
            starting.add_done_callback(stop)
            self._containers.give_up_start(command.container_id)

    def end_now(self) -> None:
        """End the grace period of every container that was ordered to end."""
        for container_id, order in self._stops.items():
            self._containers.stop(container_id, order, 0.0)

    def ended(self, container_id: str) -> StopOrder | None:
        """Forget a container that has ended; returns the order that it followed, if any."""
        self._tracker.unwatch(container_id)
        return self._stops.pop(container_id, None)

    async def all_started(self, limit_s: float) -> None:
        """Wait for the starts that have begun, ``limit_s`` at most."""
        latest_s = time.monotonic() + limit_s
        while self._starting and (left_s := latest_s - time.monotonic()) > 0:
            await asyncio.wait(tuple(self._starting.values()), timeout=left_s)


def _cause_of(error: Exception) -> EndCause:
    """Of the end of a container that could not be started."""
    if isinstance(error, Misplaced):
        return EndCause.MISPLACED
    return EndCause.UNSUITABLE if isinstance(error, Unsuitable) else EndCause.LAUNCH_FAILED
