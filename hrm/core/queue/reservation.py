"""The reservation of a batch waiter, and which containers may still start before it.

Of the batch containers that wait at a resource unit, the first that does not fit has a reservation:
the shadow time at which it will fit, by the estimated ends of those that run. A later one is
backfilled if it will have ended by then, or if it fits into what is left over then (``extra``).
Estimates may stay wrong, so passes are counted, too: after ``PASSES_MAX`` none passes.

Source: the backfilling of EASY (Lifka, The ANL/IBM SP Scheduling System, JSSPP 1995); the bound is
HRM's.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from operator import itemgetter
from typing import TypeAlias

from hrm.core.vocabulary.bounds import PASSES_MAX
from hrm.core.vocabulary.feasibility import Vector, fits, minus, plus

__all__ = ["Held", "Reservation"]

Held: TypeAlias = Iterable[tuple[float, Vector]]
"""What is held, and until when: never before now."""


@dataclass(slots=True)
class Reservation:
    """A waiter is to start at ``shadow_time_s``, which leaves ``extra``; ``passes`` may pass it
    until then.

    ``shadow_time_s`` is infinite where it is unknown when it could start.
    """

    shadow_time_s: float
    extra: Vector
    passes: int

    @classmethod
    def to(cls, demand: Vector, passed: int, free: Vector, held: Held) -> Reservation:
        """To a waiter that ``passed`` have passed and for which ``free`` is too little."""
        at_s = math.inf
        for end_s, part in sorted(held, key=itemgetter(0)):
            if end_s > at_s or math.isinf(end_s):
                break
            free = plus(free, part)
            if fits(demand, free):
                at_s = end_s
        return cls(at_s, minus(free, demand), PASSES_MAX - passed)

    def allows(self, part: Vector, until_s: float) -> bool:
        """May a container start now that takes ``part`` until then?"""
        return self.passes > 0 and (until_s <= self.shadow_time_s or fits(part, self.extra))

    def passed_by(self, part: Vector, until_s: float) -> None:
        """A container that ``allows`` admitted has started."""
        self.passes -= 1
        if until_s > self.shadow_time_s:
            self.extra = minus(self.extra, part)
