"""When the master's schedulers are to be woken: for each, the latest command counts.

The core requests another wake of a scheduler only when it no longer counts on the one before, and a
wake without need leads to yet another. Wakes that were kept would therefore only multiply, one for
each time that capacity appears while jobs wait. So a scheduler has one wake at most, which is
removed when it is taken.
"""

from __future__ import annotations

__all__ = ["WakeTimers"]


class WakeTimers:
    """One machine for every interpreter: ``set`` what ``WakeScheduler`` states, then call for
    what is due, now and whenever ``next_time_s`` has come. Calling early, or often, does no
    harm."""

    def __init__(self) -> None:
        self._at_s: dict[str, float] = {}

    def set(self, scheduler: str, at_s: float) -> None:
        """Replaces its previous wake, and comes after those of others for the same time."""
        self._at_s.pop(scheduler, None)
        self._at_s[scheduler] = at_s

    def take_due(self, now: float) -> list[str]:
        """The schedulers to wake now, in order of their times."""
        due = [name for name, at_s in self._at_s.items() if at_s <= now]
        if len(due) > 1:
            due.sort(key=self._at_s.__getitem__)
        for name in due:
            del self._at_s[name]
        return due

    @property
    def next_time_s(self) -> float | None:
        """When to call next; None: not before the next ``set``."""
        return min(self._at_s.values(), default=None)
