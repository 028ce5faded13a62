"""Which batch of a pool may start next, waiter after waiter in the order of the line.

At each unit the first waiter that does not fit has a reservation, which binds those after it at its
unit, and at siblings while its unit has the rest of what it needs (``hrm.core.queue.resource_unit``
says why). A turn is asked about one waiter after the other. What it admits may start at once or,
where another order than the line's is tried, be passed by one of those that come after it.

Source: HRM paper, section 3.4.1 (start rule); EASY backfilling; the discipline of pools is HRM's.
"""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar

from hrm.core.messages.claims import Entry
from hrm.core.queue.reservation import Held, Reservation
from hrm.core.queue.start_rule import duration_s
from hrm.core.vocabulary.bounds import PASSES_MAX
from hrm.core.vocabulary.feasibility import Vector, fits, pooled_part
from hrm.core.vocabulary.model import ContainerId

__all__ = ["BatchTurn", "BatchUnit"]


class BatchUnit(Protocol):
    """What a turn asks of a unit's queue."""

    free: Vector
    batch_waiting: dict[ContainerId, Entry]

    def beside_endless(self) -> Vector:
        """What the streams and drivers that run leave to batch."""

    def held(self, now: float) -> Held:
        """What those that run in its pool hold of it, and until when."""

    def has_rest(self, entry: Entry) -> bool:
        """Is what ``entry`` needs besides the pool's cores and memory free?"""


_Unit = TypeVar("_Unit", bound=BatchUnit)


class BatchTurn(Generic[_Unit]):
    """One pass over the line of a pool, at one moment. Units are compared by identity."""

    def __init__(self, now: float) -> None:
        self._now = now
        self._left: list[tuple[_Unit, ContainerId]] = []
        self._firsts: dict[_Unit, Entry] = {}
        self._reservations: dict[_Unit, Reservation] = {}
        self._kept: list[tuple[_Unit, ContainerId, int]] = []

    def admits(self, unit: _Unit, entry: Entry) -> bool:
        """May ``entry``, which waits there, start now? One that may not is left: those that are
        asked about later must not delay it, nor pass it without end."""
        if not fits(entry.demand, unit.free):
            if fits(entry.demand, unit.beside_endless()):
                self._firsts.setdefault(unit, entry)
                self._left.append((unit, entry.container_id))
            return False
        until_s = self._now + duration_s(entry)
        parts = self._bound(unit, entry)
        if all(x.allows(part, until_s) for x, part in parts) and not self._passed_enough(unit):
            return True
        self._left.append((unit, entry.container_id))
        return False

    def begins(self, unit: _Unit, entry: Entry) -> None:
        """One that was admitted starts: reservations count it. Call it before the unit changes."""
        for reservation, part in self._bound(unit, entry):
            reservation.passed_by(part, self._now + duration_s(entry))

    def keep(self, unit: _Unit, entry: Entry, passes: int) -> None:
        """One that was admitted does not start now after all; later ones of its unit may pass it,
        until it has been passed ``passes`` times."""
        self._kept.append((unit, entry.container_id, passes))

    def _bound(self, unit: _Unit, entry: Entry) -> list[tuple[Reservation, Vector]]:
        """The reservations that bind ``entry``, each with what it takes there."""
        bound = [x for x in self._firsts if x is unit or x.has_rest(self._firsts[x])]
        for each in bound:
            if each not in self._reservations:
                first, held = self._firsts[each], each.held(self._now)
                made = Reservation.to(first.demand, first.passed, each.free, held)
                self._reservations[each] = made
        return [
            (self._reservations[x], entry.demand if x is unit else pooled_part(entry.demand))
            for x in bound
        ]

    def _passed_enough(self, unit: _Unit) -> bool:
        """Has one that is left been passed as often as it may be by those of ``unit``?"""
        return any(
            owner.batch_waiting[waiter].passed >= PASSES_MAX
            and (owner is unit or owner.has_rest(owner.batch_waiting[waiter]))
            for owner, waiter in self._left
        ) or any(
            owner is unit and owner.batch_waiting[waiter].passed >= passes
            for owner, waiter, passes in self._kept
        )
