"""Chaos of one run: an agent, then the master, is killed midway and started again a little later.

``turn`` is called again and again with what part of the tasks has ended, and waits for nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from benchmarks.common import note
from benchmarks.daemons import Daemons, Killed
from benchmarks.one_pool.plan import Plan

__all__ = ["AGENT", "MASTER", "Chaos", "Death"]

AGENT, MASTER = "node-1", "master"


@dataclass(slots=True, kw_only=True)
class Death:
    """Of a daemon: seconds since the beginning of the run; ``back_s`` None: not started again."""

    name: str
    died_s: float
    back_s: float | None = None


@dataclass(slots=True)
class Chaos:
    """What dies when, and what has died. ``clock``: seconds since the beginning of the run."""

    plan: Plan
    daemons: Daemons
    clock: Callable[[], float]
    deaths: list[Death] = field(default_factory=list)
    _dead: Killed | None = None

    @property
    def is_over(self) -> bool:
        return len(self.deaths) == len(self._order()) and self._dead is None

    def _order(self) -> list[tuple[str, float]]:
        return [(AGENT, self.plan.kill_agent_at), (MASTER, self.plan.kill_master_at)]

    def turn(self, ended_part: float) -> None:
        """Kill what is due, or start it again.

        Raises:
            BenchmarkError: the daemon does not run, or cannot be killed.
        """
        now = self.clock()
        if self._dead is not None:
            if now - self.deaths[-1].died_s >= self.plan.down_s:
                self.daemons.start(self._dead)
                self._dead, self.deaths[-1].back_s = None, now
                note(f"{self.deaths[-1].name} started again")
            return
        if len(self.deaths) == len(self._order()):
            return
        name, at = self._order()[len(self.deaths)]
        back_s = self.deaths[-1].back_s if self.deaths else None
        is_early = back_s is not None and now - back_s < self.plan.kill_in_order_s
        if ended_part >= at and not is_early:
            self._dead = self.daemons.kill(name)
            self.deaths.append(Death(name=name, died_s=now))
            note(f"{name} killed")

    def finish(self) -> None:
        """Nothing stays dead."""
        if self._dead is not None:
            self.daemons.start(self._dead)
            self._dead, self.deaths[-1].back_s = None, self.clock()
