"""A timer that is set again after every event: only what was set last counts.

A machine states after each event when it is next to be woken. A ring that was planned before may
still come, because timers cannot always be taken back: when it does it is none.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["LatestTimer", "Ring"]

MIN_DELAY_S = 0.001
"""What is due already rings in another turn, so that a machine cannot keep its process busy."""


@dataclass(frozen=True, slots=True)
class Ring:
    """Plan it for ``at_s``, and check with the timer then whether it still counts."""

    number: int
    at_s: float


class LatestTimer:
    """Invariant: of all rings that it has returned at most one counts, the latest, once."""

    def __init__(self) -> None:
        self._number = 0

    def set(self, due_s: float | None, now: float) -> Ring | None:
        """In place of whatever was set before; None: nothing is to ring."""
        self._number += 1
        return None if due_s is None else Ring(self._number, max(due_s, now + MIN_DELAY_S))

    def rings(self, ring: Ring) -> bool:
        """Does this ring, which has come, count?"""
        counts = ring.number == self._number
        if counts:
            self._number += 1
        return counts
