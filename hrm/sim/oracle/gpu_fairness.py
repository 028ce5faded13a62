"""Are GPUs shared fairly among batch applications, whichever schedulers place them?

Sampled at each tick of the master once faults have stopped, from the states of its containers.
Units with one GPU, with two and so on are shared out each by themselves, in device memory. While
batch applications compete for those of one kind, none may start a container and then run more than
its share, while another waits for one that is no larger in anything, and has for long held less
than its own. What is left over may be anyone's; where sizes differ, so may as much as the largest.
What runs may go on: a newcomer gets its part as containers end.

Where executors are preempted for a fairer share, none goes below its own, but for what sizes that
differ leave over; nor are any for a gang that would not start (``gang_victims``). What they free is
not taken back too soon (``freed_gpus``, at each event), nor what is queued again and again
(``taken_back``).

Shares are handed out here one container at a time, to the one that has least. Left out: gangs,
which are placed whole; applications that avoid a node; policies that may leave a GPU idle; those of
one kind, while one of them may not use every node.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

from hrm.core.master.core import MasterCore
from hrm.core.master.entities import Container
from hrm.core.master.queue_reclaim import RECLAIM_REASONS
from hrm.core.messages import commands as c
from hrm.core.messages import events as e
from hrm.core.vocabulary.feasibility import Column, Vector, demand_vector
from hrm.core.vocabulary.model import (
    ApplicationId,
    ContainerId,
    ContainerState,
    NodeState,
    WorkloadClass,
)
from hrm.sim.faults.capacity import fits_offer, how_many, serves
from hrm.sim.oracle.freed_gpus import FreedGpus, has_capacity
from hrm.sim.oracle.gang_victims import check_gang_victims
from hrm.sim.oracle.taken_back import TakenBack

__all__ = ["GpuFairness", "even_shares"]

_SETTLED_S = 6.0
"""Longer than the master takes to take back what is queued beyond a share."""

_Rivals: TypeAlias = dict[ApplicationId, list[Container]]


def even_shares(total_mib: int, wanted: dict[ApplicationId, list[int]]) -> dict[ApplicationId, int]:
    """The device memory that each gets: its next container to the one that has least, of those
    that want more. ``wanted``: sizes, those that it holds first."""
    shares = dict.fromkeys(wanted, 0)
    queues = {name: deque(sizes) for name, sizes in wanted.items()}
    while left := [name for name, sizes in queues.items() if sizes]:
        least = min(left, key=lambda name: shares[name])
        size_mib = queues[least].popleft()
        if size_mib <= total_mib:
            total_mib -= size_mib
            shares[least] += size_mib
    return shares


def _share_of(
    name: ApplicationId, total_mib: int, wanted: dict[ApplicationId, list[int]], *, last: bool
) -> int:
    """The least that is fair, as the last; or the most: what is left over may be anyone's."""
    order = sorted(wanted, key=lambda other: (other == name) is last)
    return even_shares(total_mib, {x: wanted[x] for x in order})[name]


@dataclass(slots=True)
class _Rival:
    """One application. ``shares``: when it had which share, of the latest samples.
    ``poor_since_s``: since when it has waited with less than its share; None: it does not."""

    running: set[ContainerId] = field(default_factory=set)
    shares: list[tuple[float, int]] = field(default_factory=list)
    poor_since_s: float | None = None


