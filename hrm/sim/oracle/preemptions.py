"""Batch is preempted for streams, and what yields for anything: checked on what a node has ordered.

A victim is named with the container that preempts it. Streams of a pool are served in the order of
its units and of their arrival, from what is free, what is ending already, and what earlier victims
give back. A stream's victims must be enough for it, and each of them needed. So must those of batch
be, which all yield; what batch before it may be about to take counts as taken. No other batch is
preempted for a stream to which enough yields.

Batch is served in the order of its line. Where recorded uses order it (``GpuWaiterChecks.orders``),
those for which something yields are served in the order in which the node has named them, and any
other that fits may come before them.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable

from hrm.core.messages import commands as c
from hrm.core.messages.claims import Entry
from hrm.core.node.core import NodeCore
from hrm.core.queue.resource_unit import UnitQueue
from hrm.core.vocabulary.feasibility import Vector
from hrm.core.vocabulary.model import ContainerId, ContainerState, EndCause, WorkloadClass
from hrm.sim.faults.capacity import fits_offer
from hrm.sim.oracle.yielding import does_yield

__all__ = ["needless_preemptions"]


def needless_preemptions(
    core: NodeCore,
    commands: Iterable[c.NodeCommand],
    orders: Callable[[NodeCore, UnitQueue], bool],
) -> list[str]:
    """What is wrong with the preemptions among the commands of one event; empty if nothing is.
    ``orders``: see ``GpuWaiterChecks``."""
    victims: dict[ContainerId, str] = {}
    for command in commands:
        if isinstance(command, c.StopProcess) and command.decommission:
            victims[command.container_id] = command.reason.split()[-1]
            if command.cause is not EndCause.PREEMPTED:
                return [f"{command.container_id} is preempted, and ends as {command.cause.value}"]
    if not victims:
        return []
    found = [
        f"{victim} is preempted on {core.name}, and is a stream itself"
        for victim in victims
        if core.containers[victim].spec.workload_class is not WorkloadClass.BATCH
    ]
    pools = {id(queue.pool): queue.pool for queue in core.units.values()}
    waiters = {x for queue in core.units.values() for x in queue.stream_waiting}
    for victim, waiter in victims.items():
        if does_yield(core, victim) and any(waiter in x.batch_waiting for x in core.units.values()):
            continue
        if waiter not in waiters:
            found.append(f"{victim} is preempted on {core.name} for {waiter}, which does not wait")
    for pool in pools.values():
        by_choice = any(orders(core, queue) for queue in pool)
        found += _pool(core, pool, victims, by_choice=by_choice)
    return found


def _pool(
    core: NodeCore, pool: list[UnitQueue], victims: dict[ContainerId, str], *, by_choice: bool
) -> list[str]:
    found: list[str] = []
    free = [queue.free for queue in pool]
    going: dict[str, list[tuple[int, Entry]]] = {}
    for index, queue in enumerate(pool):
        for entry in queue.running.values():
            if entry.container_id in victims:
                going.setdefault(victims[entry.container_id], []).append((index, entry))
            elif core.containers[entry.container_id].life.state is ContainerState.STOPPING:
                free = [_moved(x, i == index, entry, 1) for i, x in enumerate(free)]
    for index, queue in enumerate(pool):
        for waiter in queue.stream_waiting.values():
            mine = going.get(waiter.container_id, [])
            gained = free
            for where, entry in mine:
                gained = [_moved(x, i == where, entry, 1) for i, x in enumerate(gained)]
            served = fits_offer(waiter.demand, gained[index])
            if mine and not served:
                found.append(f"containers are preempted for {waiter.container_id} in vain")
            for where, entry in mine:
                if fits_offer(waiter.demand, _moved(gained[index], index == where, entry, -1)):
                    found.append(f"{entry.container_id} is preempted for {waiter.container_id}, "
                                 f"which fits without")  # fmt: skip
            if any(not does_yield(core, x.container_id) for _, x in mine) and fits_offer(
                waiter.demand, _if_all_yielded(core, pool, free[index], index, victims)
            ):
                found.append(f"batch is preempted for {waiter.container_id}, and enough yields")
            if served:
                free = [_moved(x, i == index, waiter, -1) for i, x in enumerate(gained)]
    order = list(pool[0].line)
    if by_choice:
        named = list(victims.values())
        order.sort(key=lambda x: named.index(x) if x in named else -1)
    return found + _batch(pool, free, going, order)


def _batch(
    pool: list[UnitQueue],
    free: list[Vector],
    going: dict[str, list[tuple[int, Entry]]],
    order: Iterable[ContainerId],
) -> list[str]:
    """What is wrong with what yields to batch. ``free``: after the streams. ``order``: in which it
    is served."""
    found: list[str] = []
    taken = free
    for container_id in order:
        owner = pool[0].line[container_id]
        index = pool.index(owner)
        waiter = owner.batch_waiting[container_id]
        for where, entry in going.get(container_id, []):
            free = [_moved(x, i == where, entry, 1) for i, x in enumerate(free)]
            taken = [_moved(x, i == where, entry, 1) for i, x in enumerate(taken)]
        if container_id in going and not fits_offer(waiter.demand, free[index]):
            found.append(f"containers yield to {container_id} in vain")
        for where, entry in going.get(container_id, []):
            if fits_offer(waiter.demand, _moved(taken[index], index == where, entry, -1)):
                found.append(f"{entry.container_id} yields to {container_id}, which fits without")
        if fits_offer(waiter.demand, taken[index]):
            taken = [_moved(x, i == index, waiter, -1) for i, x in enumerate(taken)]
        if container_id in going:
            free = [_moved(x, i == index, waiter, -1) for i, x in enumerate(free)]
    return found


def _if_all_yielded(
    core: NodeCore, pool: list[UnitQueue], free: Vector, index: int, ordered: Container[ContainerId]
) -> Vector:
    """What would be free at a unit if all ended that yield in its pool, and end by no other order
    than one of now."""
    for where, queue in enumerate(pool):
        for entry in queue.running.values():
            going = core.containers[entry.container_id].life.state is ContainerState.STOPPING
            if does_yield(core, entry.container_id) and (
                entry.container_id in ordered or not going
            ):
                free = _moved(free, where == index, entry, 1)
    return free


def _moved(free: Vector, own: bool, entry: Entry, sign: int) -> Vector:
    """What is free once ``entry`` has gone (1) or come (-1), here or at a sibling."""
    vcores, memory_mib, device_mib, slots = entry.demand
    if not own:
        device_mib = slots = 0
    here = (vcores, memory_mib, device_mib, slots)
    a, b, c, d = (have + sign * moved for have, moved in zip(free, here, strict=True))
    return (a, b, c, d)
