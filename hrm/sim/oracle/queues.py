"""Are queues of applications enforced, as far as containers show?

What queues hold is recounted from containers, and what they are guaranteed and may have from what
an administrator stated (``hrm.sim.faults.queues``): the accounts of the core are its own affair.

At each event:

- nothing is granted by which a queue, or one above it, would hold more than its maximum;
- no application begins to hold containers where as many do as may (``max_running``);
- what is reclaimed by preemption is so for something that waits first at its unit from then on, or
  for a queue that holds as much as it may; it is of a queue that still holds as much as it is
  guaranteed of something that is lost, after all that ends; of a parent likewise, unless what waits
  is below it.
  It is no driver, nor of a gang that needs it, nor of a queue that keeps what it borrowed.

Once faults have stopped, within bounds of time:

- what others are preempted for runs at that unit once they have ended;
- a queue starts something while one of its containers waits that it is guaranteed the capacity
  for, which is free, or borrowed by others that may be preempted; not for one that yields, which
  claims no guarantee: that it uses what is idle is checked with all batch
  (``hrm.sim.oracle.waiting_streams``);
- what a queue keeps passes if it fits a unit at which nothing waits, and no limit is in the way;
- no application is preempted again and again.

Left out of what has a bound of time: containers with GPUs or next to their data, gangs, streams,
drivers, units that share their cores, and queues with limits of users.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from hrm.core.master.core import MasterCore
from hrm.core.master.entities import Application, Container
from hrm.core.master.queue_reclaim import RECLAIM_REASONS
from hrm.core.messages import commands as c
from hrm.core.messages import events as e
from hrm.core.queue.resource_unit import UnitQueue
from hrm.core.tenancy.queue_spec import QueueSpec
from hrm.core.vocabulary.feasibility import Vector, demand_vector, minus, plus
from hrm.core.vocabulary.model import (
    ApplicationId,
    ContainerId,
    ContainerState,
    NodeState,
    ResourceUnitId,
    WorkloadClass,
)
from hrm.sim.faults.capacity import fits_offer, serves
from hrm.sim.faults.labels import meets
from hrm.sim.faults.queues import Amounts, amounts_of_queues, lineage_of, total_of

__all__ = ["QueueChecks"]

_NODE_EVENTS = (e.NodeRegistered, e.NodeReported, e.ContainerReported)
_START_S = 8.0
"""Longer than an end that has been reported is from the start of what waits for it."""
_LIMIT_S = 20.0
"""Several times the longest pause between two rounds, and of a scheduler that hangs."""
_AGAIN_MAX = 40
_SLACK = 1e-3
_NONE: Amounts = (0.0, 0.0, 0.0)


@dataclass(slots=True)
class _Reserved:
    """What waits first at a unit for these to end."""

    unit_id: ResourceUnitId
    victims: set[ContainerId]
    since_s: float | None = None


class QueueChecks:
    """``_slots``: by queue, the applications that held something at the latest event; None: not
    known. ``_once``: those that did at any: they may go on, also after a moment with nothing.
    ``_adopted``: those of them that nodes have reported, of an earlier master.
    ``_ordered``: what has been ordered to end. ``_since_s``: of what should end soon, since when it
    has lasted. ``reclaimed``: how many were preempted for queues."""

    def __init__(self, violated: Callable[[str], None], *, every_policy: bool) -> None:
        """``every_policy``: a policy may leave idle what it could have."""
        self._violated = violated
        self._every_policy = every_policy
        self._slots: dict[str, set[str]] | None = None
        self._once: set[str] = set()
        self._adopted: set[str] = set()
        self._ordered: set[ContainerId] = set()
        self._reserved: dict[ContainerId, _Reserved] = {}
        self._since_s: dict[str, float] = {}
        self._ran: dict[str, set[ContainerId]] = {}
        self._times: Counter[ApplicationId] = Counter()
        self.reclaimed = 0

    def master_began(self) -> None:
        self._slots = None
        self._once.clear()
        self._adopted.clear()
        self._ordered.clear()
        self._reserved.clear()
        self._since_s.clear()
        self._ran.clear()

    def after(
        self,
        core: MasterCore,
        event: e.MasterEvent,
        commands: Sequence[c.MasterCommand],
        quiet_since_s: float,
    ) -> None:
        if len(core.queues.tree.specs) <= 2 and not core.queues.tree.governs:
            self._slots = None
            return
        usage = _Usage(core)
        if not isinstance(event, _NODE_EVENTS):
            self._granted(usage, event, commands)
        self._running(usage, event)
        self._reclaims(usage, event, commands, quiet_since_s)
        if isinstance(event, e.Ticked) and event.now >= quiet_since_s:
            self._last(usage, event.now)

    def _granted(
        self, usage: _Usage, event: e.MasterEvent, commands: Iterable[c.MasterCommand]
    ) -> None:
        for command in commands:
            match command:
                case c.SendToNode(message=c.AssignContainer(spec=spec)):
                    app = usage.core.master_state.applications[spec.application_id]
                    container = app.containers[spec.container_id]
                    if container.assigned_at_s != event.now:
                        continue  # it is sent again
                    # One that waits first at a unit starts when what is in its way has ended.
                    first = container.queued and container.request.place == container.unit_id
                    queue, amount = app.record.queue, _amount(container)
                    why = usage.beyond_maximum(queue, amount, but_ending=first)
                    if why:
                        self._violated(f"{spec.container_id} is granted a place, and {why}")

    def _running(self, usage: _Usage, event: e.MasterEvent) -> None:
        """No application becomes active beyond the number of those that may."""
        before, now = self._slots, usage.slots()
        self._slots = now
        once, self._once = self._once, self._once.union(*now.values())
        is_back = isinstance(event, e.ApplicationRegistered) and event.application_id
        if before is None or is_back or isinstance(event, _NODE_EVENTS):
            # What an earlier master granted goes on, in addition to what has been let in.
            self._adopted |= self._once - once
            return
        for name, slots in now.items():
            spec = usage.specs.get(name)
            limit = None if spec is None else spec.max_running
            new = slots - before.get(name, set()) - once
            if limit is not None and new and len(slots - self._adopted) > limit:
                self._violated(
                    f"{', '.join(sorted(new))} begins to hold containers in {name}, where "
                    f"{len(slots)} applications do then, and {limit} may"
                )

    def _reclaims(
        self,
        usage: _Usage,
        event: e.MasterEvent,
        commands: Iterable[c.MasterCommand],
        quiet_since_s: float,
    ) -> None:
        victims, placed = list[Container](), list[Container]()
        for_batch, interrupted = list[Container](), set[ContainerId]()
        before = set(self._ordered)
        for command in commands:
            match command:
                case c.SendToNode(message=c.StopContainer(only_if_waiting=False) as stop):
                    container = usage.find(stop.container_id)
                    is_new = stop.container_id not in before
                    if container and is_new and stop.reason.startswith(RECLAIM_REASONS):
                        victims.append(container)
                        if stop.reason.startswith(RECLAIM_REASONS[0]):
                            for_batch.append(container)
                        elif stop.reason.startswith(RECLAIM_REASONS[2]):
                            interrupted.add(stop.container_id)
                    self._ordered.add(stop.container_id)
                case c.SendToNode(message=c.AssignContainer(spec=spec)):
                    container = usage.find(spec.container_id)
                    if container and container.request.place == spec.unit_id:
                        placed.append(container)
        if not victims:
            return
        self.reclaimed += len(victims)
        for each in placed if isinstance(event, e.Ticked) else ():
            here = {x.container_id for x in victims if x.unit_id == each.unit_id}
            if here:
                self._reserved[each.container_id] = _Reserved(each.unit_id, here)
        units = {x.unit_id for x in placed}
        for victim in for_batch:
            if victim.unit_id not in units and not usage.is_some_maximum_reached():
                self._violated(f"{victim.container_id} is preempted, and nothing waits for that")
        for victim in victims:
            why = self._why_not(usage, victim, victim.container_id in interrupted)
            if why:
                self._violated(f"{victim.container_id} is preempted for a queue, and {why}")
            if event.now >= quiet_since_s:
                self._times[victim.application_id] += 1
                if self._times[victim.application_id] == _AGAIN_MAX:
                    self._violated(f"{victim.application_id} is preempted for queues on and on")

    def _why_not(self, usage: _Usage, victim: Container, is_interrupted: bool) -> str:
        """Why this may not have been preempted; empty if it may. ``is_interrupted``: for one of its
        own queue."""
        app = usage.core.master_state.applications[victim.application_id]
        if app.is_driver:
            return "is a driver"
        if victim.state is not ContainerState.RUNNING:
            return f"is {victim.state.value}"
        if app.record.gang_min > 1:
            there = (ContainerState.RUNNING, ContainerState.ASSIGNED)
            kept = [x for x in app.in_state(*there) if x.container_id not in self._ordered]
            if len(kept) < app.record.gang_min and app.gang_min <= 1:
                return f"leaves {len(kept)} of a gang of {app.record.gang_min}"
        lineage = lineage_of(app.record.queue)
        kept_all = [x for x in lineage if x in usage.specs and not usage.specs[x].preemptible]
        if kept_all:
            return f"{kept_all[0]} keeps what it has borrowed"
        amount = _amount(victim)
        for index, name in enumerate(lineage[:-1]):
            if usage.waits_in(name, streams=index == 0 and not is_interrupted):
                return ""  # what it was preempted for may be below it
            held, guaranteed = usage.placed(name, self._ordered), usage.guaranteed(name)
            each = zip(amount, held, guaranteed, strict=True)
            if not any(x and y >= z - _SLACK for x, y, z in each):
                return f"{name} holds {held} without it, and is guaranteed {guaranteed}"
        return ""

    def _last(self, usage: _Usage, now: float) -> None:
        state = usage.core.master_state
        if state.recovering or now < state.forgot_until_s:
            self._since_s.clear()
            return
        self._vain(usage, now)
        limits_s: dict[str, float] = {}
        if not self._every_policy:
            bounds = state.bounds
            limit_s = _LIMIT_S + bounds.queue_reclaim_wait_s + bounds.queue_preemption_grace_s
            limits_s |= dict.fromkeys(self._owed(usage), limit_s)
            limits_s |= dict.fromkeys(_kept_for_nothing(usage), _LIMIT_S)
        self._since_s = {what: self._since_s.get(what, now) for what in limits_s}
        for what, since_s in self._since_s.items():
            if now - since_s >= limits_s[what]:
                self._violated(f"for {limits_s[what]:.0f} s {what}")
                return

    def _vain(self, usage: _Usage, now: float) -> None:
        """What others were preempted for, at the same unit, has started."""
        for container_id, reserved in list(self._reserved.items()):
            container = usage.find(container_id)
            queue = usage.core.master_state.state.find(reserved.unit_id)
            waits = container is not None and container.started_at_s == 0.0
            if not waits or container is None or queue is None or container_id not in queue:
                del self._reserved[container_id]
            elif queue.stream_waiting or any(map(usage.find, reserved.victims)):
                reserved.since_s = None
            elif reserved.since_s is None:
                reserved.since_s = now
            elif now - reserved.since_s >= _START_S and container.stop_cause is None:
                self._violated(
                    f"{container_id} waits at {reserved.unit_id} for {_START_S:.0f} s since what "
                    f"was preempted for it has ended"
                )
                del self._reserved[container_id]

    def _owed(self, usage: _Usage) -> Iterator[str]:
        """Queues that start nothing though they are guaranteed it."""
        ran, self._ran = self._ran, usage.started()
        for leaf in sorted({app.record.queue for app in usage.live}):
            if self._ran.get(leaf, set()) - ran.get(leaf, set()):
                continue
            for app, container in usage.waiting(leaf):
                if container.request.yields or not usage.is_guaranteed(leaf, _amount(container)):
                    continue
                where = usage.could_be_had(app, container)
                if where and (where[1] or usage.core.master_state.bounds.queue_preemption):
                    yield (
                        f"{leaf} starts nothing, though {where[0]} has what it is guaranteed, free "
                        f"or borrowed"
                    )
                    break


class _Usage:
    """The queues at one moment, from containers."""

    def __init__(self, core: MasterCore) -> None:
        self.core = core
        state = core.master_state
        self.specs: dict[str, QueueSpec] = {str(k): v for k, v in core.queues.tree.specs.items()}
        self.live = state.live_applications()
        self.units: list[UnitQueue] = [
            state.state.queue(row) for row in state.state.rows.values() if state.state.open[row]
        ]
        self._amounts: dict[str, tuple[Amounts, Amounts]] | None = None
        self._maxima: dict[str, Amounts] | None = None

    @property
    def maxima(self) -> dict[str, Amounts]:
        """What queues may have by what open units have and what runs at closed ones now: by this
        they keep what they have not let pass."""
        if self._maxima is None:
            state = self.core.master_state.state
            total = total_of(x.unit for x in self.units)
            for row in state.rows.values():
                if not state.open[row]:
                    for entry in state.queue(row).running.values():
                        total = _plus(total, _governed(entry.demand))
            amounts = amounts_of_queues(self.core.queues.tree.stated, total)
            self._maxima = {name: most for name, (_, most) in amounts.items()}
        return self._maxima

    @property
    def amounts(self) -> dict[str, tuple[Amounts, Amounts]]:
        """What is guaranteed counts what open units have; a maximum may count all of closed ones,
        too: what has ended there may not have been seen to."""
        if self._amounts is None:
            state, stated = self.core.master_state.state, self.core.queues.tree.stated
            least = amounts_of_queues(stated, total_of(x.unit for x in self.units))
            units = (state.queue(row).unit for row in state.rows.values())
            most = amounts_of_queues(stated, total_of(units))
            self._amounts = {name: (least[name][0], most[name][1]) for name in least}
        return self._amounts

    def guaranteed(self, name: str) -> Amounts:
        return self.amounts[name][0]

    def find(self, container_id: ContainerId) -> Container | None:
        for app in self.core.master_state.applications.values():
            if container_id in app.containers:
                return app.containers[container_id]
        return None

    def everything(self, name: str) -> Iterator[tuple[Application, Container]]:
        """All that is in a queue, or below it."""
        for app in self.core.master_state.applications.values():
            if name in lineage_of(app.record.queue):
                for container in app.containers.values():
                    yield app, container

    def slots(self) -> dict[str, set[str]]:
        """By queue, the applications that hold something; a driver and its own count as one."""
        found: dict[str, set[str]] = {}
        for app in self.live:
            if any(_has_passed(x) for x in app.containers.values()):
                for name in lineage_of(app.record.queue):
                    slot = app.record.submission_id or app.application_id
                    found.setdefault(name, set()).add(slot)
        return found

    def placed(self, name: str, gone: set[ContainerId]) -> Amounts:
        """What it holds at nodes and keeps."""
        total = _NONE
        for _, container in self.everything(name):
            stops = container.state is ContainerState.STOPPING or container.stop_cause is not None
            if _is_placed(container) and container.container_id not in gone and not stops:
                total = _plus(total, _amount(container))
        return total

    def started(self) -> dict[str, set[ContainerId]]:
        found: dict[str, set[ContainerId]] = {}
        for app in self.live:
            some = found.setdefault(app.record.queue, set())
            some |= {x.container_id for x in app.containers.values() if x.started_at_s}
        return found

    def beyond_maximum(self, queue: str, amount: Amounts, *, but_ending: bool = False) -> str:
        """Of whose maximum what it has at nodes is too much, in what ``amount`` has some of.
        ``but_ending``: but for what has been ordered to end."""
        for name in lineage_of(queue)[:-1]:
            held, maximum = _NONE, self.amounts[name][1]
            for _, container in self.everything(name):
                if but_ending and container.stop_cause is not None:
                    continue
                if container.node is not None:
                    held = _plus(held, _amount(container))
            if _exceeds(amount, held, maximum):
                return f"{name} holds {held} with it, of at most {maximum}"
        return ""

    def is_kept_by_maximum(self, queue: str, amount: Amounts) -> bool:
        """Would so much more be beyond a maximum, with all that has passed?"""
        for name in lineage_of(queue)[:-1]:
            held = amount
            for _, container in self.everything(name):
                if _has_passed(container):
                    held = _plus(held, _amount(container))
            if _exceeds(amount, held, self.maxima[name]):
                return True
        return False

    def is_some_maximum_reached(self) -> bool:
        """Is there something that a queue keeps because one above has as much as it may?"""
        return any(
            self.is_kept_by_maximum(app.record.queue, _amount(x))
            for app in self.live
            for x in app.containers.values()
            if x.withheld
        )

    def waits_in(self, name: str, *, streams: bool) -> bool:
        """Does something there wait for a place? ``streams``: of streams alone."""
        return any(
            not _is_placed(container) or (container.request.place and not container.started_at_s)
            for app, container in self.everything(name)
            if not streams or app.record.workload_class is WorkloadClass.STREAM
        )

    def waiting(self, leaf: str) -> Iterator[tuple[Application, Container]]:
        """What should start soon if there is capacity for it, and limits allow it."""
        slots = self.slots()
        for name in lineage_of(leaf):
            spec = self.specs.get(name)
            if spec is not None and spec.max_running is not None:
                return
            if spec is not None and _limits_users(spec):
                return
        for app in self.live:
            is_batch = app.record.workload_class is WorkloadClass.BATCH
            if app.record.queue != leaf or app.is_driver or app.record.gang_min or not is_batch:
                continue
            if leaf not in slots and not app.containers:
                continue
            for container in app.containers.values():
                asked = container.request
                is_plain = not (asked.resources.gpu_memory_mib or asked.gpus or asked.hosts)
                if is_plain and not _is_placed(container) and not container.held:
                    yield app, container

    def is_guaranteed(self, leaf: str, amount: Amounts) -> bool:
        """Would it, and all above it, hold no more than is guaranteed with this?"""
        for name in lineage_of(leaf)[:-1]:
            held, guaranteed = _NONE, self.guaranteed(name)
            for _, container in self.everything(name):
                if _is_placed(container):
                    held = _plus(held, _amount(container))
            if any(x and x + y > z for x, y, z in zip(amount, held, guaranteed, strict=True)):
                return False
        return True

    def could_be_had(self, app: Application, container: Container) -> tuple[str, bool] | None:
        """A unit where it would find capacity, once what others have borrowed there has ended, and
        whether it is free."""
        demand = demand_vector(container.request.resources)
        for queue in self.suited(app, demand):
            free = _unclaimed(queue)
            if fits_offer(demand, free) and not queue.waiting_count:
                return queue.unit.unit_id, True
            for borrowed in self._borrowed(queue, app.record.queue):
                free = plus(free, borrowed)
                if fits_offer(demand, free):
                    return queue.unit.unit_id, False
        return None

    def suited(self, app: Application, demand: Vector) -> Iterator[UnitQueue]:
        """Units of their own that could hold it, of nodes that may."""
        master_state, state = self.core.master_state, self.core.master_state.state
        avoided = bool(master_state.exclusions.avoided(app.application_id, 0.0))
        for queue in self.units if not avoided else ():
            row = state.rows[queue.unit.unit_id]
            node = master_state.nodes[state.node(row)]
            is_fit = node.state is NodeState.ALIVE and meets(app.requires, node.properties)
            if is_fit and len(queue.pool) == 1 and serves(demand, queue.unit):
                yield queue

    def _borrowed(self, queue: UnitQueue, leaf: str) -> Iterator[Vector]:
        """What others hold there beyond all that they are guaranteed, one after the other."""
        apps = self.core.master_state.applications
        lost: dict[str, Amounts] = {}
        own = set(lineage_of(leaf))
        for container_id, entry in queue.running.items():
            container = self.find(container_id)
            app = None if container is None else apps[container.application_id]
            if container is None or app is None or app.is_driver or app.record.gang_min:
                continue
            lineage = lineage_of(app.record.queue)
            kept = any(not self.specs[x].preemptible for x in lineage)
            is_batch = app.record.workload_class is WorkloadClass.BATCH
            is_running = container.state is ContainerState.RUNNING
            is_going = container.stop_cause is not None
            if kept or is_going or not is_running or not is_batch or app.record.queue == leaf:
                continue
            names, amount = [x for x in lineage if x not in own], _amount(container)
            after = {x: _plus(lost.get(x, _NONE), amount) for x in names}
            if all(self._keeps(x, after[x]) for x in names):
                lost |= after
                yield entry.demand

    def _keeps(self, name: str, lost: Amounts) -> bool:
        held, guaranteed = self.placed(name, set()), self.guaranteed(name)
        return all(x - y >= z for x, y, z in zip(held, lost, guaranteed, strict=True))


def _kept_for_nothing(usage: _Usage) -> Iterator[str]:
    """What queues keep from schedulers though it fits, and no limit is in the way."""
    for leaf in sorted({app.record.queue for app in usage.live}):
        for app, container in usage.waiting(leaf):
            amount = _amount(container)
            if not container.withheld or usage.is_kept_by_maximum(leaf, amount):
                continue
            demand = demand_vector(container.request.resources)
            for queue in usage.suited(app, demand):
                if not queue.waiting_count and fits_offer(demand, queue.free):
                    yield (
                        f"{leaf} keeps {container.container_id}, which would fit "
                        f"{queue.unit.unit_id}"
                    )
                    break


def _unclaimed(queue: UnitQueue) -> Vector:
    """What is free beyond what waits first there."""
    free = queue.free
    for entry in (*queue.stream_waiting.values(), *queue.batch_waiting.values()):
        if entry.place or entry.workload_class is WorkloadClass.STREAM:
            free = minus(free, entry.demand)
    return free


def _limits_users(spec: QueueSpec) -> bool:
    return spec.user_limit_factor is not None or spec.minimum_user_limit < 1


def _has_passed(container: Container) -> bool:
    is_pending = container.state is ContainerState.PENDING
    return not is_pending or not (container.withheld or container.held)


def _is_placed(container: Container) -> bool:
    """Does it hold capacity of a node?"""
    state = container.state
    queued = state is ContainerState.ASSIGNED and container.queued
    return state not in (ContainerState.PENDING, ContainerState.WAITING) and not queued


def _exceeds(amount: Amounts, held: Amounts, maximum: Amounts) -> bool:
    """Is ``held`` more than the maximum, in what ``amount`` has some of?"""
    return any(x and y > z + _SLACK for x, y, z in zip(amount, held, maximum, strict=True))


def _governed(demand: Vector) -> Amounts:
    return float(demand[0]), float(demand[1]), float(demand[2])


def _amount(container: Container) -> Amounts:
    has = container.request.resources
    return float(has.vcores), float(has.memory_mib), float(has.gpu_memory_mib)


def _plus(a: Amounts, b: Amounts) -> Amounts:
    return a[0] + b[0], a[1] + b[1], a[2] + b[2]