class GpuFairness:
    """``_rivals``: the batch applications that want GPUs, by how many a unit has, as of the latest
    sample."""

    def __init__(self, violated: Callable[[str], None], *, every_policy: bool) -> None:
        """``every_policy``: a policy may leave idle what it could have."""
        self._violated = violated
        self._skipped = every_policy
        self._rivals: dict[int, dict[ApplicationId, _Rival]] = {}
        self._ordered: dict[ContainerId, float] = {}
        self._freed = FreedGpus(violated)
        self._taken_back = TakenBack(violated)

    def master_began(self) -> None:
        self._freed.master_began()
        self._taken_back.master_began()
        self._rivals.clear()
        self._ordered.clear()

    def after(
        self,
        core: MasterCore,
        event: e.MasterEvent,
        commands: Iterable[c.MasterCommand],
        quiet_since_s: float,
    ) -> None:
        self._taken_back.after(core, commands)
        is_tick = isinstance(event, e.Ticked)
        if not is_tick and not self._freed:
            return
        kinds = _contenders(core)
        if is_tick:
            self._preempted(core, kinds, commands, event.now)
        for apps in kinds.values():
            self._freed.after(apps, core.master_state.bounds.gpu_preemption_grace_s, event.now)
        if not is_tick or self._skipped or event.now < quiet_since_s:
            return
        if core.master_state.recovering:
            kinds = {}
        rivals, self._rivals = self._rivals, {}
        for gpus, apps in kinds.items():
            if len(apps) > 1:
                before = rivals.get(gpus, {})
                self._rivals[gpus] = {x: before.get(x, _Rival()) for x in apps}
                self._sample(core, apps, self._rivals[gpus], event.now)

    def _preempted(
        self,
        core: MasterCore,
        kinds: dict[int, _Rivals],
        commands: Iterable[c.MasterCommand],
        now: float,
    ) -> None:
        """Executors of which nothing but a fairer share is the reason to end them."""
        stopped = set[ContainerId]()
        for command in commands:
            match command:
                case c.SendToNode(message=c.StopContainer(decommission=True) as stop):
                    if stop.reason.startswith(RECLAIM_REASONS):
                        continue  # for a queue, not for an application
                    if core.master_state.nodes[command.node].state is NodeState.ALIVE:
                        stopped.add(stop.container_id)
        for slots, apps in kinds.items() if stopped else ():
            owners = {x.container_id: name for name, some in apps.items() for x in some}
            # An order that a node has not heeded is repeated, whoever waits then.
            ordered = (stopped & owners.keys()) - self._ordered.keys()
            victims = Counter(owners[x] for x in ordered)
            self._ordered |= dict.fromkeys(stopped & owners.keys(), now)
            everyone = _contenders(core, with_gangs=True).get(slots, apps)
            self._check_victims(everyone, victims, now)
            if why := check_gang_victims(core, everyone, ordered, even_shares):
                self._violated(why)
            self._freed.ordered(apps, stopped, now)

    def _check_victims(self, apps: _Rivals, victims: Counter[ApplicationId], now: float) -> None:
        wanted = {name: _sizes(some) for name, some in apps.items()}
        held_mib = sum(map(_held_mib, apps.values()))
        sizes = {x for some in wanted.values() for x in some}
        slack_mib = max(sizes) if len(sizes) > 1 else 0
        for name in victims:
            share_mib = _share_of(name, held_mib, wanted, last=True) - slack_mib
            kept_mib = sum(
                _mib(x)
                for x in apps[name]
                if has_capacity(x) and self._ordered.get(x.container_id) != now
            )
            if kept_mib < share_mib:
                self._violated(
                    f"{victims[name]} containers of {name} are preempted for a fairer share of "
                    f"GPUs: it keeps {kept_mib} MiB, its share is {share_mib}"
                )

    def _sample(
        self, core: MasterCore, apps: _Rivals, rivals: dict[ApplicationId, _Rival], now: float
    ) -> None:
        wanted = {x: _sizes(containers) for x, containers in apps.items()}
        held = {x: _held_mib(containers) for x, containers in apps.items()}
        sizes = {x for some in wanted.values() for x in some}
        slack_mib = max(sizes) if len(sizes) > 1 else 0
        capacity_mib, held_mib = _capacity_mib(core, apps), sum(held.values())
        most = {x: _share_of(x, capacity_mib, wanted, last=False) for x in wanted}
        least = {x: _share_of(x, held_mib, wanted, last=True) for x in wanted}
        for application_id, rival in rivals.items():
            recent = [x for x in rival.shares if now - x[0] <= _SETTLED_S]
            rival.shares = [*recent, (now, most[application_id])]
            enough_mib = min(sum(wanted[application_id]), least[application_id] - slack_mib)
            waits = held[application_id] < enough_mib
            avoids = core.master_state.exclusions.avoided(application_id, now)
            if not waits or avoids:
                rival.poor_since_s = None
            elif rival.poor_since_s is None:
                rival.poor_since_s = now
        poor = [
            name
            for name, rival in rivals.items()
            if rival.poor_since_s is not None and now - rival.poor_since_s >= _SETTLED_S
        ]
        for application_id, rival in rivals.items():
            running = {
                x.container_id: x for x in apps[application_id] if x.state is ContainerState.RUNNING
            }
            known = len(rival.shares) > 1
            started = [x for name, x in running.items() if name not in rival.running]
            rival.running = set(running)
            share_mib = max(x for _, x in rival.shares)
            running_mib = sum(map(_mib, running.values()))
            if not known or running_mib <= share_mib + slack_mib:
                continue
            for other in poor:
                if other != application_id and (began := _instead(started, apps[other])):
                    self._violated(
                        f"{application_id} starts {began} and runs containers with {running_mib} "
                        f"MiB of GPUs, its share is {share_mib}; {other} waits with {held[other]} "
                        f"of {least[other]}"
                    )
                    break


