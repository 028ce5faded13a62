"""Does a gang that has started keep as many executors as it needs when others are to have more?

Executors are preempted for a fairer share of GPUs, or for what a queue is guaranteed, and an
application need not have any of them for good. But one whose first executors start together is of
no use with fewer, so of these none is ended: after the orders of a turn it holds its gang, or what
it held before. What has been ordered to end before counts as gone.

Left out: what a node that leaves is ordered to end, and what goes in the turn of the orders for
another reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from hrm.core.master.core import MasterCore
from hrm.core.master.entities import Application
from hrm.core.messages import commands as c
from hrm.core.messages import events as e
from hrm.core.vocabulary.model import (
    ContainerId,
    ContainerState,
    EndCause,
    NodeState,
    WorkloadClass,
)

__all__ = ["StartedGangs"]

_HOLDS = (ContainerState.RUNNING, ContainerState.ASSIGNED)


class StartedGangs:
    """``_ending``: what this master has ordered to end."""

    def __init__(self, violated: Callable[[str], None]) -> None:
        self._violated = violated
        self._ending: set[ContainerId] = set()

    def master_began(self) -> None:
        self._ending.clear()

    def after(
        self, core: MasterCore, event: e.MasterEvent, commands: Iterable[c.MasterCommand]
    ) -> None:
        before, preempted = set(self._ending), set[ContainerId]()
        for command in commands:
            match command:
                case c.SendToNode(message=c.StopContainer(only_if_waiting=False) as stop):
                    self._ending.add(stop.container_id)
                    is_alive = core.master_state.nodes[command.node].state is NodeState.ALIVE
                    if stop.cause is EndCause.PREEMPTED and stop.decommission and is_alive:
                        preempted.add(stop.container_id)
        preempted -= before
        if preempted and isinstance(event, e.Ticked):
            self._check(core, preempted, before, event.now)

    def _check(
        self, core: MasterCore, preempted: set[ContainerId], before: set[ContainerId], now: float
    ) -> None:
        for app in core.master_state.live_applications():
            victims = app.containers.keys() & preempted
            if not victims or not _has_started_together(app):
                continue
            held = {x.container_id for x in app.containers.values() if x.state in _HOLDS}
            held |= {x.container_id for x in app.ended if x.ended_at_s == now}
            kept = len(held - before - preempted)
            if kept < app.record.gang_min:
                self._violated(
                    f"{len(victims)} executors of {app.application_id} are preempted for others: "
                    f"it keeps {kept}, and its gang is of {app.record.gang_min}"
                )


def _has_started_together(app: Application) -> bool:
    is_batch = app.record.workload_class is WorkloadClass.BATCH
    return is_batch and app.record.gang_min > 1 and app.gang_min <= 1
