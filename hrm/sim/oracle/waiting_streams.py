"""Does a stream that waits for streams stop batch?

Streams have no end, so one may be queued at a unit only where batch could make capacity for it:
while it waits there no batch starts. That is checked for each grant. Once faults have stopped,
more things have a bound of time: a stream that other streams keep from starting, as one that was
batch when it was queued, is taken back; batch that fits a unit at which nothing waits starts, and
so do a gang and a stream if all that they lack fits such units together; batch that fits where
others yield to it is not left without a place; and what has waited long
at one unit goes to another that could start it, where that is allowed. So does a stream that waits
for batch which is not preempted, where elsewhere batch would be preempted for it; of several, the
one that has waited longest. And the stream that has waited longest for all that it lacks gets it
where batch holds it and is preempted, however much batch waits there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from hrm.core.master.core import MasterCore
from hrm.core.master.entities import Application, Container, Node
from hrm.core.messages import commands as c
from hrm.core.messages import events as e
from hrm.core.messages.claims import Entry
from hrm.core.queue.resource_unit import UnitQueue
from hrm.core.vocabulary.feasibility import Column, Vector, demand_vector
from hrm.core.vocabulary.model import (
    ApplicationId,
    ContainerId,
    ContainerState,
    NodeName,
    NodeState,
    WorkloadClass,
    is_driver,
)
from hrm.sim.faults.capacity import fits_offer, serves
from hrm.sim.faults.labels import meets
from hrm.sim.oracle.yielding import starts_soon

__all__ = ["WaitingStreams"]

_LIMIT_S = 10.0
"""Several times as long as a stop is on its way, and as the longest pause between two rounds."""


class WaitingStreams:
    """``_since_s``: of what should end soon, since when it has lasted."""

    def __init__(self, violated: Callable[[str], None], *, every_policy: bool) -> None:
        """``every_policy``: a policy may leave idle what it could have."""
        self._violated = violated
        self._every_policy = every_policy
        self._since_s: dict[str, float] = {}

    def master_began(self) -> None:
        self._since_s.clear()

    def after(
        self,
        core: MasterCore,
        event: e.MasterEvent,
        commands: Iterable[c.MasterCommand],
        quiet_since_s: float,
    ) -> None:
        if isinstance(event, e.ClaimsProposed):
            for command in commands:
                match command:
                    case c.SendToNode(message=c.AssignContainer(spec=spec)):
                        queue = core.master_state.state.find(spec.unit_id)
                        if queue is not None and _stays(queue, spec.container_id):
                            self._violated(
                                f"{spec.container_id} is to wait at {spec.unit_id}, where other "
                                f"streams hold what it needs"
                            )
        elif isinstance(event, e.Ticked) and event.now >= quiet_since_s:
            self._last(core, event.now)

    def _last(self, core: MasterCore, now: float) -> None:
        if core.master_state.recovering:
            self._since_s.clear()
            return
        limits_s = dict.fromkeys(_streams_held_up(core), _LIMIT_S)
        if not self._every_policy:
            limits_s |= dict.fromkeys(_batch_held_up(core, now), _LIMIT_S)
            # As many rounds, and then the time that those have which yield.
            limits_s |= dict.fromkeys(_not_yielded_to(core, now), 2 * _LIMIT_S)
            limits_s |= dict.fromkeys(_whole_held_up(core, now), _LIMIT_S)
            limits_s |= dict.fromkeys(_left_in_queues(core, now), _LIMIT_S)
            # Others may have been moved to the same unit until then.
            turn_s = core.master_state.bounds.relocation_wait_s
            limits_s |= dict.fromkeys(_left_with_kept_batch(core, now), _LIMIT_S + turn_s)
            if not core.queues.tree.governs:  # or it is batch of its own queue alone
                limits_s |= dict.fromkeys(_preempts_nothing(core, now), _LIMIT_S)
        self._since_s = {what: self._since_s.get(what, now) for what in limits_s}
        for what, since_s in self._since_s.items():
            if now - since_s >= limits_s[what]:
                self._violated(f"for {limits_s[what]:.0f} s {what}")
                return


def _streams_held_up(core: MasterCore) -> Iterator[str]:
    for node in core.master_state.nodes.values():
        for container in node.containers.values() if node.state is NodeState.ALIVE else ():
            queue = core.master_state.state.find(container.unit_id)
            app = core.master_state.applications[container.application_id]
            if (
                container.state is ContainerState.WAITING
                and queue is not None
                and not app.gang_min
                and not is_driver(container.application_id)
                and _stays(queue, container.container_id)
            ):
                yield (
                    f"{container.container_id} waits at {container.unit_id}, where other streams "
                    f"hold what it needs, and stops batch"
                )


def _batch_held_up(core: MasterCore, now: float) -> Iterator[str]:
    free: dict[ApplicationId, list[UnitQueue]] = {}
    for app in core.master_state.live_applications():
        if app.record.workload_class is not WorkloadClass.BATCH or app.record.gang_min:
            continue
        if is_driver(app.application_id):
            continue  # it may wait for the share of drivers, which has an oracle of its own
        for container in app.containers.values():
            if not _may_go_anywhere(container, now):
                continue
            if app.application_id not in free:
                avoided = core.master_state.exclusions.avoided(app.application_id, now)
                nodes = _nodes_for(core, app, avoided)
                free[app.application_id] = [*_idle(core, nodes)]
            demand = demand_vector(container.request.resources)
            for queue in free[app.application_id]:
                if fits_offer(demand, queue.free) and not queue.unit.gpu_only:
                    yield f"{container.container_id} waits, and fits {queue.unit.unit_id}"
                    break


def _not_yielded_to(core: MasterCore, now: float) -> Iterator[str]:
    """Batch that has no place, while at some unit at which nothing else waits it would fit if what
    yields there ended. Of units that share their cores nothing is counted."""
    for app in core.master_state.live_applications():
        if app.record.workload_class is not WorkloadClass.BATCH or app.record.gang_min:
            continue
        waiting = [x for x in app.containers.values() if _may_go_anywhere(x, now)]
        waiting = [x for x in waiting if not x.request.yields]
        if is_driver(app.application_id) or not waiting:
            continue
        avoided = core.master_state.exclusions.avoided(app.application_id, now)
        units = [*_open(core, _nodes_for(core, app, avoided))]
        for queue in units:
            if len(queue.pool) > 1 or queue.unit.gpu_only or not starts_soon(queue):
                continue
            free = list(queue.free)
            for entry in queue.running.values():
                if entry.yields and not entry.has_no_end:
                    free = [a + b for a, b in zip(free, entry.demand, strict=True)]
            for entry in (*queue.stream_waiting.values(), *queue.batch_waiting.values()):
                free = [a - b for a, b in zip(free, entry.demand, strict=True)]
            for container in waiting:
                if fits_offer(demand_vector(container.request.resources), free):
                    yield (
                        f"{container.container_id} has no place, and would fit "
                        f"{queue.unit.unit_id} but for what yields there"
                    )
                    return


def _whole_held_up(core: MasterCore, now: float) -> Iterator[str]:
    """Gangs and streams of one size that lack no more than is free. What GPUs, or cores that
    several units share, would hold is not counted."""
    for app, demand, lacks in _whole(core, now):
        avoided = core.master_state.exclusions.avoided(app.application_id, now)
        units = [x for x in _idle(core, _nodes_for(core, app, avoided)) if len(x.pool) == 1]
        many = sum(_how_many(demand, x.free) for x in units if not x.unit.gpu_only)
        if many >= lacks:
            yield f"{app.application_id} waits for {lacks} more, and units hold {many} more"


def _preempts_nothing(core: MasterCore, now: float) -> Iterator[str]:
    """The stream that has waited longest, of those of one size that lack no more than batch would
    make capacity for. Of units that share their cores nothing is counted."""
    found = list[tuple[float, str]]()
    for app, demand, lacks in _whole(core, now) if core.master_state.bounds.waiting_limit else ():
        if app.record.workload_class is not WorkloadClass.STREAM:
            continue
        avoided = core.master_state.exclusions.avoided(app.application_id, now)
        units = [x for x in _open(core, _nodes_for(core, app, avoided)) if len(x.pool) == 1]
        some = (x for x in units if x.unit.preempts and not x.unit.gpu_only)
        many = sum(_how_many(demand, _beside_endless(x)) for x in some)
        if many >= lacks:
            since_s = max(x.requested_at_s for x in app.in_state(ContainerState.PENDING))
            found.append((since_s, f"{app.application_id} waits for {lacks} more, and preempts"))
    for _, what in sorted(found)[:1]:
        yield f"{what} no batch of what would make capacity for it"


def _whole(core: MasterCore, now: float) -> Iterator[tuple[Application, Vector, int]]:
    """Gangs and streams that wait for places of one size, and how many they lack together."""
    for app in core.master_state.live_applications():
        is_stream = app.record.workload_class is WorkloadClass.STREAM
        if is_driver(app.application_id) or not (is_stream or app.record.gang_min):
            continue
        pending = app.in_state(ContainerState.PENDING)
        lacks = max(1, app.gang_min - len(app.containers) + len(pending))
        demands = {demand_vector(x.request.resources) for x in pending}
        if len(pending) < lacks or len(demands) != 1:
            continue
        if all(_may_go_anywhere(x, now) for x in pending):
            yield app, demands.pop(), lacks


def _beside_endless(queue: UnitQueue) -> Vector:
    """What batch there holds or leaves free, and no stream waits for."""
    held = [0, 0, 0, 0]
    for entry in (*queue.running.values(), *queue.stream_waiting.values()):
        if entry.has_no_end:
            held = [a + b for a, b in zip(held, entry.demand, strict=True)]
    left = (a - b for a, b in zip(queue.capacity, held, strict=True))
    vcores, memory_mib, gpu_memory_mib, slots = left
    return vcores, memory_mib, gpu_memory_mib, slots


def _how_many(demand: Vector, free: Vector) -> int:
    return max(0, min(free[x] // demand[x] for x in Column if demand[x]))


def _left_in_queues(core: MasterCore, now: float) -> Iterator[str]:
    """Containers that have waited at a unit for longer than they should where another could start
    them: of the same node, or of another one."""
    bounds = core.master_state.bounds
    for app in core.master_state.live_applications():
        if app.record.gang_min or is_driver(app.application_id):
            continue
        for container in app.containers.values():
            waited_s = now - container.assigned_at_s - bounds.relocation_wait_s
            if container.state is not ContainerState.WAITING or waited_s < _LIMIT_S:
                continue
            avoided = core.master_state.exclusions.avoided(app.application_id, now)
            nodes = _nodes_for(core, app, avoided)
            demand = demand_vector(container.request.resources)
            for queue in _idle(core, nodes):
                if serves(demand, queue.unit) and fits_offer(demand, queue.free):
                    yield (
                        f"{container.container_id} waits at {container.unit_id}, and could start "
                        f"at {queue.unit.unit_id}"
                    )
                    break


def _left_with_kept_batch(core: MasterCore, now: float) -> Iterator[str]:
    """The stream that has waited longest at a unit for batch that is not preempted, of those for
    which batch would be preempted elsewhere."""
    state, bounds = core.master_state.state, core.master_state.bounds
    found: list[tuple[float, str, str]] = []
    for app in core.master_state.live_applications():
        if app.gang_min or is_driver(app.application_id):
            continue
        for container in app.containers.values():
            queue = state.find(container.unit_id)
            if (
                queue is None
                or queue.unit.preempts
                or container.container_id not in queue.stream_waiting
                or container.state is not ContainerState.WAITING
                or now - container.assigned_at_s < bounds.relocation_wait_s
            ):
                continue
            avoided = core.master_state.exclusions.avoided(app.application_id, now)
            demand = demand_vector(container.request.resources)
            nodes = _nodes_for(core, app, avoided)
            if any(_would_preempt(core, x, demand) for x in nodes if x.state is NodeState.ALIVE):
                where = f"{container.container_id} waits at {container.unit_id}"
                found.append((container.assigned_at_s, container.container_id, where))
    for _, _, where in sorted(found)[:1]:
        yield f"{where} for batch that is not preempted, and would not have to elsewhere"


def _would_preempt(core: MasterCore, node: Node, demand: Vector) -> bool:
    """Is there a unit of the node at which such a stream may wait, where all batch gives way?"""
    state = core.master_state.state
    for unit in node.units if core.master_state.bounds.waiting_limit else ():
        row = state.rows.get(unit.unit_id)
        if row is None or not state.open[row] or not serves(demand, unit) or not unit.preempts:
            continue
        queue = state.queue(row)
        held = list(demand)
        for each in queue.pool:
            for entry in (*each.running.values(), *each.stream_waiting.values()):
                if entry.has_no_end:
                    columns = Column if each is queue else (Column.VCORES, Column.MEMORY_MIB)
                    for column in columns:
                        held[column] += entry.demand[column]
        if fits_offer((held[0], held[1], held[2], held[3]), queue.capacity):
            return True
    return False


def _nodes_for(core: MasterCore, app: Application, avoided: frozenset[NodeName]) -> list[Node]:
    """Those that may get containers of the application."""
    return [
        node
        for node in core.master_state.nodes.values()
        if node.name not in avoided and meets(app.requires, node.properties)
    ]


def _may_go_anywhere(container: Container, now: float) -> bool:
    """Does it wait for a unit, and for nothing else, as its queue?"""
    asked = container.request
    until_s = asked.prefers_until_s(container.requested_at_s) + _LIMIT_S
    waits = asked.prefers and now < until_s
    return (
        container.state is ContainerState.PENDING
        and not container.withheld
        and not asked.resources.gpu_memory_mib
        and not waits
    )


def _idle(core: MasterCore, nodes: Iterable[Node]) -> Iterator[UnitQueue]:
    """Open units at which, and at whose siblings, nothing waits."""
    for queue in _open(core, nodes):
        if not any(each.waiting_count for each in queue.pool):
            yield queue


def _open(core: MasterCore, nodes: Iterable[Node]) -> Iterator[UnitQueue]:
    state = core.master_state.state
    for node in nodes:
        for unit in node.units if node.state is NodeState.ALIVE else ():
            row = state.rows.get(unit.unit_id)
            if row is not None and state.open[row]:
                yield state.queue(row)


def _stays(queue: UnitQueue, container_id: ContainerId) -> bool:
    """Is it a stream that would wait at the unit even if all batch there ended?"""
    waiter = queue.stream_waiting.get(container_id)
    if waiter is None:
        return False
    held = [0, 0, 0, 0]
    for each in queue.pool:
        for entry in _streams_before(each, container_id):
            demand = entry.demand
            own: Vector = demand if each is queue else (demand[0], demand[1], 0, 0)
            held = [a + b for a, b in zip(held, own, strict=True)]
    return any(waiter.demand[x] and held[x] + waiter.demand[x] > queue.capacity[x] for x in Column)


def _streams_before(queue: UnitQueue, container_id: ContainerId) -> Iterator[Entry]:
    """The streams that run at a unit, and those that wait there longer than this one."""
    for entry in queue.running.values():
        if entry.workload_class is WorkloadClass.STREAM:
            yield entry
    for entry in queue.stream_waiting.values():
        if entry.container_id == container_id:
            return
        yield entry
