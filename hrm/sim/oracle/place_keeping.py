"""What is preempted keeps its place: its replacement runs at once somewhere, or stands first there.

A record of its own says which application lost a container of which profile at which unit, by what
nodes reported. The next request of that profile takes it. When the master assigns that container,
it must run, by the master's own state, or wait at that unit before all batch that has not been
passed too often, and its node is to know that. It may wait elsewhere only for what yields there, or
where the place may be of no use: closed, excluded, held by streams, or with a wait that may be
beyond the bound. Units that share cores are left to the tests of the core.

At each node those that stand first are where the queue says: nothing that they may pass is before
them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable

from hrm.core.master.core import MasterCore
from hrm.core.master.entities import Application
from hrm.core.messages import commands as c
from hrm.core.messages import events as e
from hrm.core.messages.claims import Entry
from hrm.core.node.core import NodeCore
from hrm.core.queue.resource_unit import UnitQueue
from hrm.core.vocabulary.bounds import PASSES_MAX
from hrm.core.vocabulary.feasibility import demand_vector
from hrm.core.vocabulary.model import (
    ApplicationId,
    ContainerId,
    ContainerSpec,
    ContainerState,
    ContainerStatus,
    EndCause,
    NodeName,
    ResourceUnitId,
    WorkloadClass,
    container_id_of,
)
from hrm.sim.faults.capacity import fits_offer, serves
from hrm.sim.faults.labels import meets
from hrm.sim.oracle.yielding import starts_soon

__all__ = ["PlaceKeeping", "out_of_place"]

_AGAIN = (EndCause.PREEMPTED, EndCause.LOST)


class PlaceKeeping:
    """``_kept``: of each application and profile, the units of those that were preempted, and until
    when the master keeps the place. ``_replacements``: what has taken one and has not started.
    ``taken``: how many have."""

    def __init__(self, violated: Callable[[str], None]) -> None:
        self._violated = violated
        self._kept: dict[tuple[ApplicationId, int], list[tuple[ResourceUnitId, float]]] = {}
        self._replacements: dict[ContainerId, tuple[ApplicationId, ResourceUnitId]] = {}
        self._reported_once: set[ContainerId] = set()
        self._requested_once: set[ContainerId] = set()
        self.taken: Counter[str] = Counter()

    def master_began(self) -> None:
        """It knows what nodes report from now on."""
        self._kept.clear()
        self._replacements.clear()
        self._reported_once.clear()
        self._requested_once.clear()

    def after(
        self, core: MasterCore, event: e.MasterEvent, commands: Iterable[c.MasterCommand]
    ) -> None:
        match event:
            case e.NodeRegistered(containers=statuses) | e.NodeReported(containers=statuses):
                self._reported(core, statuses, event.now)
            case e.ContainerReported(container=status):
                self._reported(core, (status,), event.now)
            case e.ApplicationRegistered():
                self._claimed(core, event.application_id, event.now)
            case e.ContainersRequested():
                self._requested(core, event)
        for command in commands:
            match command:
                case c.SendToNode(message=c.AssignContainer(spec=spec)):
                    if spec.container_id in self._replacements:
                        self._granted(core, spec, event.now)
        self._passed_on(core, event.now)

    def _reported(self, core: MasterCore, statuses: Iterable[ContainerStatus], now: float) -> None:
        for status in statuses:
            app = core.master_state.live.get(status.application_id)
            container = None if app is None else app.find(status.container_id)
            if container is None or status.container_id in self._reported_once:
                continue
            key = (status.application_id, status.resource_profile_id)
            if status.preempted and not container.preempted:
                continue  # the master has taken in a later report of this node
            if status.preempted:
                self._reported_once.add(status.container_id)
                if container.state is not ContainerState.ENDED or container.ended_at_s == now:
                    self._keep(core, key, status.unit_id, now)
            elif status.stands_first and status.container_id not in self._replacements:
                self._reported_once.add(status.container_id)
                if container.request.place and self._kept.get(key):
                    self._take(key, now)

    def _claimed(self, core: MasterCore, application_id: ApplicationId, now: float) -> None:
        """The master takes in what nodes reported before it knew this application: one that stood
        first may have replaced one that is reported, too."""
        app = core.master_state.live.get(application_id)
        for container in () if app is None else app.containers.values():
            container_id = container.container_id
            if container_id in self._reported_once | self._requested_once:
                continue
            key = (application_id, container.request.resource_profile_id)
            if container.preempted:
                self._reported_once.add(container_id)
                self._keep(core, key, container.unit_id, now)
            elif container.request.place and container_id not in self._replacements:
                self._reported_once.add(container_id)
                if self._kept.get(key):
                    self._take(key, now)

    def _keep(
        self,
        core: MasterCore,
        key: tuple[ApplicationId, int],
        unit_id: ResourceUnitId,
        now: float,
    ) -> None:
        until_s = now + core.master_state.bounds.application_grace_s
        self._kept.setdefault(key, []).append((unit_id, until_s))

    def _take(self, key: tuple[ApplicationId, int], now: float) -> ResourceUnitId | None:
        """The oldest that has not lapsed."""
        kept = [x for x in self._kept.pop(key, ()) if now < x[1]]
        if kept[1:]:
            self._kept[key] = kept[1:]
        return kept[0][0] if kept else None

    def _requested(self, core: MasterCore, event: e.ContainersRequested) -> None:
        app = core.master_state.live.get(event.application_id)
        for request in event.requests if app is not None else ():
            container_id = container_id_of(event.application_id, request.executor_id)
            container = None if app is None else app.containers.get(container_id)
            if container is None or container_id in self._requested_once:
                continue
            self._requested_once.add(container_id)
            if container.requested_at_s != event.now or container.node is not None:
                continue
            key = (event.application_id, request.resource_profile_id)
            lost_at = self._take(key, event.now)
            if lost_at is not None:
                place = container.request.place
                if not place:
                    self._violated(
                        f"{container_id} is requested where one was preempted at {lost_at}, and "
                        f"has no place"
                    )
                self._replacements[container_id] = (event.application_id, place or lost_at)

    def _granted(self, core: MasterCore, spec: ContainerSpec, now: float) -> None:
        _, place = self._replacements[spec.container_id]
        app = core.master_state.live[spec.application_id]
        if app.containers[spec.container_id].assigned_at_s != now:
            return  # it is sent again
        queue = core.master_state.state.find(spec.unit_id)
        if queue is None or spec.container_id not in queue.batch_waiting:
            self.taken["ran"] += 1
            return
        if spec.unit_id == place:
            self.taken["stood first"] += 1
            if not spec.stands_first:
                self._violated(f"{spec.container_id} stands first at {place}, its node ignores it")
            for other in _not_passed(queue, spec.container_id):
                self._violated(f"{other} stands at {place} before {spec.container_id}")
            return
        if starts_soon(queue):  # what is in its way there yields
            self.taken["starts soon"] += 1
            return
        self.taken["elsewhere"] += 1
        if self._is_of_use(core, app, spec, place, now):
            self._violated(
                f"{spec.container_id} waits at {spec.unit_id}, and could stand first at {place}"
            )

    def _is_of_use(
        self,
        core: MasterCore,
        app: Application,
        spec: ContainerSpec,
        place: ResourceUnitId,
        now: float,
    ) -> bool:
        """Is it certain that it could wait there within the bounds?"""
        state, bounds = core.master_state.state, core.master_state.bounds
        row = state.rows.get(place)
        if row is None or not state.open[row]:
            return False
        queue = state.queue(row)
        avoided = core.master_state.exclusions.avoided(app.application_id, now)
        if len(queue.pool) > 1:
            return False
        if state.node(row) in avoided and _has_others(core, app, spec, avoided):
            return False
        if not meets(app.requires, state.properties[row]):
            return False
        left = list(queue.capacity)
        for entry in (*queue.running.values(), *queue.stream_waiting.values()):
            if entry.workload_class is WorkloadClass.STREAM:
                left = [a - b for a, b in zip(left, entry.demand, strict=True)]
        resources = spec.resources
        demand = (resources.vcores, resources.memory_mib, resources.gpu_memory_mib, resources.gpus)
        if not fits_offer(demand, left) or (queue.unit.gpu_only and not resources.gpu_memory_mib):
            return False
        first = [x for x in queue.batch_waiting.values() if x.place]
        wait_s = sum(x.remaining_s(now) for x in queue.running.values() if _is_batch(x))
        # Serially, which is the longest that it can take.
        wait_s += sum(x.duration_s for x in queue.batch_waiting.values())
        return len(first) < bounds.waiting_limit and wait_s < bounds.wait_max_s

    def _passed_on(self, core: MasterCore, now: float) -> None:
        """One that ends before it has run, to wait elsewhere, leaves its place to the next."""
        for container_id, (application_id, place) in list(self._replacements.items()):
            app = core.master_state.live.get(application_id)
            container = None if app is None else app.find(container_id)
            if container is None or container.started_at_s:
                del self._replacements[container_id]
            elif container.end is not None:
                del self._replacements[container_id]
                if container.end.cause in _AGAIN:
                    profile = container.request.resource_profile_id
                    self._keep(core, (application_id, profile), place, now)


def _has_others(
    core: MasterCore, app: Application, spec: ContainerSpec, avoided: Collection[NodeName]
) -> bool:
    """Is there another node for it than those that it avoids?"""
    state, demand = core.master_state.state, demand_vector(spec.resources)
    return any(
        state.open[row] and serves(demand, state.queue(row).unit)
        for row in state.rows.values()
        if state.node(row) not in avoided and meets(app.requires, state.properties[row])
    )


def out_of_place(core: NodeCore) -> list[str]:
    """What stands before a replacement at its node, and should not."""
    return [
        f"{other} waits at {unit_id} before {container_id}, which stands first"
        for unit_id, queue in core.units.items()
        for container_id in queue.batch_waiting
        if core.containers[container_id].spec.stands_first
        for other in _not_passed(queue, container_id)
        if not core.containers[other].spec.stands_first
    ]


def _is_batch(entry: Entry) -> bool:
    return entry.workload_class is WorkloadClass.BATCH


def _not_passed(queue: UnitQueue, container_id: ContainerId) -> list[ContainerId]:
    """Those before it in its queue that it may pass."""
    line = list(queue.batch_waiting.values())
    last = 0
    for index, entry in enumerate(line, start=1):
        if entry.container_id == container_id:
            break
        if entry.place or entry.passed >= PASSES_MAX:
            last = index
    own = [x.container_id for x in line].index(container_id)
    return [x.container_id for x in line[last:own]]
