"""Does what is to start together run whole, or not at all?

Between a grant and the start of the last of a gang there is time: batch that is preempted has its
grace period, nodes and executors are lost. So some of a gang may run while others do not yet, but
not for long. Either all have a place, and the last of them starts once what it waits for has had
its grace period, or they are given back when the rest has found none within ``gang_wait_s``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from hrm.core.master.core import MasterCore
from hrm.core.master.entities import Application
from hrm.core.messages import events as e
from hrm.core.vocabulary.model import ApplicationId, ContainerState

__all__ = ["WholeStarts"]

_PLACED_S = 14.0
"""Beyond the time until a node is lost: the longest grace period of preempted batch, the time that
a message needs on the slowest network, and once more."""
_LACKING_S = 10.0
"""Beyond ``gang_wait_s`` and the time until a node is lost: an order to stop, sent twice, and the
time that it leaves."""
_ASLEEP_S = 2.5
"""Between two ticks: the master slept, and handled nothing."""


class WholeStarts:
    """``_since_s``: of applications of which a part runs, since when; and since when, but for the
    latest moment, some of it have had no place."""

    def __init__(self, violated: Callable[[str], None], gangs: Mapping[ApplicationId, int]) -> None:
        """``gangs``: of each application, how many of its first containers start together; 0 once
        they have."""
        self._violated = violated
        self._gangs = gangs
        self._since_s: dict[ApplicationId, tuple[float, bool]] = {}
        self._ticked_s = 0.0

    def master_began(self) -> None:
        self._since_s.clear()

    def after(self, core: MasterCore, event: e.MasterEvent) -> None:
        if not isinstance(event, e.Ticked):
            return
        slept = event.now - self._ticked_s > _ASLEEP_S
        self._ticked_s = event.now
        if core.master_state.recovering or slept:
            self._since_s.clear()
        bounds = core.master_state.bounds
        partly = {
            app.application_id: (app, gang)
            for app in core.master_state.live_applications()
            if (gang := self._gangs.get(app.application_id, 0)) > 1
            and app.session is not None
            and 0 < _count(app, ContainerState.RUNNING) < gang
        }
        since_s: dict[ApplicationId, tuple[float, bool]] = {}
        for name, (app, gang) in partly.items():
            placed = (ContainerState.RUNNING, ContainerState.WAITING, ContainerState.ASSIGNED)
            lacks = _count(app, *placed) < gang
            known = self._since_s.get(name)
            began_s = event.now if known is None or known[1] is not lacks else known[0]
            since_s[name] = began_s, lacks
            limit_s = bounds.node_timeout_s + (
                _LACKING_S + bounds.gang_wait_s if lacks else _PLACED_S
            )
            if event.now - began_s > limit_s:
                running = _count(app, ContainerState.RUNNING)
                self._violated(
                    f"for {limit_s:.0f} s {running} of the {gang} containers of {name} that are to "
                    f"start together run alone"
                )
        self._since_s = since_s


def _count(app: Application, *states: ContainerState) -> int:
    return sum(x.state in states for x in app.containers.values())
