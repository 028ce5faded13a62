"""Which containers would be preempted for the claims of queues: nothing is changed here.

What a claim is, and who its victims are: ``hrm.core.master.queue_reclaim``.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeAlias

from hrm.core.master import gangs
from hrm.core.master.entities import Application, Container
from hrm.core.master.own_victims import IsVictim, OwnVictims, interrupts
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
    ``requires``, and rather on ``platform``. ``container``: None where it is only supposed;
    ``is_promised``: others have been preempted or returned for it (``QueueUsage.promised``);
    ``interrupts``: it is of the highest class, and may take what others of its queue hold."""

    account: QueueAccount
    resources: Resources
    is_stream: bool
    avoided: Collection[NodeName] = ()
    requires: NodeRequirement | None = None
    container: Container | None = None
    platform: str = ""
    is_promised: bool = False
    interrupts: bool = False

    @property
    def is_kept(self) -> bool:
        """Does its queue keep it from its scheduler?"""
        return self.container is not None and self.container.withheld


_Kind: TypeAlias = tuple[object, ...]
_NOWHERE: frozenset[NodeName] = frozenset()


def _kind(claim: Wanted) -> _Kind:
    """Claims of one kind find the same victims."""
    return (
        claim.account.name, claim.resources, claim.is_stream, claim.is_kept, claim.is_promised,
        frozenset(claim.avoided), claim.requires, claim.platform, claim.interrupts,
    )  # fmt: skip


class Reclaim(NamedTuple):
    """For this claim these are preempted, at this unit; without one, wherever they are. Those that
    wait at a unit are returned instead."""

    claim: Wanted
    unit_id: ResourceUnitId
    victims: tuple[Container, ...]


