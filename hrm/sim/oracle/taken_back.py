"""Do places in queues come to rest where applications share GPUs?

What is queued beyond a fair share is taken back, and requested again. While nothing starts or ends
to run on GPUs, and no application wants more of them, shares stay as they are: what an application
has queued is taken back once or twice, and then no more. Two that take each other's places in turn
do so without end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from hrm.core.master.core import MasterCore
from hrm.core.messages import commands as c
from hrm.core.vocabulary.model import (
    ApplicationId,
    ContainerId,
    ContainerState,
    EndCause,
    WorkloadClass,
)

__all__ = ["TakenBack"]

_TIMES = 2
"""So often may all that an application wants be taken back: changes are seen late by some."""


class TakenBack:
    """``_returned``: what has been ordered back of each application since anything changed;
    ``_most``: how many it has wanted at most since then."""

    def __init__(self, violated: Callable[[str], None]) -> None:
        self._violated = violated
        self._placed: tuple[object, ...] = ()
        self._returned: dict[ApplicationId, set[ContainerId]] = {}
        self._most: dict[ApplicationId, int] = {}

    def master_began(self) -> None:
        self._placed = ()

    def after(self, core: MasterCore, commands: Iterable[c.MasterCommand]) -> None:
        """To be called after each event."""
        orders = [
            command.message.container_id
            for command in commands
            if isinstance(command, c.SendToNode)
            and isinstance(command.message, c.StopContainer)
            and command.message.only_if_waiting
            and command.message.cause is EndCause.PREEMPTED
        ]
        if orders:
            self._look(core)
        for container_id in orders:
            self._count(core, container_id)

    def _look(self, core: MasterCore) -> None:
        """Has anything changed but what is queued?"""
        placed, wanted = list[ContainerId](), dict[ApplicationId, int]()
        for name in core.master_state.gpus.uses:
            some = core.master_state.applications[name].containers.values()
            using = [x for x in some if x.request.resources.gpu_memory_mib]
            wanted[name] = len(using)
            placed += [x.container_id for x in using if x.started_at_s]
        known = (core.master_state.state.shape, tuple(placed))
        grows = any(many > self._most.get(name, many) for name, many in wanted.items())
        if known != self._placed or grows:
            self._placed = known
            self._returned.clear()
            self._most.clear()
        for name, many in wanted.items():
            self._most[name] = max(many, self._most.get(name, 0))

    def _count(self, core: MasterCore, container_id: ContainerId) -> None:
        for name in core.master_state.gpus.uses:
            app = core.master_state.applications[name]
            container = app.containers.get(container_id)
            if container is None or not container.request.resources.gpu_memory_mib:
                continue
            if app.record.workload_class is not WorkloadClass.BATCH:
                continue
            if container.state is not ContainerState.WAITING:
                continue
            returned = self._returned.setdefault(name, set())
            returned.add(container_id)
            if len(returned) > _TIMES * self._most[name]:
                self._violated(
                    f"{name} wants {self._most[name]} executors with GPUs at most, and while "
                    f"nothing starts or ends {len(returned)} are taken back from queues"
                )
                returned.clear()
