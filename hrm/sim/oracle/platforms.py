"""Are queues' shares divided over platforms as they should be?

What queues hold is recounted from containers and the platforms of their nodes.

- a division gives of no platform more than there is;
- what gets a platform is of a queue that holds no more than its part of it then;
- what is moved runs, is batch, no driver and nothing of a gang, of a queue whose containers may be
  preempted, has run for as long as it must, and is of a queue that holds more than its part there;
- what is moved in one event goes in pairs, one each way, or to what is free;
- once faults have stopped, no application is moved again and again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping

from hrm.core.master.core import MasterCore
from hrm.core.master.entities import Application, Container
from hrm.core.master.platform_moves import MOVE_REASON
from hrm.core.master.platform_shares import PlatformShares
from hrm.core.messages import commands as c
from hrm.core.messages import events as e
from hrm.core.tenancy.queue_spec import QueueName
from hrm.core.vocabulary.feasibility import demand_vector
from hrm.core.vocabulary.model import (
    ApplicationId,
    ContainerId,
    ContainerState,
    NodeName,
    WorkloadClass,
)
from hrm.sim.faults.capacity import fits_offer
from hrm.sim.faults.queues import lineage_of

__all__ = ["PlatformChecks"]

_AGAIN_MAX = 40
_Parts = Mapping[QueueName, Mapping[str, int]]


class PlatformChecks:
    """``_chosen``: the platform that each container had after the latest event, and until when;
    ``_parts``, ``_before``: the division after that event, and before it. ``moved``: how many were
    ordered to end to move; ``chosen``: how many got a platform."""

    def __init__(self, violated: Callable[[str], None]) -> None:
        self._violated = violated
        self._platforms: dict[NodeName, str] = {}
        self._chosen: dict[ContainerId, tuple[str, float]] = {}
        self._parts: _Parts = {}
        self._before: _Parts = {}
        self._times: Counter[ApplicationId] = Counter()
        self._ordered: set[ContainerId] = set()
        self.moved = 0
        self.chosen = 0

    def master_began(self) -> None:
        self._chosen.clear()
        self._parts = {}

    def after(
        self,
        core: MasterCore,
        event: e.MasterEvent,
        commands: Iterable[c.MasterCommand],
        quiet_since_s: float,
    ) -> None:
        self._platforms = {x.name: x.platform for x in core.master_state.nodes.values()}
        shares = core.placement.platforms
        if not shares.divides:
            self.master_began()
            return
        self._before, self._parts = self._parts, shares.divided()
        is_new = self._parts is not self._before
        if is_new:
            self._divided(core, shares)
        self._choices(core, is_new=is_new)
        self._moves(core, event, commands, quiet_since_s)

    def _divided(self, core: MasterCore, shares: PlatformShares) -> None:
        sums: Counter[str] = Counter()
        for name, parts in self._parts.items():
            for platform, cores in parts.items():
                sums[platform] += cores
                if cores < 0:
                    self._violated(f"{name} gets {cores} cores of {platform}")
        there = core.master_state.state.cores_at()
        for platform, cores in sums.items():
            if shares.is_current() and cores > there.get(platform, 0):
                self._violated(f"{cores} cores of {platform} are divided, which has {there}")

    def _choices(self, core: MasterCore, *, is_new: bool) -> None:
        """``is_new``: parts have changed in this event: what was chosen by which is not known."""
        held: Counter[tuple[str, str]] = Counter()
        chosen: dict[ContainerId, tuple[str, float]] = {}
        news: list[tuple[Container, str]] = []
        for app in core.master_state.holding_applications():
            for container in app.containers.values():
                asked = container.request
                if container.withheld or container.held:
                    continue
                where = self._platforms.get(container.node) if container.node else asked.platform
                if where:
                    held[app.record.queue, where] += asked.resources.vcores
                if asked.platform:
                    mark = (asked.platform, asked.platform_until_s)
                    chosen[container.container_id] = mark
                    if self._chosen.get(container.container_id) != mark:
                        news.append((container, app.record.queue))
        self._chosen = chosen
        self.chosen += len(news)
        for container, queue in () if is_new else news:
            platform = container.request.platform
            part = self._parts.get(QueueName(queue), {}).get(platform, 0)
            is_first = held[queue, platform] == container.request.resources.vcores
            is_unknown = core.placement.platforms.is_unknown(QueueName(queue), platform)
            if is_first and (is_unknown or not part):
                continue  # it is sent where nothing of its queue has run
            if container.node is None and held[queue, platform] > part:
                self._violated(
                    f"{container.container_id} gets {platform}, of which {queue} holds "
                    f"{held[queue, platform]} cores with it, and has a part of {part}"
                )

    def _moves(
        self,
        core: MasterCore,
        event: e.MasterEvent,
        commands: Iterable[c.MasterCommand],
        quiet_since_s: float,
    ) -> None:
        moves: Counter[tuple[str, str]] = Counter()
        some: list[Container] = []
        left: Counter[tuple[str, str]] = Counter()
        for container, target in _ordered(core, commands):
            if container.container_id in self._ordered:
                continue  # it is sent again
            self._ordered.add(container.container_id)
            app = core.master_state.applications[container.application_id]
            here = self._platforms.get(container.node or NodeName(""), "")
            why = self._why_not(core, app, container, left[app.record.queue, here], event.now)
            left[app.record.queue, here] += container.request.resources.vcores
            if why:
                self._violated(f"{container.container_id} is moved to {target}, and {why}")
            moves[here, target] += 1
            some.append(container)
            if event.now >= quiet_since_s:
                self._times[app.application_id] += 1
                if self._times[app.application_id] == _AGAIN_MAX:
                    self._violated(f"{app.application_id} is moved on and on")
        self.moved += len(some)
        for (here, there), many in moves.items():
            if many > moves[there, here] and not any(
                self._is_free(core, container, there) for container in some
            ):
                self._violated(f"{many} go from {here} to {there}, where nothing is free")

    def _why_not(
        self, core: MasterCore, app: Application, container: Container, leaves: int, now: float
    ) -> str:
        """Why this may not be moved; empty if it may. ``leaves``: cores that its queue gives up
        there in the same event."""
        if app.is_driver:
            return "is a driver"
        if app.record.workload_class is not WorkloadClass.BATCH:
            return "is no batch"
        if app.record.gang_min:
            return "is of a gang"
        if container.state is not ContainerState.RUNNING:
            return f"is {container.state.value}"
        if now - container.started_at_s < core.master_state.bounds.platform_move_after_s - 1e-6:
            return "has just started"
        specs = core.queues.tree.specs
        if not all(specs[QueueName(x)].preemptible for x in lineage_of(app.record.queue)):
            return "its queue keeps what it has"
        here = self._platforms.get(container.node or NodeName(""), "")
        name = QueueName(app.record.queue)
        part = min(x.get(name, {}).get(here, 0) for x in (self._parts, self._before))
        held = -leaves + sum(
            x.request.resources.vcores
            for node in core.master_state.nodes.values()
            for x in node.containers.values()
            if self._platforms.get(node.name) == here
            and core.master_state.applications[x.application_id].record.queue == name
        )
        if self._parts.keys() != self._before.keys():
            return ""  # divided twice in this event
        return "" if held > part else f"its queue holds {held} of its part of {part} there"

    def _is_free(self, core: MasterCore, container: Container, platform: str) -> bool:
        state, demand = core.master_state.state, demand_vector(container.request.resources)
        return any(
            fits_offer(demand, state.queue(row).free)
            for row in state.rows.values()
            if state.open[row] and self._platforms.get(state.node(row)) == platform
        )


def _ordered(
    core: MasterCore, commands: Iterable[c.MasterCommand]
) -> Iterator[tuple[Container, str]]:
    """What these order to end because it is moved, and to which platform."""
    for command in commands:
        match command:
            case c.SendToNode(message=c.StopContainer(only_if_waiting=False) as stop):
                reason, _, target = stop.reason.partition(": ")
                if reason != MOVE_REASON:
                    continue
                for app in core.master_state.applications.values():
                    container = app.containers.get(stop.container_id)
                    if container is not None:
                        yield container, target
