"""Which epoch this master has, and what happens to peers that have followed a later one.

Every master increments the epoch in its store, and agents refuse an older epoch than the newest
that they have followed. A store that was emptied, or restored from an older copy, begins too low.
So agents, AppMasters and remote schedulers report which epoch they have followed, and a master that
finds itself behind goes beyond it::

    registers, has followed (7, a)           this master is (2, b)
      refused, "come again"  ◄────────────── RaiseEpoch(8) is on the disk first
      registers again        ──────────────► EpochRaised(8): from here on all goes as with any
                                             master that has just started

An epoch has an id as well, new with every process, for a copy of a store may have the same number.

Only a master that has just started goes beyond: within its recovery window, by real time, or as
long as no node has followed it. One that was replaced while it was stopped or partitioned off must
not overtake its successor: it refuses the agent, and ``hrm app why`` reports it. Nothing keeps two
copies of a state directory, on two machines behind one address, from taking nodes from each other.

A master that goes beyond has forgotten something, and one whose store was restored under it may not
even notice. So every master, for as long as an application may take to come back after its start,
leaves alone what belongs to applications that it does not know, and takes these in under the ids
that their AppMasters name (``MasterState.forgot_until_s``).
"""

from __future__ import annotations

from typing import TypeAlias

from hrm.core.master.state import MasterState
from hrm.core.messages import commands as c
from hrm.core.messages import events as e
from hrm.core.vocabulary.history import Reign
from hrm.core.vocabulary.model import Followed
from hrm.errors import HrmError, StaleEpoch, Unavailable

__all__ = ["EPOCH_STEP_MAX", "Epochs", "Registration"]

Registration: TypeAlias = e.NodeRegistered | e.ApplicationRegistered | e.SchedulerConnected
EPOCH_STEP_MAX = 1_000_000
"""How far a master goes at once: so many starts no cluster has seen that came to this one."""


class Epochs:
    """``_rising_to``: what is being written down; 0: nothing."""

    def __init__(self, master_state: MasterState, now: float) -> None:
        self.master_state = master_state
        self._began_s = now
        self._rising_to = 0
        self._is_followed = False

    def admits(self, event: Registration) -> bool:
        """May it register? If not, it has been sent the refusal."""
        problem = self._problem(event.followed, event.now, _name(event))
        if isinstance(event, e.SchedulerConnected) and isinstance(problem, StaleEpoch):
            problem = None  # it decides nothing, and begins with what this master knows
        self._remember(_name(event), problem)
        if isinstance(event, e.NodeRegistered):
            self._is_followed = self._is_followed or problem is None
        if problem is not None:
            self.master_state.refuse(event.call_id, problem)
        return problem is None

    def raised(self, event: e.EpochRaised) -> None:
        """It is written down."""
        master_state, before = self.master_state, self.master_state.epoch
        if event.epoch <= before:
            return
        master_state.epoch = event.epoch
        why = f"from {before} to {event.epoch}: nodes have followed a later one than the store had"
        if master_state.watch is not None:
            move = ("master", str(event.epoch), None, None, Reign.RAISED, event.now, why)
            master_state.watch(move)

    def _problem(self, followed: Followed | None, now: float, name: str) -> HrmError | None:
        mine = self.master_state.epoch
        if followed is None or followed.epoch < mine:
            return None
        if followed.epoch == mine and followed.epoch_id in ("", self.master_state.epoch_id):
            return None
        other = f"{name} has followed epoch {followed.epoch}, and this master has {mine}"
        if followed.epoch - mine > EPOCH_STEP_MAX:
            return StaleEpoch(f"{other}: more than {EPOCH_STEP_MAX} before it; is it of another "
                              f"cluster? If not, end it and start it again")  # fmt: skip
        if not self._may_rise(now):
            return StaleEpoch(
                f"{other}: another master has taken over since. If that one no longer exists, "
                f"restart this master, which then takes a higher epoch; to make a node forget it, "
                f"restart its agent"
            )
        if followed.epoch + 1 > self._rising_to:
            self._rising_to = followed.epoch + 1
            self.master_state.out.append(c.RaiseEpoch(epoch=self._rising_to))
        return Unavailable(f"{other}; it goes beyond that now, register again")

    def _may_rise(self, now: float) -> bool:
        has_begun = now - self._began_s <= self.master_state.bounds.recovery_window_s
        return has_begun or not self._is_followed

    def _remember(self, name: str, problem: HrmError | None) -> None:
        ahead = self.master_state.ahead
        ahead.pop(name, None)
        if isinstance(problem, StaleEpoch):
            ahead[name] = problem.message
            while len(ahead) > self.master_state.bounds.lost_nodes_kept:
                del ahead[next(iter(ahead))]


def _name(event: Registration) -> str:
    match event:
        case e.NodeRegistered():
            return event.node
        case e.SchedulerConnected():
            return event.scheduler
    return event.application_id or event.name
