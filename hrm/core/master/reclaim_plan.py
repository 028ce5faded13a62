"""Which containers would be preempted for the claims of queues: nothing is changed here.

What a claim is, and who its victims are: ``hrm.core.master.queue_reclaim``.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeAlias

from hrm.core.master.entities import Application, Container
from hrm.core.master.queue_usage import Level, QueueUsage, amount_of
from hrm.core.master.state import MasterState
from hrm.core.queue.resource_unit import UnitQueue
from hrm.core.tenancy.accounts import (
    NOTHING,
    AccountTree,
    QueueAccount,
    common,
    fits_into,
    less,
    more,
)
from hrm.core.tenancy.queue_spec import QueueName
from hrm.core.tenancy.queue_tree import Governed
from hrm.core.vocabulary.columns import Bools
from hrm.core.vocabulary.feasibility import Vector, demand_vector, fits, minus, plus
from hrm.core.vocabulary.model import (
    NO_UNIT,
    ContainerId,
    ContainerState,
    NodeName,
    Resources,
    ResourceUnitId,
    WorkloadClass,
)
from hrm.core.vocabulary.node_requirement import NodeRequirement

__all__ = ["Reclaim", "ReclaimPlanner", "Wanted"]


class Wanted(NamedTuple):
    """That a container of this size has a place, on nodes that are not ``avoided`` and meet
    ``requires``, and rather on ``platform``. ``container``: None where it is only supposed."""

    account: QueueAccount
    resources: Resources
    is_stream: bool
    avoided: Collection[NodeName] = ()
    requires: NodeRequirement | None = None
    container: Container | None = None
    platform: str = ""

    @property
    def is_kept(self) -> bool:
        """Does its queue keep it, and is it no stream's, for which its own queue makes place?"""
        return self.container is not None and self.container.withheld and not self.is_stream


_Kind: TypeAlias = tuple[object, ...]
_NOWHERE: frozenset[NodeName] = frozenset()


def _kind(claim: Wanted) -> _Kind:
    """Claims of one kind find the same victims."""
    return (
        claim.account.name, claim.resources, claim.is_stream, claim.is_kept,
        frozenset(claim.avoided), claim.requires, claim.platform,
    )  # fmt: skip


class Reclaim(NamedTuple):
    """For this claim these are preempted, at this unit; without one, wherever they are."""

    claim: Wanted
    unit_id: ResourceUnitId
    victims: tuple[Container, ...]


@dataclass(slots=True)
class _Round:
    """What has been chosen so far: ``placed`` is what queues hold at nodes after it. ``taken``:
    what ends; ``rest``: of units, what that leaves and is not claimed; ``left``: how many more may
    end in this round, but for what the claim under way takes, which is all or nothing."""

    accounts: AccountTree
    left: int
    placed: dict[QueueName, Governed] = field(default_factory=dict)
    taken: set[ContainerId] = field(default_factory=set)
    rest: dict[ResourceUnitId, Vector] = field(default_factory=dict)

    def copy(self) -> _Round:
        return replace(self, placed=dict(self.placed), taken=set(self.taken), rest=dict(self.rest))

    def of(self, account: QueueAccount) -> Governed:
        return self.placed.get(account.name, account.placed)

    def change(self, account: QueueAccount, amount: Governed) -> None:
        for each in account.path:
            self.placed[each.name] = more(self.of(each), amount)

    def top(self, account: QueueAccount, amount: Governed) -> QueueAccount | None:
        """Below which queue may this claim? None: its own is over its guarantee with it."""
        for each in account.path:
            if each.parent is None or not fits_into(amount, self.of(each), each.limits.guaranteed):
                return None if each is account else each
        return None

    def full(self, account: QueueAccount, amount: Governed) -> QueueAccount | None:
        """The lowest queue that would be above its maximum with so much more."""
        for each in account.path:
            if not fits_into(amount, self.of(each), each.limits.maximum):
                return each
        return None

    def may_lose(
        self, account: QueueAccount, claimant: QueueAccount, amount: Governed, lacks: Sequence[int]
    ) -> bool:
        """Would the queue, and all above it that do not hold the claimant's, still hold as much as
        they are guaranteed of one of these resources?"""
        top = common(account, claimant)
        for resource in lacks:
            if not amount[resource]:
                continue
            for each in account.path:
                if each is top:
                    return True
                rest = self.of(each)[resource] - amount[resource]
                if rest < each.limits.guaranteed[resource] - 1e-6:
                    break
        return False


