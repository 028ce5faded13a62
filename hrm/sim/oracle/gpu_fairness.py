"""Are GPUs shared fairly among batch applications, whichever schedulers place them?

Sampled at each tick of the master once faults have stopped, from the states of its containers.
While batch applications that request the same for each container compete for GPUs, none may start
a container and then run more than its share plus one, while another waits, and has for long held
less than its share minus one. What runs may go on: a newcomer gets its part as containers end.

Where executors are preempted for a fairer share, none goes below its own.

Shares are handed out here one container at a time, to the one that has least. Left out: gangs,
which are placed whole; applications that avoid a node; policies that may leave a GPU idle.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from hrm.core.master.core import MasterCore
from hrm.core.master.state import Container
from hrm.core.messages import commands as c
from hrm.core.messages import events as e
from hrm.core.vocabulary.feasibility import Vector, demand_vector
from hrm.core.vocabulary.model import (
    ApplicationId,
    ContainerId,
    ContainerState,
    NodeState,
    WorkloadClass,
)
from hrm.sim.faults.capacity import how_many

__all__ = ["GpuFairness", "even_shares"]

_SETTLED_S = 6.0
"""Longer than the master takes to take back what is queued beyond a share."""
_HOLDS = (ContainerState.ASSIGNED, ContainerState.RUNNING, ContainerState.STOPPING)


def even_shares(total: int, wanted: dict[ApplicationId, int]) -> dict[ApplicationId, int]:
    """``total`` containers, one at a time to the one that has least of those that want more."""
    shares = dict.fromkeys(wanted, 0)
    for _ in range(min(total, sum(wanted.values()))):
        least = min((x for x in shares if shares[x] < wanted[x]), key=lambda x: shares[x])
        shares[least] += 1
    return shares


@dataclass(slots=True)
class _Rival:
    """One application. ``shares``: when it had which share, of the latest samples.
    ``poor_since_s``: since when it has waited with less than its share minus one; None: it does
    not."""

    running: set[ContainerId] = field(default_factory=set)
    shares: list[tuple[float, int]] = field(default_factory=list)
    poor_since_s: float | None = None


class GpuFairness:
    """``_rivals``: the batch applications that want GPUs, as of the latest sample."""

    def __init__(self, violated: Callable[[str], None], *, every_policy: bool) -> None:
        """``every_policy``: a policy may leave idle what it could have."""
        self._violated = violated
        self._skipped = every_policy
        self._rivals: dict[ApplicationId, _Rival] = {}
        self._ordered: dict[ContainerId, float] = {}

    def master_began(self) -> None:
        self._rivals.clear()
        self._ordered.clear()

    def after(
        self,
        core: MasterCore,
        event: e.MasterEvent,
        commands: Iterable[c.MasterCommand],
        quiet_since_s: float,
    ) -> None:
        if isinstance(event, e.Ticked):
            self._preempted(core, commands, event.now)
        if self._skipped or not isinstance(event, e.Ticked) or event.now < quiet_since_s:
            return
        apps = {} if core.master_state.recovering else dict(_contenders(core))
        demands = {_demand(x) for containers in apps.values() for x in containers}
        if len(apps) < 2 or len(demands) > 1:
            self._rivals.clear()
            return
        (demand,) = demands
        self._sample(core, apps, demand, event.now)

    def _preempted(self, core: MasterCore, commands: Iterable[c.MasterCommand], now: float) -> None:
        """Executors of which nothing but a fairer share is the reason to end them."""
        victims: Counter[ApplicationId] = Counter()
        apps = dict(_contenders(core))
        owners = {x.container_id: name for name, some in apps.items() for x in some}
        for command in commands:
            match command:
                case c.SendToNode(message=c.StopContainer(decommission=True) as stop):
                    node = core.master_state.nodes[command.node]
                    if node.state is NodeState.ALIVE and stop.container_id in owners:
                        victims[owners[stop.container_id]] += 1
                        self._ordered[stop.container_id] = now
        if not victims or len({_demand(x) for some in apps.values() for x in some}) > 1:
            return
        wanted = {name: len(some) for name, some in apps.items()}
        held = sum(x.state in _HOLDS for some in apps.values() for x in some)
        for name in victims:
            # What is left over may be anyone's: the least that is fair is the share of the last.
            last = {x: wanted[x] for x in sorted(wanted, key=lambda other: other == name)}
            share = even_shares(held, last)[name]
            kept = sum(
                x.state in _HOLDS
                and x.state is not ContainerState.STOPPING
                and self._ordered.get(x.container_id) != now
                for x in apps[name]
            )
            if kept < share:
                self._violated(
                    f"{victims[name]} containers of {name} are preempted for a fairer share of "
                    f"GPUs: it keeps {kept}, its share is {share}"
                )

    def _sample(
        self,
        core: MasterCore,
        apps: dict[ApplicationId, list[Container]],
        demand: Vector,
        now: float,
    ) -> None:
        self._rivals = {x: self._rivals.get(x, _Rival()) for x in apps}
        wanted = {x: len(containers) for x, containers in apps.items()}
        held = {x: sum(y.state in _HOLDS for y in containers) for x, containers in apps.items()}
        most = even_shares(_capacity(core, demand), wanted)
        least = even_shares(sum(held.values()), wanted)
        for application_id, rival in self._rivals.items():
            recent = [x for x in rival.shares if now - x[0] <= _SETTLED_S]
            rival.shares = [*recent, (now, most[application_id])]
            waits = held[application_id] < min(wanted[application_id], least[application_id] - 1)
            avoids = core.master_state.exclusions.avoided(application_id, now)
            if not waits or avoids:
                rival.poor_since_s = None
            elif rival.poor_since_s is None:
                rival.poor_since_s = now
        poor = [
            name
            for name, rival in self._rivals.items()
            if rival.poor_since_s is not None and now - rival.poor_since_s >= _SETTLED_S
        ]
        for application_id, rival in self._rivals.items():
            running = {
                x.container_id for x in apps[application_id] if x.state is ContainerState.RUNNING
            }
            known = len(rival.shares) > 1
            started, rival.running = running - rival.running, running
            share = max(x for _, x in rival.shares)
            others = [x for x in poor if x != application_id]
            if known and started and others and len(running) > share + 1:
                self._violated(
                    f"{application_id} starts {min(started)} and runs {len(running)} containers "
                    f"with a GPU, its share is {share}; {others[0]} waits with "
                    f"{held[others[0]]} of {least[others[0]]}"
                )


def _contenders(core: MasterCore) -> Iterator[tuple[ApplicationId, list[Container]]]:
    """Batch applications, but gangs, with live containers that use GPUs."""
    for app in core.master_state.live_applications():
        containers = [x for x in app.containers.values() if x.request.resources.gpu_memory_mib]
        if (
            containers
            and app.record.workload_class is WorkloadClass.BATCH
            and app.record.gang_min < 2
        ):
            yield app.application_id, containers


def _demand(container: Container) -> Vector:
    return demand_vector(container.request.resources)


def _capacity(core: MasterCore, demand: Vector) -> int:
    """How many such containers the cluster would run if nothing else ran."""
    nodes = [x for x in core.master_state.nodes.values() if x.state is not NodeState.LOST]
    return how_many(demand, [unit for node in nodes for unit in node.units])
