"""Silence counts only while the listener is awake.

A process that was stopped (SIGSTOP, a paused machine, a busy event loop) finds that all others have
been silent for as long, because it did not listen. So two kinds of time are kept apart:

- the time that others may be silent before they are given up counts only while the process was
  awake, and starts again after a sleep, because others may have to reconnect first;
- a right that the process has itself (a lease, a window in which it may act) ends by real time,
  because others count it as well. Nothing here touches it.

A sleep shows in the time between two events of a core, which is short while its interpreter runs:
ticks come regularly. It also shows between two ticks with other events in between: then the loop
was too busy for the clock. Each silence is forgiven once; a further sleep during it only does not
count, or a process that stops again and again would never give up anything.

``Wakefulness`` finds sleeps, ``excused`` is the rule for one silence, ``Patience`` is both for a
process that checks only occasionally whether one peer is still silent.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Patience", "Wakefulness", "excused", "slept_through"]


@dataclass(slots=True)
class Wakefulness:
    """``late_s``: more than that between two events, or between two ticks, is a sleep; up to that
    much of each sleep still counts. ``seen_s``, ``ticked_s``: the times of the latest of both."""

    late_s: float
    seen_s: float
    ticked_s: float = 0.0
    _noticed: bool = False

    def __post_init__(self) -> None:
        self.ticked_s = self.seen_s

    def passed(self, now: float) -> float:
        """At every event: for how long this process slept before it; 0 if it did not."""
        slept_s = max(0.0, now - self.seen_s - self.late_s)
        self.seen_s = now
        self._noticed = self._noticed or slept_s > 0.0
        return slept_s

    def ticked(self, now: float) -> float:
        """At every tick, after ``passed``: the same since the last tick, unless ``passed`` has
        noticed a sleep since then: one sleep must not look like two."""
        slept_s = 0.0 if self._noticed else max(0.0, now - self.ticked_s - self.late_s)
        self.ticked_s = now
        self._noticed = False
        return slept_s


def excused(since_s: float, excused_s: float, now: float, slept_s: float) -> float:
    """Until when a silence that began at ``since_s`` does not count any more, after a sleep.

    ``excused_s``: the same before this sleep. The silence itself counts from the later of both. One
    that began after the sleep, before that was noticed, has nothing to be excused: while it slept
    the process saw none begin.
    """
    if since_s > now - slept_s:
        return excused_s
    return now if excused_s <= since_s else excused_s + slept_s


def slept_through(since_s: float, now: float, slept_s: float) -> float:
    """How much of a sleep, noticed at ``now``, can lie in a wait that began at ``since_s``. When
    the sleep ended is not known: what began after it, and before it was noticed, is given as much
    as it has waited."""
    return min(slept_s, now - since_s)


class Patience:
    """A limit on the silence of one peer, checked occasionally.

    Args:
        limit_s: of its silence, as far as this process was awake.
        late_s: the longest time between two checks while it is awake.
    """

    def __init__(self, now: float, *, limit_s: float, late_s: float) -> None:
        self.limit_s = limit_s
        self._awake = Wakefulness(late_s, now)
        self._since_s = now
        self._excused_s = float("-inf")

    def contact(self, now: float) -> None:
        """The peer is there, or has just gone: its silence begins now."""
        self._awake.passed(now)
        self._since_s = now

    def is_over(self, now: float) -> bool:
        """Has it been silent for longer than the limit?"""
        slept_s = self._awake.passed(now)
        if slept_s:
            self._excused_s = excused(self._since_s, self._excused_s, now, slept_s)
        return now - max(self._since_s, self._excused_s) > self.limit_s