@dataclass(slots=True)
class _Round:
    """What has been chosen so far: ``placed`` is what queues hold at nodes after it. ``taken``:
    what ends; ``rest``: of units, what that leaves and is not claimed; ``left``: how many more may
    end in this round, but for what the claim under way takes, which is all or nothing. ``passing``:
    what queues have kept, and let pass now or are to let pass later; ``ending``: what they hold
    until it has ended."""

    accounts: AccountTree
    left: int
    placed: dict[QueueName, Governed] = field(default_factory=dict)
    taken: set[ContainerId] = field(default_factory=set)
    rest: dict[ResourceUnitId, Vector] = field(default_factory=dict)
    passing: dict[QueueName, Governed] = field(default_factory=dict)
    ending: dict[QueueName, Governed] = field(default_factory=dict)

    def copy(self) -> _Round:
        return replace(
            self, placed=dict(self.placed), taken=set(self.taken), rest=dict(self.rest),
            passing=dict(self.passing), ending=dict(self.ending),
        )  # fmt: skip

    def of(self, account: QueueAccount) -> Governed:
        return self.placed.get(account.name, account.placed)

    def change(self, account: QueueAccount, amount: Governed) -> None:
        for each in account.path:
            self.placed[each.name] = more(self.of(each), amount)

    def ends(self, account: QueueAccount, amount: Governed, *, is_placed: bool = True) -> None:
        """So much that a queue holds, at nodes or while it waits, is about to end."""
        for each in account.path:
            self.ending[each.name] = more(self.ending.get(each.name, NOTHING), amount)
        if is_placed:
            self.change(account, less(NOTHING, amount))

    def grant(self, claim: Wanted) -> None:
        """Its queue holds what it claims from now on, or once others have ended."""
        amount = amount_of(claim.resources)
        self.change(claim.account, amount)
        for each in claim.account.path if claim.is_kept else ():
            self.passing[each.name] = more(self.passing.get(each.name, NOTHING), amount)

    def keeps(
        self, claim: Wanted, *, but_ending: bool = False
    ) -> tuple[QueueAccount, list[int]] | None:
        """The lowest queue of whose maximum this would be too much if it passed, by all that it
        holds and that is ``promised`` to others, and in which resources. ``but_ending``: once what
        is about to end has ended."""
        amount = amount_of(claim.resources)
        for each in claim.account.path:
            held = more(each.held, self.passing.get(each.name, NOTHING))
            if not claim.is_promised:
                held = more(held, each.promised)
            if but_ending:
                held = less(held, self.ending.get(each.name, NOTHING))
            if not fits_into(amount, held, each.limits.maximum):
                most = each.limits.maximum
                return each, [x for x in range(3) if amount[x] and held[x] + amount[x] > most[x]]
        return None

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
        self._returnable: list[tuple[Container, QueueAccount]] | None = None
        self._own = OwnVictims(master_state, usage)

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
            container.container_id in self.usage.promised,
            interrupts(self._accounts.of[QueueName(app.record.queue)], app),
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
            tried = so_far.copy()
            group = self._for_all(some, running, tried)
            if group:
                so_far = tried
                found.append(_as_one(group))
                in_vain.clear()
            elif len(some) == 1:
                in_vain.add(kind)  # a like one finds as little until something is taken
        return found

    def _for_all(
        self,
        some: Sequence[Wanted],
        running: Sequence[tuple[Container, QueueAccount]],
        so_far: _Round,
    ) -> list[Reclaim]:
        """For each of these, or none; none, too, where what ends already lets all of them pass."""
        group = list[Reclaim]()
        for claim in some:
            each = self._for_one(claim, running, so_far)
            if each is None:
                return []
            group.append(each)
        return group if any(each.unit_id or each.victims for each in group) else []

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
        self._returnable = None
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
                    if entry is None:
                        continue
                    is_placed = entry.level is Level.PLACED
                    of = self._accounts.of[entry.account.name]
                    so_far.ends(of, entry.amount, is_placed=is_placed)
                    if not is_placed:
                        continue
                    queue = self._master_state.state.find(container.unit_id)
                    if queue is not None and container.container_id in queue.running:
                        demand = demand_vector(container.request.resources)
                        free = so_far.rest.get(container.unit_id) or _unclaimed(queue)
                        so_far.rest[container.unit_id] = plus(free, demand)

    def _is_going(self, container: Container) -> bool:
        if container.state is ContainerState.STOPPING or container.stop_cause is not None:
            return True
        # Ordered to be returned, it goes unless it has started.
        return container.container_id in self._going and container.state is ContainerState.WAITING

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
        for is_own in self._own_victims(claim, running, so_far):
            if claim.platform:
                rows = self._master_state.state.rows_at(claim.platform)
                found = self._for_one_at(rows, claim, running, so_far, is_own)
                if found is not None:
                    return found
            found = self._for_one_at(None, claim, running, so_far, is_own)
            if found is not None:
                return found
        return None

    def _own_victims(
        self, claim: Wanted, running: Sequence[tuple[Container, QueueAccount]], so_far: _Round
    ) -> Iterator[IsVictim | None]:
        """What of its own queue may end for it, one possibility after the other; None: nothing.
        What others have borrowed comes before what is interrupted."""
        own, amount = self._own, amount_of(claim.resources)
        if claim.is_stream:
            yield own.for_stream(claim.account, amount)
            return
        if not claim.interrupts or not claim.is_kept or so_far.keeps(claim) is not None:
            yield None
        if claim.interrupts:
            yield from own.interruptible(claim.account, amount, running, so_far.taken)

    def _for_one_at(
        self,
        rows: Bools | None,
        claim: Wanted,
        running: Sequence[tuple[Container, QueueAccount]],
        so_far: _Round,
        is_own: IsVictim | None,
    ) -> Reclaim | None:
        """The same at these rows, shape (rows,), or anywhere."""
        state = self._master_state.state
        account, avoided = claim.account, claim.avoided
        amount, demand = amount_of(claim.resources), demand_vector(claim.resources)
        full = so_far.full(account, amount)
        if full is not None:
            return self._below(full, claim, running, so_far, is_own)
        goes_first = claim.is_stream or claim.interrupts
        is_kept = claim.is_kept and (not goes_first or so_far.keeps(claim) is not None)
        if is_kept and not self._everything:
            return self._returned(claim, so_far, is_own)
        top = so_far.top(account, amount)
        if top is None and is_own is None:
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
            if not is_claimed and (is_own is None or not is_own(container, of)):
                continue
            found.victims.append(container)
            found.so_far.taken.add(container.container_id)
            found.so_far.ends(of, lost)
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
        is_own: IsVictim | None,
    ) -> Reclaim | None:
        """Victims with which a queue above stays within its maximum, wherever they are: what they
        leave is not taken at their units, and nothing is reserved there."""
        account, amount = claim.account, amount_of(claim.resources)
        demand = demand_vector(claim.resources)
        if not self._master_state.state.has_capacity_outside(_NOWHERE, demand, claim.requires):
            return None  # as while all nodes are closed
        tried, victims = so_far.copy(), list[Container]()
        for container, of in running:
            held, most = tried.of(full), full.limits.maximum
            lacks = [x for x in range(3) if amount[x] and held[x] + amount[x] > most[x]]
            if not lacks:
                break
            lost = amount_of(container.request.resources)
            if container.container_id in tried.taken or full not in of.path:
                continue
            top = tried.top(account, amount)
            if of is account:
                may_end = is_own is not None and is_own(container, of)
            else:
                may_end = top is not None and top in full.path
                may_end = may_end and tried.may_lose(of, account, lost, lacks)
            if may_end:
                victims.append(container)
                tried.taken.add(container.container_id)
                tried.ends(of, lost)
        if not victims or tried.full(account, amount) is not None:
            return None
        so_far.placed, so_far.taken, so_far.ending = tried.placed, tried.taken, tried.ending
        so_far.grant(claim)
        so_far.left -= len(victims)
        return Reclaim(claim, NO_UNIT, tuple(victims))

    def _returned(self, claim: Wanted, so_far: _Round, is_own: IsVictim | None) -> Reclaim | None:
        """What waits at units and fills a queue up to its maximum, so that this is kept: batch of
        its own queue for a stream, and what yields of others for what it is guaranteed. Nothing
        where what ends already lets it pass."""
        account, amount = claim.account, amount_of(claim.resources)
        top = so_far.top(account, amount)
        if not account.fits_share(amount, self._accounts.share(account)):
            top = None  # its queue would keep it all the same
        tried, some = so_far.copy(), list[Container]()
        for container, of in self._waiting():
            keeps = tried.keeps(claim, but_ending=True)
            if keeps is None:
                break
            full, lacks = keeps
            lost = amount_of(container.request.resources)
            if container.container_id in tried.taken or full not in of.path:
                continue
            if of is account:
                may_return = is_own is not None and is_own(container, of)
            else:
                may_return = container.request.yields and top is not None and top in full.path
            if may_return and any(lost[x] for x in lacks):
                some.append(container)
                tried.taken.add(container.container_id)
                tried.ends(of, lost, is_placed=False)
        if tried.keeps(claim, but_ending=True) is not None:
            return None
        so_far.taken, so_far.ending = tried.taken, tried.ending
        so_far.grant(claim)
        return Reclaim(claim, NO_UNIT, tuple(some))

    def _waiting(self) -> list[tuple[Container, QueueAccount]]:
        """What may be returned from units: what yields first, and the latest first."""
        if self._returnable is not None:
            return self._returnable
        found: list[tuple[Container, QueueAccount]] = []
        for name, of_leaf in self.usage.unplaced.items():
            for container in of_leaf.values():
                app = self._master_state.applications[container.application_id]
                waits = container.state is ContainerState.WAITING and not container.request.place
                if waits and not app.is_driver and not gangs.missing(app):
                    found.append((container, self._accounts.of[name]))
        found.sort(key=lambda x: (not x[0].request.yields, -x[0].assigned_at_s, x[0].container_id))
        self._returnable = found
        return found


def _take(so_far: _Round, found: _Try, claim: Wanted, unit_id: ResourceUnitId) -> Reclaim:
    """What was tried at this unit happens."""
    so_far.placed, so_far.ending = found.so_far.placed, found.so_far.ending
    so_far.taken.update(x.container_id for x in found.victims)
    so_far.grant(claim)
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


def _needed(app: Application) -> set[ContainerId]:
    """Those without which an application has fewer than its gang: its oldest."""
    many = app.record.gang_min if app.record.gang_min > 1 else 0
    if not many:
        return set()
    there = app.in_state(ContainerState.RUNNING, ContainerState.ASSIGNED)
    placed = [x for x in there if x.stop_cause is None]
    oldest = sorted(placed, key=lambda x: (x.started_at_s or math.inf, x.container_id))
    return {x.container_id for x in oldest[:many]}