def _contenders(core: MasterCore, *, with_gangs: bool = False) -> dict[int, _Rivals]:
    """By how many GPUs each uses: batch applications, but gangs, with live containers that do and
    have passed their queues, for what these keep is no part of the contest; none of a kind while
    one may not use every node, for then they do not share the same GPUs."""
    kinds: dict[int, _Rivals] = {}
    restricted = core.master_state.restricted.keys()
    for app in core.master_state.live_applications():
        if app.record.workload_class is not WorkloadClass.BATCH:
            continue
        if app.record.gang_min >= 2 and not with_gangs:
            continue
        for container in app.containers.values():
            demand = _demand(container)
            if demand[Column.GPU_MEMORY_MIB] and not container.withheld:
                apps = kinds.setdefault(demand[Column.SLOTS], {})
                apps.setdefault(app.application_id, []).append(container)
    return {slots: apps for slots, apps in kinds.items() if restricted.isdisjoint(apps)}


def _instead(started: Iterable[Container], others: Iterable[Container]) -> str:
    """One of ``started`` in place of which one of ``others`` that waits could have."""
    demands = {_demand(x) for x in others if not _holds(x)}
    return next(
        (x.container_id for x in started if any(fits_offer(y, _demand(x)) for y in demands)), ""
    )


def _demand(container: Container) -> Vector:
    return demand_vector(container.request.resources)


def _mib(container: Container) -> int:
    return container.request.resources.gpu_memory_mib


def _sizes(containers: Iterable[Container]) -> list[int]:
    """Of each its device memory, those that hold some first."""
    return [_mib(x) for x in sorted(containers, key=lambda x: not _holds(x))]


def _holds(container: Container) -> bool:
    return has_capacity(container) or container.state is ContainerState.STOPPING


def _held_mib(containers: Iterable[Container]) -> int:
    return sum(_mib(x) for x in containers if _holds(x))


def _capacity_mib(core: MasterCore, apps: _Rivals) -> int:
    """The device memory that such containers could hold at most if nothing else ran."""
    nodes = [x for x in core.master_state.nodes.values() if x.state is not NodeState.LOST]
    units = [unit for node in nodes for unit in node.units]
    demands = {_demand(x) for containers in apps.values() for x in containers}
    if len(demands) == 1:
        (demand,) = demands
        return how_many(demand, units) * demand[Column.GPU_MEMORY_MIB]
    return sum(
        unit.target.gpu_memory_mib for unit in units if any(serves(x, unit) for x in demands)
    )
