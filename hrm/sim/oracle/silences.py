"""Does the master count its own sleep against others?

Counted from the sleeps that the world knows of: no peer is declared lost before it had its whole
limit to report while the master was awake, and after the first sleep during a silence that time
starts again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from hrm.core.master.core import MasterCore
from hrm.core.messages import commands as c
from hrm.core.messages import events as e
from hrm.core.scheduling.remote_scheduler import RemoteScheduler
from hrm.core.vocabulary.model import ApplicationId, NodeName, NodeState
from hrm.sim.actors.sleepers import MASTER, Sleepers

__all__ = ["Silences"]

_NOTICED_S = 2.0
"""Shorter sleeps may be detected or not: whether they forgive a silence is not checked."""


class Silences:
    """``_last_report_s``, ``_away_s``, ``_asked_s``: since when nodes, AppMasters and remote
    schedulers have been silent, as the master saw it before the event that is checked."""

    def __init__(self, violated: Callable[[str], None], sleepers: Sleepers) -> None:
        self._violated = violated
        self._sleepers = sleepers
        self._last_report_s: dict[NodeName, float] = {}
        self._away_s: dict[ApplicationId, float] = {}
        self._asked_s: dict[str, float] = {}

    def awake_s(self, begin_s: float, end_s: float) -> float:
        """How much of a time the master was awake."""
        return end_s - begin_s - sum(until - at for at, until in self._within(begin_s, end_s))

    def master_began(self) -> None:
        self._last_report_s.clear()
        self._away_s.clear()
        self._asked_s.clear()

    def after(
        self, core: MasterCore, event: e.MasterEvent, commands: Iterable[c.MasterCommand]
    ) -> None:
        bounds = core.master_state.bounds
        if isinstance(event, e.Ticked):
            for name, since_s in self._last_report_s.items():
                node = core.master_state.nodes.get(name)
                if node is None or node.state is NodeState.LOST:
                    self._given_up(name, since_s, event.now, bounds.node_timeout_s)
            for application_id, since_s in self._away_s.items():
                if application_id not in core.master_state.live:
                    limit_s = bounds.application_grace_s
                    self._given_up(application_id, since_s, event.now, limit_s)
            for command in commands:
                if isinstance(command, c.DropScheduler):
                    since_s = self._asked_s[command.scheduler]
                    limit_s = bounds.scheduler_timeout_s
                    self._given_up(command.scheduler, since_s, event.now, limit_s)
        self._remember(core)

    def _remember(self, core: MasterCore) -> None:
        self._last_report_s = {
            node.name: node.last_heard_s
            for node in core.master_state.nodes.values()
            if node.state is not NodeState.LOST
        }
        self._away_s = {
            app.application_id: app.detached_at_s
            for app in core.master_state.live_applications()
            if app.detached_at_s is not None
        }
        self._asked_s = {
            x.name: x.heard_at_s
            for x in core.placement.schedulers.values()
            if isinstance(x, RemoteScheduler)
        }

    def _given_up(self, name: str, since_s: float, now: float, limit_s: float) -> None:
        slept = self._within(since_s, now)
        if not any(until - at >= _NOTICED_S for at, until in slept):
            return
        from_s = slept[0][1]
        # Of each further sleep a little counts: as long as it takes to notice that it is one.
        counted_s = _NOTICED_S / 2 * max(0, len(slept) - 1)
        if self.awake_s(from_s, now) < limit_s - counted_s - 1e-3:
            self._violated(
                f"{name} is given up {now - since_s:.1f} s after it was heard of; the master has "
                f"slept, and was awake for {self.awake_s(from_s, now):.1f} s of {limit_s:.1f} s"
            )

    def _within(self, begin_s: float, end_s: float) -> list[tuple[float, float]]:
        slept = self._sleepers.slept.get(MASTER, ())
        clipped = [(max(at, begin_s), min(until, end_s)) for at, until in slept]
        return [(at, until) for at, until in clipped if until > at]
