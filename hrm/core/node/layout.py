"""What each resource unit of a node has while containers of an earlier layout still run.

A binding gives each unit a *target* capacity. Containers that run when the binding changes stay at
their units and keep what they hold, which may be more than the target: such a unit *borrows* the
difference from those that hold less than theirs, which *lend* it. All else has moved at once: a
unit that borrows has nothing idle, and every other unit has its target but for what it lends. Each
container that ends at a borrower gives back, until nothing is borrowed and the targets are in
force.

- A unit that the binding no longer has stays, draining, with what its containers hold.
- Cores and memory are borrowed, each from the units in proportion to what they can spare. Device
  memory is not, because a GPU stays with its unit, and neither are slots, which are limits of one
  unit: a limit that has fallen holds once as many containers have ended.
- Units that share cores and memory borrow and lend as one.
- Where cores are bound, a lender gives away first the cores on which the borrower's containers run
  already, and a borrower takes these first.

At every moment the current capacities of the units add up to the node's hardware, no core is bound
to two units, and no unit has less than its containers hold.

Source: HRM paper, section 3.1 (the binding changes with the load), which does not say what becomes
of running containers. Borrowing is HRM's choice.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from hrm.core.messages.claims import Entry
from hrm.core.queue.pools import queues_of
from hrm.core.queue.resource_unit import UnitQueue
from hrm.core.vocabulary.feasibility import Column, Vector, minus, plus
from hrm.core.vocabulary.model import (
    NOTHING,
    ContainerId,
    Resources,
    ResourceUnit,
    ResourceUnitId,
)
from hrm.core.vocabulary.partitioning import Partitioning

__all__ = ["carry_over", "exceeds", "held_at", "no_gpu", "settle"]

_EMPTY: Vector = (0, 0, 0, 0)


@dataclass(slots=True)
class _Share:
    """Vcores and memory of units that have them in common: by the layout, held, and lent."""

    target: Vector = _EMPTY
    held: Vector = _EMPTY
    lent: Vector = _EMPTY

    @property
    def borrowed(self) -> Vector:
        a, b, c, d = minus(self.held, self.target)
        return (max(0, a), max(0, b), max(0, c), max(0, d))


def settle(
    target: Sequence[ResourceUnit],
    present: Sequence[ResourceUnit],
    held: Mapping[ResourceUnitId, Vector],
) -> tuple[ResourceUnit, ...] | None:
    """The units now: those of ``target``, as far as what runs lets them have it, then those that
    go. None: the node does not have what is ``held``.

    ``present``: the units so far, for the cores that they are bound to. ``held``: what the running
    containers of each unit hold together; a unit that is neither in ``target`` nor ``present`` may
    hold something, too. Over the units of the result, ``target`` and ``current`` capacities add up
    to the same.
    """
    goes = _going(target, present, held)
    shares: dict[ResourceUnitId, _Share] = {}
    for unit in (*target, *goes):
        share = shares.setdefault(unit.pool or unit.unit_id, _Share())
        if not unit.pool:
            share.target = (unit.capacity.vcores, unit.capacity.memory_mib, 0, 0)
        vcores, memory_mib, device_mib, _ = held.get(unit.unit_id, _EMPTY)
        share.held = plus(share.held, (vcores, memory_mib, 0, 0))
        if device_mib > unit.capacity.gpu_memory_mib:
            return None
    for column in (Column.VCORES, Column.MEMORY_MIB):
        if not _lend(list(shares.values()), column):
            return None
    units = [_now(unit, shares, held) for unit in (*target, *goes)]
    return tuple(_pinned(target, present, units))


def exceeds(unit: ResourceUnit, target: ResourceUnit | None) -> bool:
    """Does this unit have more than the layout gives it, so that an end there frees something for
    others? ``target``: the unit of the layout, None where it has none."""
    return target is None or unit.borrowed != NOTHING or unit.run_limit > target.run_limit


def held_at(queue: UnitQueue) -> Vector:
    """What the running containers of a unit hold together."""
    held = _EMPTY
    for entry in queue.running.values():
        held = plus(held, entry.demand)
    return held


def carry_over(
    queues: Mapping[ResourceUnitId, UnitQueue],
    units: Sequence[ResourceUnit],
    arrival: Callable[[ContainerId], float],
) -> tuple[dict[ResourceUnitId, UnitQueue], list[ContainerId]]:
    """The queues of ``units`` with what runs and waits at ``queues``, and the waiting containers
    that their unit cannot hold any more. ``units`` are as ``settle`` returns them; ``arrival``:
    when a container came, by which those that wait at units that now share are put in one order."""
    new = queues_of(units)
    for unit_id, queue in queues.items():
        for entry in queue.running.values():
            new[unit_id].run(entry, entry.started_at_s)
    turned_away: list[ContainerId] = []

    def enqueue(unit_id: ResourceUnitId, entry: Entry) -> None:
        there = new.get(unit_id)
        if there is None or there.unit.draining or not there.could_hold(entry.demand):
            turned_away.append(entry.container_id)
        else:
            there.enqueue(entry)

    for unit_id, queue in queues.items():
        for entry in queue.stream_waiting.values():
            enqueue(unit_id, entry)
    lines = {id(queue.line): queue.line.items() for queue in queues.values()}
    for container_id, owner in heapq.merge(*lines.values(), key=lambda each: arrival(each[0])):
        enqueue(owner.unit.unit_id, owner.batch_waiting[container_id])
    lines = {id(queue.yielding_line): queue.yielding_line.items() for queue in queues.values()}
    for container_id, owner in heapq.merge(*lines.values(), key=lambda each: arrival(each[0])):
        enqueue(owner.unit.unit_id, owner.yielding_waiting[container_id])
    return new, turned_away


def _going(
    target: Sequence[ResourceUnit],
    present: Sequence[ResourceUnit],
    held: Mapping[ResourceUnitId, Vector],
) -> list[ResourceUnit]:
    """The units that the layout does not have, and that hold something; with a capacity of 0 but
    for device memory, which no other unit has."""
    stay = {unit.unit_id for unit in target}
    devices = {unit.unit_id: unit for unit in present}
    goes = []
    for unit_id in sorted(held.keys() - stay):
        if not any(held[unit_id]):
            continue
        known = devices.get(unit_id) or ResourceUnit(unit_id=unit_id, capacity=NOTHING, run_limit=0)
        capacity = Resources(0, 0, known.capacity.gpu_memory_mib)
        pool = ResourceUnitId("")
        goes.append(replace(known, capacity=capacity, run_limit=0, pool=pool, draining=True))
    return goes


def _lend(shares: Sequence[_Share], column: Column) -> bool:
    """Let those that can spare some lend what is borrowed; False: together they cannot."""
    amount = sum(share.borrowed[column] for share in shares)
    spare = [max(0, share.target[column] - share.held[column]) for share in shares]
    whole = sum(spare)
    if amount > whole:
        return False
    if not amount:
        return True
    parts = [amount * each // whole for each in spare]
    by_remainder = sorted(range(len(spare)), key=lambda x: -(amount * spare[x] % whole))
    for index in by_remainder[: amount - sum(parts)]:
        parts[index] += 1
    for share, part in zip(shares, parts, strict=True):
        share.lent = plus(share.lent, _along(column, part))
    return True


def _along(column: Column, amount: int) -> Vector:
    return (amount, 0, 0, 0) if column is Column.VCORES else (0, amount, 0, 0)


def _now(
    unit: ResourceUnit,
    shares: Mapping[ResourceUnitId, _Share],
    held: Mapping[ResourceUnitId, Vector],
) -> ResourceUnit:
    share = shares[unit.pool or unit.unit_id]
    vcores, memory_mib, *_ = share.borrowed
    device_mib = unit.capacity.gpu_memory_mib if unit.draining else 0
    borrowed = Resources(vcores, memory_mib, device_mib)
    lent = Resources(share.lent[Column.VCORES], share.lent[Column.MEMORY_MIB])
    slots = held.get(unit.unit_id, _EMPTY)[Column.SLOTS]
    return replace(
        unit,
        capacity=unit.capacity + Resources(vcores, memory_mib),
        run_limit=max(unit.run_limit, -(-slots // unit.gpus_used)),
        borrowed=borrowed,
        lent=lent,
    )


def _pinned(
    target: Sequence[ResourceUnit], present: Sequence[ResourceUnit], units: Sequence[ResourceUnit]
) -> list[ResourceUnit]:
    """``units`` with the cores to which they are bound; none where the layout binds none."""
    if not all(unit.cpus for unit in target):
        return [replace(unit, cpus=()) for unit in units]
    home = {unit.unit_id: unit.cpus for unit in target}
    before = {unit.unit_id: set(unit.cpus) for unit in present}
    borrowers = [unit for unit in units if unit.borrowed.vcores]
    wanted = {cpu for unit in borrowers for cpu in before.get(unit.unit_id, ())}
    chosen: dict[ResourceUnitId, list[int]] = {}
    for unit in units:
        here = before.get(unit.unit_id, set())
        order = sorted(
            home.get(unit.unit_id, ()), key=lambda x: (x in wanted - here, x not in here, x)
        )
        chosen[unit.unit_id] = order[: unit.current.vcores]
    taken = {cpu for cpus in chosen.values() for cpu in cpus}
    left = [cpu for unit in target for cpu in unit.cpus if cpu not in taken]
    for unit in borrowers:
        here = before.get(unit.unit_id, set())
        left.sort(key=lambda x: (x not in here, x))
        lacking = unit.current.vcores - len(chosen[unit.unit_id])
        chosen[unit.unit_id] += left[:lacking]
        del left[:lacking]
    return [replace(unit, cpus=tuple(sorted(chosen[unit.unit_id]))) for unit in units]


def no_gpu(kept_back: int, binding: Partitioning) -> str:
    """Why there is nothing to bind. ``kept_back``: how many GPUs it has and does not offer.

    A binding that only GPUs give a meaning must not change while there are none: the change would
    show no effect, could not be taken back, and would be in force when the GPUs return.
    """
    instead = "hrm nodes shows which nodes have GPUs; bind one of those"
    if kept_back:
        instead = f"start its agent with a larger gpu_limit to offer some of its {kept_back}"
    return (
        f"it offers no GPU, so its cores are one unit in every mode, and it keeps its binding "
        f"({binding}); {instead}"
    )