@dataclass(slots=True)
class _Try:
    """What would be so at one unit, with these victims there."""

    so_far: _Round
    free: Vector
    victims: list[Container] = field(default_factory=list)


class ReclaimPlanner:
    """Plans on the accounts of a usage, which may be another than the master's. ``going``: what
    has been ordered to end, and may not have been reported to."""

    def __init__(
        self, master_state: MasterState, usage: QueueUsage, going: Collection[ContainerId] = ()
    ) -> None:
        assert usage.accounts is not None, "something is governed"
        self._master_state = master_state
        self.usage = usage
        self._accounts: AccountTree = usage.accounts
        self._going = going
        self._everything = False

    def claim(self, container: Container, now: float) -> Wanted:
        """What a container that waits claims."""
        master_state = self._master_state
        app = master_state.applications[container.application_id]
        return Wanted(
            self._accounts.of[QueueName(app.record.queue)],
            container.request.resources,
            app.record.workload_class is WorkloadClass.STREAM,
            master_state.exclusions.avoided(app.application_id, now),
            app.requires,
            container,
            container.request.platform,
        )

    def is_within(self, claim: Wanted) -> bool:
        """Would its queue, or one above, hold no more than its guarantee with it?"""
        amount = amount_of(claim.resources)
        return _Round(self._accounts, 0).top(claim.account, amount) is not None

    def plan(
        self, claims: Iterable[Sequence[Wanted]], *, everything: bool = False
    ) -> list[list[Reclaim]]:
        """Victims for each of these groups of claims, for all of a group or none, as far as there
        are some; ``everything``: as if rounds followed until there is nothing left to take."""
        so_far = self._begin(everything=everything)
        running = self._running()
        found: list[list[Reclaim]] = []
        in_vain: set[_Kind] = set()
        for some in claims:
            if so_far.left <= 0:
                break
            kind = _kind(some[0])
            if len(some) == 1 and kind in in_vain:
                continue
            tried, group = so_far.copy(), list[Reclaim]()
            for claim in some:
                each = self._for_one(claim, running, tried)
                if each is None:
                    if len(some) == 1:
                        in_vain.add(kind)  # a like one finds as little until something is taken
                    break
                group.append(each)
            else:
                so_far = tried
                found.append(_as_one(group))
                in_vain.clear()
        return found

    def plan_alike(self, claim: Wanted, many: int) -> list[Reclaim]:
        """Victims for so many of these, each by itself, as if rounds followed until there is
        nothing left to take. After the first that finds none, no other does."""
        found: list[Reclaim] = []
        so_far = self._begin(everything=True)
        running = self._running()
        while len(found) < many and so_far.left > 0:
            each = self._for_one(claim, running, so_far)
            if each is None:
                break
            found.append(each)
        return found

    def _begin(self, *, everything: bool) -> _Round:
        self._everything = everything
        part = 1.0 if everything else self._master_state.bounds.queue_preemption_part
        so_far = _Round(self._accounts, max(1, int(part * self.usage.placed)))
        self._count_reserved(so_far)
        return so_far

    def _count_reserved(self, so_far: _Round) -> None:
        """What waits first at a unit counts as placed, and what is about to end as gone."""
        usage = self.usage
        for name, of_leaf in usage.unplaced.items():
            for container in of_leaf.values():
                if container.node is not None and container.request.place == container.unit_id:
                    amount = amount_of(container.request.resources)
                    so_far.change(self._accounts.of[name], amount)
        for app in self._master_state.applications.values():
            for container in app.containers.values():
                if self._is_going(container):
                    entry = usage.entries.get(container.container_id)
                    so_far.taken.add(container.container_id)
                    if entry is None or entry.level is not Level.PLACED:
                        continue
                    so_far.change(
                        self._accounts.of[entry.account.name], less(NOTHING, entry.amount)
                    )
                    queue = self._master_state.state.find(container.unit_id)
                    if queue is not None and container.container_id in queue.running:
                        demand = demand_vector(container.request.resources)
                        free = so_far.rest.get(container.unit_id) or _unclaimed(queue)
                        so_far.rest[container.unit_id] = plus(free, demand)

    def _is_going(self, container: Container) -> bool:
        going = container.state is ContainerState.STOPPING or container.stop_cause is not None
        return going or container.container_id in self._going

    def _running(self) -> list[tuple[Container, QueueAccount]]:
        """What may be preempted, as far as its queue may lose some: what yields before batch, and
        batch before streams, the newest first."""
        found: list[tuple[Container, QueueAccount, bool]] = []
        for app in self._master_state.live.values():
            account = self._accounts.of[QueueName(app.record.queue)]
            is_kept = not all(x.spec.preemptible for x in account.path)
            if app.is_driver or is_kept or not any(account.placed):
                continue
            needed = _needed(app)
            is_stream = app.record.workload_class is WorkloadClass.STREAM
            found += [
                (x, account, is_stream)
                for x in app.in_state(ContainerState.RUNNING)
                if x.container_id not in needed and not self._is_going(x)
            ]
        found.sort(
            key=lambda x: (
                x[2],
                not x[0].request.yields,
                -x[0].started_at_s,
                x[0].container_id,
            )
        )
        return [(container, account) for container, account, _ in found]

    def _for_one(
        self, claim: Wanted, running: Sequence[tuple[Container, QueueAccount]], so_far: _Round
    ) -> Reclaim | None:
        """Enough of one unit's for one container: of its platform, if there is as much."""
        if claim.platform:
            rows = self._master_state.state.rows_at(claim.platform)
            found = self._for_one_at(rows, claim, running, so_far)
            if found is not None:
                return found
        return self._for_one_at(None, claim, running, so_far)

    def _for_one_at(
        self,
        rows: Bools | None,
        claim: Wanted,
        running: Sequence[tuple[Container, QueueAccount]],
        so_far: _Round,
    ) -> Reclaim | None:
        """The same at these rows, shape (rows,), or anywhere."""
        master_state, state = self._master_state, self._master_state.state
        account, avoided = claim.account, claim.avoided
        amount, demand = amount_of(claim.resources), demand_vector(claim.resources)
        full = so_far.full(account, amount)
        if full is not None:
            return self._below(full, claim, running, so_far)
        if claim.is_kept and not self._everything:
            return None  # what ends already lets it pass
        top = so_far.top(account, amount)
        own_batch = claim.is_stream and self._may_push_aside(account, amount)
        if top is None and not own_batch:
            return None
        suited = None if claim.requires is None else state.suited(claim.requires)
        tries: dict[ResourceUnitId, _Try] = {}
        # Twice: what siblings lose may be what lets it claim from others.
        for container, of in itertools.chain(running, running):
            unit_id = container.unit_id
            row = state.rows.get(unit_id)
            if container.container_id in so_far.taken or row is None or not state.open[row]:
                continue
            if rows is not None and not rows[row]:
                continue
            if container.node in avoided or (suited is not None and not suited[row]):
                continue
            found = tries.get(unit_id)
            if found is None:
                queue = state.queue(row)
                if not queue.could_hold(demand):
                    continue
                free = so_far.rest.get(unit_id) or _unclaimed(queue)
                found = tries[unit_id] = _Try(so_far.copy(), free)
                if unit_id in so_far.rest and fits(demand, free):
                    return _take(so_far, found, claim, unit_id)
            if container.container_id in found.so_far.taken:
                continue
            lacks = [x for x in range(3) if amount[x] > found.free[x]]
            lost = amount_of(container.request.resources)
            top = found.so_far.top(account, amount)
            is_claimed = top is not None and top in of.path and of is not account
            is_claimed = is_claimed and found.so_far.may_lose(of, account, lost, lacks)
            is_own = own_batch and of is account and not _is_stream(master_state, container)
            if not is_claimed and not is_own:
                continue
            found.victims.append(container)
            found.so_far.taken.add(container.container_id)
            found.so_far.change(of, less(NOTHING, lost))
            found.free = plus(found.free, demand_vector(container.request.resources))
            if fits(demand, found.free):
                return _take(so_far, found, claim, unit_id)
        return None

    def _below(
        self,
        full: QueueAccount,
        claim: Wanted,
        running: Sequence[tuple[Container, QueueAccount]],
        so_far: _Round,
    ) -> Reclaim | None:
        """Victims with which a queue above stays within its maximum, wherever they are: what they
        leave is not taken at their units, and nothing is reserved there."""
        account, amount = claim.account, amount_of(claim.resources)
        demand = demand_vector(claim.resources)
        if not self._master_state.state.has_capacity_outside(_NOWHERE, demand, claim.requires):
            return None  # as while all nodes are closed
        tried, victims = so_far.copy(), list[Container]()
        own_batch = claim.is_stream and self._may_push_aside(account, amount)
        for container, of in running:
            held, most = tried.of(full), full.limits.maximum
            lacks = [x for x in range(3) if amount[x] and held[x] + amount[x] > most[x]]
            if not lacks:
                break
            lost = amount_of(container.request.resources)
            if container.container_id in tried.taken or full not in of.path:
                continue
            top = tried.top(account, amount)
            is_own = of is account
            if is_own:
                may_end = own_batch and not _is_stream(self._master_state, container)
            else:
                may_end = top is not None and top in full.path
                may_end = may_end and tried.may_lose(of, account, lost, lacks)
            if may_end:
                victims.append(container)
                tried.taken.add(container.container_id)
                tried.change(of, less(NOTHING, lost))
        if not victims or tried.full(account, amount) is not None:
            return None
        so_far.placed, so_far.taken = tried.placed, tried.taken
        so_far.change(account, amount)
        so_far.left -= len(victims)
        return Reclaim(claim, NO_UNIT, tuple(victims))

    def _may_push_aside(self, account: QueueAccount, amount: Governed) -> bool:
        """May a stream take the place of batch of its own queue? Within the share it may."""
        streams = NOTHING
        for application_id, of in self.usage.active.items():
            other = self._master_state.applications.get(application_id)
            if of.name != account.name or other is None:
                continue
            if other.is_driver or other.record.workload_class is WorkloadClass.STREAM:
                streams = more(streams, self.usage.of_application[application_id])
        share = self._accounts.share(account)
        limit = [max(x, y) for x, y in zip(share, account.limits.guaranteed, strict=True)]
        return fits_into(amount, streams, (limit[0], limit[1], limit[2]))


