"""The node's state machine: its resource units, their queues, and what runs.

The master commits and assigns; the node decides which container starts, by the rules of
``resource_unit``, the moment capacity appears. A container that ended is reported until the master
acknowledges it and its process is gone; then it is forgotten, on the disk as well. What comes from
a master older than the newest one seen is ignored; every order may arrive twice.

A binding partitions the hardware into units. Another one, requested by an operator or chosen by
``auto_partitioning``, is in force at once: what is idle moves, what runs keeps what it holds, and
follows when it ends (``layout``). Containers that wait where the new unit could hold them stay.

A node may close for a while, because its machine lacks what every container needs: none starts,
waiters go elsewhere, running ones run on, and its units are reported to the master as draining.

A stream that waits preempts batch containers of its unit, and whatever waits there those that yield
(``preemption``): the master gets a report as of every change, and the application requests others.

Source: HRM paper, sections 2.1 (queue system, resource tracker) and 3.3 (queue stacking).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from hrm.core.messages import commands as c
from hrm.core.messages import events as e
from hrm.core.messages.claims import Entry
from hrm.core.node.auto_partitioning import (
    AutoBinding,
    AutoBindingRules,
    sample_utilization,
)
from hrm.core.node.container_life import NodeContainerHappening
from hrm.core.node.gpu_waiters import GpuWaiterPolicy, GpuWaiters
from hrm.core.node.layout import carry_over, exceeds, held_at, no_gpu, settle
from hrm.core.node.node_container import NodeContainer, new_life
from hrm.core.node.preemption import preemptions
from hrm.core.queue.pools import queues_of
from hrm.core.queue.resource_unit import StartBatch, UnitQueue
from hrm.core.queue.yielding import yields_there
from hrm.core.vocabulary.bounds import (
    BOUNDS,
    GPU_WAITER_BOUNDS,
    PREEMPTION_GRACE_S,
    YIELD_GRACE_S,
    GpuWaiterBounds,
)
from hrm.core.vocabulary.feasibility import Vector, could_hold, demand_vector, fits, plus
from hrm.core.vocabulary.model import (
    NO_UNIT,
    NOTHING,
    ContainerEnd,
    ContainerId,
    ContainerSpec,
    ContainerState,
    ContainerStatus,
    EndCause,
    Followed,
    NodeName,
    ResourceUnit,
    ResourceUnitId,
)
from hrm.core.vocabulary.partitioning import (
    BindingMode,
    Hardware,
    Partitioning,
    partition,
)
from hrm.errors import InvalidRequest

__all__ = ["NodeCore"]

TOMBSTONES = 10_000


class NodeCore:
    """One node.

    Invariants:
        ``containers`` holds all and only the containers assigned here whose end the master has not
        acknowledged since their process is gone. Its WAITING ones are all and only those waiting in
        their unit's queue; its RUNNING and STOPPING ones all and only those running there.
        ``followed`` is the newest master; None: none since this node's agent started.
        ``units`` are those of ``binding``, as ``layout.settle`` has them for what runs here.
        ``_earlier``: the units of earlier bindings; a master may have granted what they could hold.
        ``closed``: why the node takes no containers, empty: it does. None waits while it is set.
    """

    def __init__(
        self,
        name: NodeName,
        units: tuple[ResourceUnit, ...],
        default_duration_s: float = BOUNDS.default_duration_s,
        *,
        hardware: Hardware | None = None,
        binding: Partitioning | None = None,
        auto_binding: AutoBindingRules | None = None,
        preemption_grace_s: float | None = PREEMPTION_GRACE_S,
        yield_grace_s: float = YIELD_GRACE_S,
        gpu_waiters: GpuWaiterPolicy | None = None,
        gpu_waiter_bounds: GpuWaiterBounds = GPU_WAITER_BOUNDS,
    ) -> None:
        """``units``: ``hardware`` partitioned by ``binding``; without it never partitioned again.

        ``auto_binding``: rules by which the node changes a partial binding itself; None: never.
        ``preemption_grace_s``: grace period of a preempted batch container; None: no preemption.
        ``yield_grace_s``: that of a container that yields, which any other that waits preempts; the
        units get it, for estimates. ``gpu_waiters``: chooses which batch starts next on a shared
        GPU; None: the order of the line does.
        """
        self.name = name
        self.hardware = hardware
        self.binding = binding or Partitioning()
        self._auto: AutoBinding | None = None
        if auto_binding is not None and hardware is not None:
            self._auto = AutoBinding(auto_binding, lambda b: partition(name, hardware, b))
        self.closed = ""
        self._earlier: dict[ResourceUnit, None] = {}
        self.yield_grace_s = yield_grace_s
        self._layout = self._with_grace(units)
        self.units: dict[ResourceUnitId, UnitQueue] = queues_of(self._layout)
        self.containers: dict[ContainerId, NodeContainer] = {}
        self.followed: Followed | None = None
        self.connected = False
        self._default_duration_s = default_duration_s
        self.preemption_grace_s = preemption_grace_s
        self.gpu_waiters: GpuWaiters | None = None
        if gpu_waiters is not None:
            self.gpu_waiters = GpuWaiters(gpu_waiters, self.containers, gpu_waiter_bounds)
        self._tombstones: dict[ContainerId, None] = {}
        self._out: list[c.NodeCommand] = []

    def handle(self, event: e.NodeEvent) -> list[c.NodeCommand]:
        """Take in one event; returns the commands that follow, in order."""
        match event:
            case e.ReceivedFromMaster() if not self.accepts(event.epoch):
                return []
            case e.ReceivedFromMaster():
                self._follow(event)
        match event:
            case e.AssignReceived():
                self._assign(event)
            case e.StopReceived():
                self._stop(event)
            case e.EndsAcknowledged():
                self._forget(event)
            case e.ContainerClassSet():
                self._set_class(event)
            case e.RebindReceived():
                self._rebind(event)
            case e.ApplicationEnded():
                self._out.append(c.DeleteShuffleFiles(application_id=event.application_id))
            case e.ProcessEnded():
                self._process_ended(event)
            case e.ContainerAdopted():
                self._adopt(event)
            case e.ContainerOverLimit():
                self._over_limit(event)
            case e.UsageMeasured():
                self._measured(event)
            case e.NodeClosed():
                self._close(event)
            case e.NodeOpened():
                if self.closed:
                    self.closed = ""
                    self._out.append(c.RegisterAgain(binding=None))
            case e.HeartbeatDue():
                self._return_kept_back(event.now)
                self._out.append(c.SendHeartbeat(statuses=self.statuses()))
            case e.MasterConnected():
                self.connected = True
            case e.MasterDisconnected():
                self.connected = False
        out, self._out = self._out, []
        return out

    @property
    def offers(self) -> tuple[ResourceUnit, ...]:
        """The units as reported to the master: those of a closed node take nothing new, and what
        waits for a stream's preemption waits in vain where there is none."""
        preempts = self.preemption_grace_s is not None
        units = (replace(queue.unit, preempts=preempts) for queue in self.units.values())
        return tuple(replace(x, draining=True) if self.closed else x for x in units)

    @property
    def settled(self) -> bool:
        """Is its layout in force, with no container left that holds what is another unit's?"""
        return tuple(queue.unit for queue in self.units.values()) == self._layout

    def statuses(self) -> tuple[ContainerStatus, ...]:
        """Every container that the master has not yet acknowledged, ended ones included."""
        return tuple(container.status(self.name) for container in self.containers.values())

    @property
    def epoch(self) -> int:
        return 0 if self.followed is None else self.followed.epoch

    def accepts(self, epoch: int) -> bool:
        """Is a master of this epoch none that has been replaced?"""
        return epoch >= self.epoch

    def _follow(self, event: e.ReceivedFromMaster) -> None:
        """A master's epoch may rise while it is connected; its id is that of its process."""
        if isinstance(event, e.MasterConnected):
            self.followed = Followed(event.epoch, event.epoch_id)
        elif event.epoch > self.epoch:
            epoch_id = "" if self.followed is None else self.followed.epoch_id
            self.followed = Followed(event.epoch, epoch_id)

    def _assign(self, event: e.AssignReceived) -> None:
        spec, by = event.spec, NodeContainerHappening.ORDERED
        known = self.containers.get(spec.container_id)
        if known is not None and not known.life.takes(by):
            self._report(known)
            return
        container = NodeContainer(spec, new_life(spec.container_id), event.now)
        self.containers[spec.container_id] = container
        if spec.container_id in self._tombstones:
            message = f"it has ended on {self.name} before"
            end = ContainerEnd(cause=EndCause.LOST, message=message)
            self._end(container, by, end, event.now)
            return
        unit = self.units.get(spec.unit_id)
        if self.closed or (unit is not None and unit.unit.draining):
            self._end(container, by, self._preempted(spec.unit_id), event.now)
            return
        if unit is None or not _holds(unit.unit, spec):
            what = "has no such resource unit" if unit is None else "is too small for it"
            message = f"{self.name} {what}: {spec.unit_id}"
            was_right = any(x.unit_id == spec.unit_id and _holds(x, spec) for x in self._earlier)
            cause = EndCause.PREEMPTED if was_right else EndCause.LAUNCH_FAILED
            self._end(container, by, ContainerEnd(cause=cause, message=message), event.now)
            return
        container.life.follow(by, ContainerState.WAITING, event.now, "assigned")
        unit.enqueue(self._entry(spec))
        if spec.container_id not in self._start_all(unit, event.now):
            self._report(container)

    def _stop(self, event: e.StopReceived) -> None:
        container = self.containers.get(event.container_id)
        if container is None:
            return
        by = NodeContainerHappening.STOPPED
        if event.only_if_waiting:
            by = NodeContainerHappening.WITHDRAWN
        elif event.decommission:
            by = NodeContainerHappening.DECOMMISSIONED
        if not container.life.takes(by):
            self._report(container)
        elif container.life.state is ContainerState.WAITING:
            end = ContainerEnd(cause=event.cause, message=event.reason)
            self._end(container, by, end, event.now)
        elif container.life.take(by, event.now, event.reason):
            cause, decommission = event.cause, event.decommission
            self._stop_running(
                container, cause, event.reason, event.grace_s, decommission=decommission
            )
        elif container.decommissioning:
            # What it does in its grace period for preemption is no longer needed.
            self._stop_process(container, event.cause, event.reason, event.grace_s)
        else:
            self._report(container)

    def _stop_running(
        self,
        container: NodeContainer,
        cause: EndCause,
        reason: str,
        grace_s: float,
        *,
        decommission: bool = False,
    ) -> None:
        """It ran until now."""
        self._stop_process(container, cause, reason, grace_s, decommission=decommission)
        self._report(container)

    def _stop_process(
        self,
        container: NodeContainer,
        cause: EndCause,
        reason: str,
        grace_s: float,
        *,
        decommission: bool = False,
    ) -> None:
        container.decommissioning = decommission
        self._out.append(
            c.StopProcess(
                container_id=container.spec.container_id,
                cause=cause,
                reason=reason,
                grace_s=grace_s,
                decommission=decommission,
            )
        )

    def _preempt(self, queue: UnitQueue, now: float) -> None:
        """Preempt batch containers for the streams that wait, and what yields for anything that
        does."""
        grace_s = self.preemption_grace_s
        streams_wait = any(unit.stream_waiting for unit in queue.pool)
        may_yield = queue.line or streams_wait
        yields = may_yield and (queue.yielding or len(queue.pool) > 1) and yields_there(queue)
        if not yields and not (streams_wait and grace_s is not None):
            return
        ending = _ending(self.containers)
        owners = {x: k.spec.application_id for x, k in self.containers.items()}
        may = grace_s is not None
        batch = self._batch_order(queue)
        for preemption in preemptions(queue, ending, owners, now, preempts_batch=may, batch=batch):
            victim, cause = self.containers[preemption.victim], EndCause.PREEMPTED
            reason = f"it is preempted for the stream container {preemption.waiter}"
            time_s = grace_s
            if preemption.yields:
                reason = f"it yields to the container {preemption.waiter}"
                time_s = self.yield_grace_s
            assert time_s is not None, "only what yields is preempted where batch is not"
            victim.life.take(NodeContainerHappening.PREEMPTED, now, reason)
            # What yields has no place here: its replacement goes wherever something is idle.
            victim.preempted = not preemption.yields
            self._stop_running(victim, cause, reason, time_s, decommission=True)

    def _over_limit(self, event: e.ContainerOverLimit) -> None:
        container = self.containers.get(event.container_id)
        by = NodeContainerHappening.OVER_LIMIT
        if container is None:
            return
        if container.life.take(by, event.now, event.message):
            self._stop_running(container, event.cause, event.message, 0.0)
        elif container.decommissioning:
            self._stop_process(container, event.cause, event.message, 0.0)

    def _close(self, event: e.NodeClosed) -> None:
        is_new, self.closed = not self.closed, event.why
        self._end_waiting(event.now)
        if is_new:
            self._out.append(c.RegisterAgain(binding=None))

    def _forget(self, event: e.EndsAcknowledged) -> None:
        for container_id in event.container_ids:
            container = self.containers.get(container_id)
            if container is None or container.has_process:
                continue
            if container.life.takes(NodeContainerHappening.ACKNOWLEDGED):
                del self.containers[container_id]
                self._tombstones[container_id] = None
                self._out.append(c.ForgetContainer(container_id=container_id))
        while len(self._tombstones) > TOMBSTONES:
            del self._tombstones[next(iter(self._tombstones))]

    def _set_class(self, event: e.ContainerClassSet) -> None:
        container = self.containers.get(event.container_id)
        if container is None or not container.life.takes(NodeContainerHappening.CLASS_SET):
            return
        container.spec = replace(container.spec, workload_class=event.workload_class)
        unit = self.units[container.spec.unit_id]
        if unit.reclassify(event.container_id, event.workload_class):
            self._start_all(unit, event.now)

    def _process_ended(self, event: e.ProcessEnded) -> None:
        container = self.containers.get(event.container_id)
        by = NodeContainerHappening.PROCESS_ENDED
        if container is None:
            return
        container.has_process = False
        if container.life.takes(by):
            self._end(container, by, event.end, event.now)

    def _adopt(self, event: e.ContainerAdopted) -> None:
        spec, by = event.spec, NodeContainerHappening.ADOPTED
        known = self.containers.get(spec.container_id)
        if known is not None and not known.life.takes(by):
            return
        container = NodeContainer(spec, new_life(spec.container_id), event.started_at_s)
        container.has_process = True
        self.containers[spec.container_id] = container
        if not self._has_capacity(spec, event.now):
            message = f"{self.name} restarted without capacity for it at {spec.unit_id}"
            self._stop_process(container, EndCause.KILLED, message, 0.0)
            end = ContainerEnd(cause=EndCause.KILLED, message=message)
            self._end(container, by, end, event.now)
            return
        state = ContainerState.STOPPING if event.stopping else ContainerState.RUNNING
        container.life.follow(by, state, event.now, event.stopping or "adopted")
        container.started_at_s = event.started_at_s
        self.units[spec.unit_id].run(self._entry(spec), event.started_at_s)
        self._pin((spec.container_id,))
        container.decommissioning = bool(event.stopping) and event.decommissioning
        self._report(container)

    def _end(
        self, container: NodeContainer, by: NodeContainerHappening, end: ContainerEnd, now: float
    ) -> None:
        container.life.follow(by, ContainerState.ENDED, now, end.message or end.cause.value)
        container.ended_at_s = now
        container.end = end
        self._report(container)
        unit = self.units.get(container.spec.unit_id)
        if unit is not None and unit.remove(container.spec.container_id) is not None:
            target = next((x for x in self._layout if x.unit_id == unit.unit.unit_id), None)
            if exceeds(unit.unit, target) and self._settle(now):
                self._out.append(c.RegisterAgain(binding=None))
            else:
                self._start_all(unit, now)

    def _rebind(self, event: e.RebindReceived) -> None:
        names = ("mode", "bound_cores", "reserve_cores")
        changes = {x: value for x in names if (value := getattr(event, x)) is not None}
        binding = replace(self.binding, **changes)
        try:
            if self.hardware is None:
                raise InvalidRequest(
                    f"{self.name} does not know its hardware, and cannot be partitioned"
                )
            offers_gpus = bool(self.hardware.gpus[: binding.gpu_limit])
            if not offers_gpus and (event.concerns_gpus or binding != self.binding):
                raise InvalidRequest(no_gpu(len(self.hardware.gpus), self.binding))
            units = partition(self.name, self.hardware, binding)
        except InvalidRequest as error:
            self._reply_to_rebinding(
                event, False, f"{self.name} cannot be bound so: {error.message}"
            )
            return
        self._bind(binding, units, event.now)
        message = f"{self.name} is bound: {binding}"
        held = [x for x in self.units.values() if x.unit.borrowed != NOTHING]
        if held:
            many = ", ".join(f"{len(x.running)} at {x.unit.unit_id}" for x in held)
            message += f"; running containers keep what they hold until they end: {many}"
        self._reply_to_rebinding(event, True, message)

    def _measured(self, event: e.UsageMeasured) -> None:
        """Let the node change its own binding."""
        if self._auto is None or self.hardware is None:
            return
        no_gpu = all(unit.gpu is None for unit in self._layout)
        if self.binding.mode is not BindingMode.PARTIAL or no_gpu:
            self._auto.forget()
            return
        sample = sample_utilization(
            self.name, self.hardware, self.binding, self.units.values(), dict(event.cpu_percent)
        )
        decision = self._auto.measured(event.now, self.binding, sample, may_begin=self.connected)
        if decision is not None:
            units = partition(self.name, self.hardware, decision.binding)
            why = f"rebound ({decision.binding}): {decision.why}"
            self._bind(decision.binding, units, event.now, why)

    def _bind(
        self, binding: Partitioning, units: tuple[ResourceUnit, ...], now: float, why: str = ""
    ) -> None:
        """Put a binding in force."""
        self._earlier.update(dict.fromkeys(self._layout))
        self.binding, self._layout = binding, self._with_grace(units)
        self._settle(now)
        self._out.append(c.RegisterAgain(binding=binding, why=why))

    def _settle(self, now: float) -> bool:
        """Give each unit what the layout and what runs let it have now; False: it has that."""
        units = self._settled_with({})
        assert units is not None, "what runs here was started within the node's capacity"
        if not self._put_in_force(units, now):
            return False
        for queue in self.units.values():
            self._start_all(queue, now)
        return True

    def _settled_with(
        self, more: Mapping[ResourceUnitId, Vector]
    ) -> tuple[ResourceUnit, ...] | None:
        """See ``layout.settle``. ``more``: held besides what runs."""
        held = {unit_id: held_at(queue) for unit_id, queue in self.units.items()}
        for unit_id, demand in more.items():
            held[unit_id] = plus(held[unit_id], demand) if unit_id in held else demand
        units = settle(self._layout, [queue.unit for queue in self.units.values()], held)
        # One that neither the layout nor the node has any more is known by what runs there alone.
        return None if units is None else self._with_grace(units)

    def _with_grace(self, units: tuple[ResourceUnit, ...]) -> tuple[ResourceUnit, ...]:
        """The units with the node's grace period of what yields, which is the same in all."""
        return tuple(replace(unit, yield_grace_s=self.yield_grace_s) for unit in units)

    def _put_in_force(self, units: tuple[ResourceUnit, ...], now: float) -> bool:
        old = {unit_id: queue.unit for unit_id, queue in self.units.items()}
        if tuple(old.values()) == units:
            return False
        self.units, turned_away = carry_over(
            self.units, units, lambda x: self.containers[x].assigned_at_s
        )
        for container_id in turned_away:
            container = self.containers[container_id]
            end = self._preempted(container.spec.unit_id)
            self._end(container, NodeContainerHappening.UNIT_CLOSED, end, now)
        for unit in units:
            if unit.unit_id not in old or unit.cpus != old[unit.unit_id].cpus:
                self._pin(self.units[unit.unit_id].running)
        return True

    def _pin(self, containers: Iterable[ContainerId]) -> None:
        """Hold running containers on the cores of their units."""
        if self.hardware is None or not self.hardware.pins:
            return
        for container_id in containers:
            unit = self.units[self.containers[container_id].spec.unit_id].unit
            self._out.append(c.PinProcess(container_id=container_id, cpus=unit.cpus))

    def _has_capacity(self, spec: ContainerSpec, now: float) -> bool:
        """Make sure that the unit of a container that runs already has capacity for it, where the
        node has."""
        unit_id, demand = spec.unit_id, demand_vector(spec.resources)
        if unit_id in self.units and fits(demand, self.units[unit_id].free):
            return True
        units = self._settled_with({unit_id: demand})
        if units is not None:
            self._put_in_force(units, now)
        return units is not None

    def _end_waiting(self, now: float) -> None:
        """The node takes no containers any more."""
        by = NodeContainerHappening.UNIT_CLOSED
        for container in list(self.containers.values()):
            if container.life.takes(by):
                self._end(container, by, self._preempted(container.spec.unit_id), now)

    def _reply_to_rebinding(self, event: e.RebindReceived, accepted: bool, message: str) -> None:
        self._out.append(
            c.ReplyToRebinding(request_id=event.request_id, accepted=accepted, message=message)
        )

    def _preempted(self, unit_id: ResourceUnitId) -> ContainerEnd:
        message = f"{unit_id} was partitioned again, and cannot hold it any more"
        if self.closed:
            message = f"{self.name} takes no containers: {self.closed}"
        return ContainerEnd(cause=EndCause.PREEMPTED, message=message)

    def _start_all(self, unit: UnitQueue, now: float) -> list[ContainerId]:
        if self.closed:
            return []
        ending = _ending(self.containers) if unit.line and unit.yielding_line else set()
        batch = self._batch_order(unit)
        started = [entry.container_id for entry in unit.start_all(now, ending, batch)]
        for container_id in started:
            container = self.containers[container_id]
            container.life.take(NodeContainerHappening.STARTED, now, "its unit has capacity")
            container.started_at_s = now
            container.has_process = True
            self._out.append(c.StartProcess(spec=container.spec))
            self._report(container)
        self._preempt(unit, now)
        return started

    def _batch_order(self, unit: UnitQueue) -> StartBatch | None:
        """What starts the batch of the unit's pool in another order than that of its line."""
        order = self.gpu_waiters
        return order.start_batch if order is not None and order.concerns(unit.pool) else None

    def _return_kept_back(self, now: float) -> None:
        """What has been kept back for too long is requested again, wherever there is a place."""
        if self.gpu_waiters is None:
            return
        for container_id in self.gpu_waiters.kept_too_long(self.units.values(), now):
            container = self.containers[container_id]
            message = (
                f"next to what runs at {container.spec.unit_id} it is expected to need more device "
                f"memory than there is, by what such containers have used"
            )
            end = ContainerEnd(cause=EndCause.PREEMPTED, message=message)
            if container.life.takes(NodeContainerHappening.UNIT_CLOSED):
                self._end(container, NodeContainerHappening.UNIT_CLOSED, end, now)

    def _entry(self, spec: ContainerSpec) -> Entry:
        duration_s = spec.expected_duration_s or self._default_duration_s
        demand = demand_vector(spec.resources)
        place = spec.unit_id if spec.stands_first else NO_UNIT
        return Entry(
            spec.container_id,
            spec.workload_class,
            demand,
            duration_s,
            place=place,
            yields=spec.yields,
        )

    def _report(self, container: NodeContainer) -> None:
        self._out.append(c.ReportContainer(status=container.status(self.name)))


def _ending(containers: Mapping[ContainerId, NodeContainer]) -> set[ContainerId]:
    """What has been ordered to end."""
    stopping = ContainerState.STOPPING
    return {x for x, k in containers.items() if k.life.state is stopping}


def _holds(unit: ResourceUnit, spec: ContainerSpec) -> bool:
    return could_hold(demand_vector(spec.resources), unit)
