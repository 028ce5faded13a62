"""Are executors preempted for a gang that would not start for it?

Where nothing but a gang waits with less than those have that give, what is preempted for a fairer
share of GPUs is for a gang. One of those that wait must then have a share that holds all of it, and
for each of its containers that uses no GPU there must be a unit that has enough free, or will.

Left out: gangs whose executors use several kinds of GPUs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from hrm.core.master.core import MasterCore
from hrm.core.master.entities import Application, Container
from hrm.core.vocabulary.feasibility import Column, Vector, demand_vector, plus
from hrm.core.vocabulary.model import ApplicationId, ContainerId, ContainerState
from hrm.sim.faults.capacity import fits_offer
from hrm.sim.oracle.freed_gpus import has_capacity

__all__ = ["check_gang_victims"]

_WAITS = (ContainerState.PENDING, ContainerState.WAITING)
_Shares = Callable[[int, dict[ApplicationId, list[int]]], dict[ApplicationId, int]]


def check_gang_victims(
    core: MasterCore,
    everyone: Mapping[ApplicationId, Sequence[Container]],
    stopped: Collection[ContainerId],
    even_shares: _Shares,
) -> str:
    """What is wrong with these orders to end executors of ``everyone``, the batch applications that
    use one kind of GPUs; empty if nothing is."""
    apps = core.master_state.applications
    gangs = [apps[name] for name, some in everyone.items() if _is_gang(apps[name], some)]
    names = {app.application_id for app in gangs}
    rivals = {name: some for name, some in everyone.items() if name not in names}
    victims = [x for some in rivals.values() for x in some if x.container_id in stopped]
    if not victims:
        return ""
    kept_mib = {
        name: sum(_mib(x) for x in some if x.container_id not in stopped and has_capacity(x))
        for name, some in rivals.items()
    }
    most_mib = max(kept_mib[x.application_id] for x in victims)
    if any(
        kept_mib[name] <= most_mib and any(map(_waits, some))
        for name, some in rivals.items()
        if not {x.application_id for x in victims} & {name}
    ):
        return ""
    slots = _demand(victims[0])[Column.SLOTS]
    wanted = {name: _sizes(some) for name, some in everyone.items()}
    held_mib = sum(_mib(x) for some in everyone.values() for x in some if _holds(x))
    for app in gangs:
        last = {x: wanted[x] for x in sorted(wanted, key=lambda x: x != app.application_id)}
        share_mib = even_shares(held_mib + _free_mib(core, slots), last)[app.application_id]
        if _would_start(core, app, share_mib, slots):
            return ""
    return (
        f"{len(victims)} executors are preempted for a fairer share of GPUs, for a gang that would "
        f"not start: {', '.join(sorted(names)) or 'none waits'}"
    )


def _would_start(core: MasterCore, app: Application, share_mib: int, slots: int) -> bool:
    pending = app.in_state(ContainerState.PENDING)
    placed = [x for x in app.containers.values() if _holds(x)]
    members = pending[: app.gang_min - len(placed)]
    kinds = {_demand(x)[Column.SLOTS] for x in members if _mib(x)}
    if kinds - {slots}:
        return True
    gang_mib = sum(map(_mib, members)) + sum(_mib(x) for x in placed if _slots(x) == slots)
    if gang_mib > share_mib:
        return False
    offers = _offers(core)
    return all(
        any(fits_offer(_demand(x), offer) for offer in offers) for x in members if not _mib(x)
    )


def _offers(core: MasterCore) -> list[Vector]:
    """What units have free, or will once what is ending has ended."""
    state, found = core.master_state.state, []
    for row in state.rows.values():
        if not state.open[row]:
            continue
        free = state.queue(row).free
        rows = {row, *state.siblings(row)}
        for node in core.master_state.nodes.values():
            for container in node.containers.values():
                its = state.rows.get(container.unit_id)
                ends = container.stop_cause is not None or container.state is (
                    ContainerState.STOPPING
                )
                if its in rows and ends:
                    free = plus(free, _demand(container))
        found.append(free)
    return found


def _free_mib(core: MasterCore, slots: int) -> int:
    state = core.master_state.state
    rows = [row for row in state.rows.values() if state.gpus[row] == slots and state.open[row]]
    return sum(state.queue(row).free[Column.GPU_MEMORY_MIB] for row in rows)


def _is_gang(app: Application, containers: Sequence[Container]) -> bool:
    """Does it wait for its gang?"""
    return app.gang_min > 1 and any(x.state is ContainerState.PENDING for x in containers)


def _waits(container: Container) -> bool:
    """Has it no place, or one in a queue, which its node need not have reported yet?"""
    sent = container.queued and container.state is ContainerState.ASSIGNED
    return sent or container.state in _WAITS


def _sizes(containers: Sequence[Container]) -> list[int]:
    return [_mib(x) for x in sorted(containers, key=lambda x: not _holds(x))]


def _holds(container: Container) -> bool:
    return has_capacity(container) or container.state is ContainerState.STOPPING


def _demand(container: Container) -> Vector:
    return demand_vector(container.request.resources)


def _slots(container: Container) -> int:
    return _demand(container)[Column.SLOTS]


def _mib(container: Container) -> int:
    return container.request.resources.gpu_memory_mib