def _take(so_far: _Round, found: _Try, claim: Wanted, unit_id: ResourceUnitId) -> Reclaim:
    """What was tried at this unit happens."""
    so_far.placed = found.so_far.placed
    so_far.taken.update(x.container_id for x in found.victims)
    so_far.change(claim.account, amount_of(claim.resources))
    so_far.rest[unit_id] = minus(found.free, demand_vector(claim.resources))
    so_far.left -= len(found.victims)
    return Reclaim(claim, unit_id, tuple(found.victims))


def _as_one(group: list[Reclaim]) -> list[Reclaim]:
    """A gang has its places together: where a queue is to pass some of it later, none is reserved
    for the others."""
    if all(each.unit_id for each in group):
        return group
    return [each._replace(unit_id=NO_UNIT) for each in group]


def _unclaimed(queue: UnitQueue) -> Vector:
    """What is free at a unit beyond what waits there first; it may be negative."""
    free = queue.free
    for entry in queue.stream_waiting.values():
        free = minus(free, entry.demand)
    for entry in queue.batch_waiting.values():
        if entry.place:
            free = minus(free, entry.demand)
    return free


def _is_stream(master_state: MasterState, container: Container) -> bool:
    app = master_state.applications[container.application_id]
    return app.record.workload_class is WorkloadClass.STREAM


def _needed(app: Application) -> set[ContainerId]:
    """Those without which an application has fewer than its gang: its oldest."""
    many = app.record.gang_min if app.record.gang_min > 1 else 0
    if not many:
        return set()
    there = app.in_state(ContainerState.RUNNING, ContainerState.ASSIGNED)
    placed = [x for x in there if x.stop_cause is None]
    oldest = sorted(placed, key=lambda x: (x.started_at_s or math.inf, x.container_id))
    return {x.container_id for x in oldest[:many]}
