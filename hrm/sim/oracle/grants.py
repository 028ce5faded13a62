"""What the negotiator grants: under which lease, to which units, and gangs in one piece.

A grant is a container that the master assigns for the first time; a node that has never answered
gets the same grant again after its report, which is none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from hrm.core.master.core import MasterCore
from hrm.core.master.entities import Application, Node
from hrm.core.messages import commands as c
from hrm.core.messages import events as e
from hrm.core.messages.claims import Proposal
from hrm.core.queue.resource_unit import UnitQueue
from hrm.core.vocabulary.feasibility import could_hold, demand_vector
from hrm.core.vocabulary.model import (
    ApplicationId,
    ContainerSpec,
    ContainerState,
    EndCause,
    NodeState,
    Resources,
    ResourceUnitId,
    WorkloadClass,
    is_driver,
)
from hrm.sim.faults.labels import meets
from hrm.sim.oracle.yielding import starts_soon

__all__ = ["Grants"]

_PLACED = (ContainerState.ASSIGNED, ContainerState.WAITING, ContainerState.RUNNING)
_NODE_EVENTS = (e.NodeRegistered, e.NodeReported, e.ContainerReported)


@dataclass(slots=True)
class _Lease:
    """The lease as it was handed out: which token when, for which units, and whether it ended."""

    token: int = 0
    issued_at_s: float = 0.0
    is_over: bool = False
    units: frozenset[ResourceUnitId] | None = None

    def locks(self, unit_id: ResourceUnitId) -> bool:
        return self.units is None or unit_id in self.units


class Grants:
    """``gangs``: of each application, how many of its first containers must start together; 0 once
    all of them have been seen running."""

    def __init__(self, violated: Callable[[str], None]) -> None:
        self._violated = violated
        self._lease = _Lease()
        self.gangs: dict[ApplicationId, int] = {}
        self._asked_at_s: dict[ApplicationId, float] = {}
        self._fewer_since_s: dict[ApplicationId, float] = {}
        self._streams: set[ApplicationId] = set()

    def master_began(self, core: MasterCore) -> None:
        """What is written down holds: a gang that was never seen running starts together."""
        self._lease = _Lease()
        self._streams.clear()
        self.gangs.clear()
        self.gangs.update(
            (app.application_id, 0 if app.record.first_running_at_s else app.record.gang_min)
            for app in core.master_state.applications.values()
        )

    def after(
        self, core: MasterCore, event: e.MasterEvent, commands: Iterable[c.MasterCommand]
    ) -> None:
        self._started(core)
        lease = self._lease
        granted: list[ContainerSpec] = []
        for command in commands:
            match command:
                case c.SendToNode(message=c.AssignContainer(spec=spec)):
                    granted.append(spec)
                case c.ProposeClaims(proposal=proposal):
                    if proposal.workload_class is WorkloadClass.STREAM:
                        self._leased(core, proposal.lease_token, event.now)
                    else:
                        self._patient(core, proposal, event.now)
                case c.Reply(result=c.LeaseGranted(token=token)):
                    self._leased(core, token, event.now)
        if isinstance(event, e.ApplicationRegistered):
            self._registered(event, commands)
        if isinstance(event, _NODE_EVENTS):
            return
        streams = self._under_lease(core, event, granted, lease)
        for spec in granted:
            if spec.container_id not in streams:
                self._outside_lease(core, spec, lease)
            self._open(core, spec)
            self._welcome(core, spec, event.now)
        self._together(core, event, granted)

    def _leased(self, core: MasterCore, token: int, now: float) -> None:
        if token < self._lease.token:
            self._violated(f"the lease's token fell to {token}")
        if token > self._lease.token:
            units = core.negotiator.lease.units
            if core.master_state.bounds.lease_scope == "global":
                units = None
            self._lease = _Lease(token, now, units=units)

    def _under_lease(
        self, core: MasterCore, event: e.MasterEvent, granted: list[ContainerSpec], lease: _Lease
    ) -> set[str]:
        """A stream is granted all or nothing, where its lease locks, while that holds."""
        if not isinstance(event, e.ClaimsProposed):
            return set()
        proposal = event.proposal
        app = core.master_state.applications.get(proposal.application_id)
        is_stream = proposal.workload_class is WorkloadClass.STREAM
        if event.call_id and app is not None:
            is_stream = app.record.workload_class is WorkloadClass.STREAM
        if not is_stream:
            return set()
        claimed = {claim.entry.container_id for claim in proposal.claims}
        mine = [spec for spec in granted if spec.container_id in claimed]
        over_s = lease.issued_at_s + core.master_state.bounds.lease_timeout_s
        stale = lease.is_over or proposal.lease_token != lease.token or event.now >= over_s
        if mine and stale:
            self._violated(
                f"{proposal.scheduler} commits {mine[0].container_id} under lease token "
                f"{proposal.lease_token}, which has ended"
            )
        for spec in mine:
            if not lease.locks(spec.unit_id):
                self._violated(f"{spec.container_id} is granted {spec.unit_id} without the lease")
        if proposal.lease_token == lease.token and mine:
            lease.is_over = True
        return {spec.container_id for spec in mine}

    def _outside_lease(self, core: MasterCore, spec: ContainerSpec, lease: _Lease) -> None:
        """Batch is granted nothing that a stream's lease locks, before and after the event."""
        held = core.negotiator.lease
        if held.holder is not None and held.token == lease.token and lease.locks(spec.unit_id):
            self._violated(
                f"{spec.container_id} is granted {spec.unit_id}, which {held.holder} has locked"
            )

    def _open(self, core: MasterCore, spec: ContainerSpec) -> None:
        units = [unit for node in core.master_state.nodes.values() for unit in node.units]
        unit = next((unit for unit in units if unit.unit_id == spec.unit_id), None)
        if unit is None or not unit.takes_more:
            what = "does not exist" if unit is None else "takes no more"
            self._violated(f"{spec.container_id} is granted {spec.unit_id}, which {what}")
        elif unit.gpu_only and not spec.resources.gpu_memory_mib:
            self._violated(f"{spec.container_id} takes cores that {spec.unit_id} keeps for its GPU")

    def _welcome(self, core: MasterCore, spec: ContainerSpec, now: float) -> None:
        """No grant on a node that is excluded for the application, while another could hold it."""
        avoided = core.master_state.exclusions.avoided(spec.application_id, now)
        if spec.unit_id.partition("/")[0] not in avoided:
            return
        requires = core.master_state.applications[spec.application_id].requires
        for node in core.master_state.nodes.values():
            suited = node.name not in avoided and meets(requires, node.properties)
            if suited and _could_take(node, spec.resources):
                self._violated(
                    f"{spec.container_id} is granted {spec.unit_id}, whose node is excluded, and "
                    f"{node.name} could hold it"
                )
                return

    def _patient(self, core: MasterCore, proposal: Proposal, now: float) -> None:
        """Nothing is claimed far from its data, or on another platform than is meant for it, before
        its time, if a node there could hold it. Streams wait for nothing."""
        scheduler = core.placement.schedulers[proposal.scheduler]
        is_stream = proposal.workload_class is WorkloadClass.STREAM
        if proposal.gang or scheduler.strict_order or is_stream:
            return
        app = core.master_state.applications[proposal.application_id]
        avoided = core.master_state.exclusions.avoided(proposal.application_id, now)
        for claim in proposal.claims:
            container = app.containers[claim.entry.container_id]
            asked = container.request
            nodes = core.master_state.nodes
            alike = [x.name for x in nodes.values() if x.platform == asked.platform]
            near_s = container.requested_at_s + asked.locality_wait_s
            for some, until_s in ((asked.near, near_s), (alike, asked.platform_until_s)):
                if now >= until_s or claim.unit_id.partition("/")[0] in (*some, *asked.near):
                    continue
                for name in some:
                    node = nodes.get(name)
                    if not node or name in avoided or not meets(app.requires, node.properties):
                        continue
                    if _could_take(node, asked.resources):
                        self._violated(
                            f"{container.container_id} is to go to {claim.unit_id}, and could wait "
                            f"for {name}, where it would rather be"
                        )

    def _registered(
        self, event: e.ApplicationRegistered, commands: Iterable[c.MasterCommand]
    ) -> None:
        for command in commands:
            if isinstance(command, c.PersistApplication) and not event.application_id:
                self.gangs.setdefault(command.record.application_id, event.gang_min)

    def _together(
        self, core: MasterCore, event: e.MasterEvent, granted: list[ContainerSpec]
    ) -> None:
        """The first containers of a gang are granted in one go, and none of them waits, but for
        batch that is preempted; so are those of them that are lost before all have started."""
        match event:
            case e.ContainersReleased():
                self._shrink(core, event.application_id)
            case e.WorkloadClassObserved(workload_class=WorkloadClass.BATCH):
                app = core.master_state.applications.get(event.application_id)
                if app is not None and app.record.workload_class is WorkloadClass.BATCH:
                    held = self.gangs.get(event.application_id, 0)
                    self.gangs[event.application_id] = min(held, app.record.gang_min)
            case e.ContainersRequested():
                self._asked_at_s[event.application_id] = event.now
                self._first_of_stream(core, event)
                self._compare(core, event.application_id, event.now)
            case e.Ticked():
                for application_id in self.gangs:
                    self._compare(core, application_id, event.now)
                    if application_id in self._fewer_since_s:
                        self._shrink_in_time(core, application_id, event.now)
            case e.ClaimsProposed():
                application_id = event.proposal.application_id
                got_some = any(spec.application_id == application_id for spec in granted)
                if not got_some:
                    self._shrink_in_time(core, application_id, event.now)
        for application_id in dict.fromkeys(spec.application_id for spec in granted):
            mine = [spec for spec in granted if spec.application_id == application_id]
            missing = self._missing(core, application_id, len(mine))
            if len(mine) < missing:
                self._violated(
                    f"{application_id} is granted {len(mine)} of a gang of which {missing} wait"
                )
            for spec in mine[:missing]:
                queue = core.master_state.state.find(spec.unit_id)
                if isinstance(event, e.Ticked) and spec.stands_first:
                    continue  # what others have borrowed there is ordered to end for it
                if queue is None or not (
                    spec.container_id in queue.running
                    or (
                        spec.container_id in queue.stream_waiting
                        and queue.unit.preempts
                        and _batch_gives_way(queue)
                    )
                    or starts_soon(queue)
                ):
                    self._violated(f"{spec.container_id} of a gang waits at {spec.unit_id}")

    def _first_of_stream(self, core: MasterCore, event: e.ContainersRequested) -> None:
        """A stream starts whole, or with as many as it says."""
        app = core.master_state.applications.get(event.application_id)
        if app is None or app.life.state.ended or event.application_id in self._streams:
            return
        record = app.record
        if record.workload_class is WorkloadClass.STREAM:
            self._streams.add(event.application_id)
            known = len(app.containers) + len(app.ended) > len(event.requests)
            if app.containers and not known and not record.first_running_at_s:
                many = record.stream_min or record.gang_min or len(event.requests)
                live = core.master_state.live.items()
                drivers = any(is_driver(name) and each.containers for name, each in live)
                if drivers or record.class_guessed:
                    many = min(many, app.gang_min)  # they keep their places; it waits for no more
                self.gangs[event.application_id] = min(many, len(app.containers))

    def _missing(self, core: MasterCore, application_id: ApplicationId, new: int) -> int:
        """How many of the gang had no place before ``new`` of them got one."""
        gang = self.gangs.get(application_id, 0)
        if gang <= 1:
            return 0
        live = core.master_state.applications[application_id].containers.values()
        placed = sum(x.state in _PLACED and x.stop_cause is None for x in live)
        return max(0, gang - (placed - new))

    def _started(self, core: MasterCore) -> None:
        """All of a gang run, or it is a stream's and its application is none."""
        for application_id, gang in self.gangs.items():
            app = core.master_state.applications.get(application_id)
            if gang > 1 and app is not None:
                running = len(app.in_state(ContainerState.RUNNING))
                if app.record.workload_class is WorkloadClass.BATCH:
                    self.gangs[application_id] = min(gang, app.record.gang_min)
                if running >= gang:
                    self.gangs[application_id] = 0

    def _shrink(self, core: MasterCore, application_id: ApplicationId) -> None:
        """An application that takes requests back, or never made them all, has a smaller gang."""
        app = core.master_state.applications.get(application_id)
        if app is not None and not app.life.state.ended and self._missing(core, application_id, 0):
            self.gangs[application_id] = min(self.gangs[application_id], _wanted(app))

    def _compare(self, core: MasterCore, application_id: ApplicationId, now: float) -> None:
        """Since when has it requested fewer than its gang?"""
        app, gang = (
            core.master_state.applications.get(application_id),
            self.gangs.get(application_id, 0),
        )
        if app is not None and gang > 1 and _wanted(app) < gang:
            self._fewer_since_s.setdefault(application_id, now)
        else:
            self._fewer_since_s.pop(application_id, None)

    def _shrink_in_time(self, core: MasterCore, application_id: ApplicationId, now: float) -> None:
        """Some that it had may just have been lost, and are about to be requested again."""
        since_s = max(
            self._asked_at_s.get(application_id, now),
            self._fewer_since_s.get(application_id, now),
        )
        if now - since_s >= core.master_state.bounds.retry_delay_max_s:
            self._shrink(core, application_id)


def _wanted(app: Application) -> int:
    """How many containers an application has or requests, and has not given back."""
    return sum(x.stop_cause is not EndCause.RELEASED for x in app.containers.values())


def _batch_gives_way(queue: UnitQueue) -> bool:
    """Would all streams that wait at a unit run, if its batch ended?"""
    asked = [
        any(column)
        for column in zip(*(x.demand for x in queue.stream_waiting.values()), strict=True)
    ]
    return all(
        left >= 0 for left, wanted in zip(queue.stream_headroom, asked, strict=True) if wanted
    )


def _could_take(node: Node, resources: Resources) -> bool:
    """Is it alive, and large enough when it is empty?"""
    demand = demand_vector(resources)
    large = any(could_hold(demand, x) and x.takes_more for x in node.units)
    return large and node.state is NodeState.ALIVE
