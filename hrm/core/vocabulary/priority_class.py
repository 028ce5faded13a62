"""How an application stands in a queue whose order is ``classes``, and how requests change that.

A priority is a number with one decimal that requests move up and down while the application waits.
Where it lies says of which *class* the application is: normal, urgent or highest. A normal one that
rises above its range becomes urgent, and an urgent one that falls below its own becomes normal;
both then begin well inside of the other range, so that one request does not take the last one back.
Between a conversion and its reverse there are six steps at least, more than are taken in a period:
an application does not change back and forth within one.

Waiting raises a priority, too, and never across classes: who has not asked for urgency does not get
it by patience, and of those that have reached the top of their class the first submitted goes
first.

Priorities are whole tenths here, for 0.1 has no binary representation.

Source: RLPTO (Lu et al., TPDS 2023), section 2.3, equation 4. The source counts requests up alone
and gives neither thresholds nor where a converted one begins; those are HRM's.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace

__all__ = [
    "DECLARED_MAX",
    "INTERRUPTIONS_MAX",
    "NORMAL_MAX",
    "PriorityClass",
    "Standing",
    "class_of",
    "declared",
    "priority_text",
    "requested",
]

DECLARED_MAX = 5
"""The number that declares the highest class; 4 declares an urgent one, 1 to 3 a normal one."""
NORMAL_MAX = 3
"""The greatest number that declares a normal one."""
INTERRUPTIONS_MAX = 2
"""How often one application is interrupted, in all."""

_NORMAL = (10, 30)
_URGENT = (35, 49)
_HIGHEST = 50
_BECOMES_URGENT_AT = 40
_BECOMES_NORMAL_AT = 25


class PriorityClass(enum.Enum):
    """From the one that goes first to the one that goes last."""

    HIGHEST = "highest"
    URGENT = "urgent"
    NORMAL = "normal"

    @property
    def rank(self) -> int:
        """The lower goes first; 1 is of what has been interrupted, whatever its class."""
        return _RANKS[self]


_RANKS = {PriorityClass.HIGHEST: 0, PriorityClass.URGENT: 2, PriorityClass.NORMAL: 3}
_RANK_INTERRUPTED = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Where one application stands now, and why.

    ``tenths``: its priority, in tenths. ``base``: what that was as the period began in which it was
    last requested otherwise, at ``period_began_s``; ``net``: the requests of that period, those up
    less those down; ``steps``: all of them.
    ``requested``, ``aged``: the steps by requests and by waiting since it was submitted, in tenths;
    ``by``: who has requested last. ``interruptions``: how often it was interrupted; ``owed``: how
    many of its containers ended for that and have not been replaced yet; ``interrupted_at_s``: when
    it was last interrupted; ``is_paused``: since then none of them has been replaced.
    """

    tenths: int
    base: int
    net: int = 0
    steps: int = 0
    period_began_s: float = 0.0
    requested: int = 0
    by: str = ""
    aged: int = 0
    interruptions: int = 0
    interrupted_at_s: float = 0.0
    owed: int = 0
    is_paused: bool = False

    @staticmethod
    def as_declared(priority: int) -> Standing:
        """Of one that has only been submitted, with this number."""
        tenths = declared(priority)
        return Standing(tenths=tenths, base=tenths)

    @property
    def priority_class(self) -> PriorityClass:
        return class_of(self.tenths)

    @property
    def may_be_interrupted(self) -> bool:
        """By one of the highest class. What is paused is interrupted once, however many of its
        containers that takes."""
        if self.priority_class is PriorityClass.HIGHEST:
            return False
        return self.is_paused or self.interruptions < INTERRUPTIONS_MAX

    def rank(self, submitted_at_s: float) -> tuple[int, int, float]:
        """The least goes first: those of the highest class, those that were interrupted, urgent and
        normal ones; of each the highest priority, then the one interrupted or submitted first."""
        if self.owed and self.priority_class is not PriorityClass.HIGHEST:
            return _RANK_INTERRUPTED, -self.tenths, self.interrupted_at_s
        return self.priority_class.rank, -self.tenths, submitted_at_s

    def begun(self, now: float, period_s: float) -> Standing:
        """As it is once a request comes at ``now``: in the period under way, or in a new one."""
        if self.steps and 0 <= now - self.period_began_s < period_s:
            return self
        return replace(self, base=self.tenths, net=0, steps=0, period_began_s=now)

    def after_request(self, steps: int, by: str) -> Standing:
        """So many steps up, or down if negative, are requested in the period under way. All of a
        period are summed, and then there is one conversion at most."""
        net = self.net + steps
        return replace(
            self,
            tenths=requested(self.base, net),
            net=net,
            steps=self.steps + abs(steps),
            requested=self.requested + steps,
            by=by,
        )

    def after_waiting(self) -> Standing:
        """One step up, within its class; itself where it is at the top of that."""
        tenths = min(self.tenths + 1, _top(self.tenths))
        if tenths == self.tenths:
            return self
        return replace(self, tenths=tenths, base=tenths, net=0, aged=self.aged + 1)

    def after_interruption(self, now: float) -> Standing:
        """One more of its containers ends for an application of the highest class."""
        if self.is_paused:
            return replace(self, owed=self.owed + 1)
        return replace(
            self,
            interruptions=self.interruptions + 1,
            interrupted_at_s=now,
            owed=self.owed + 1,
            is_paused=True,
        )

    def after_start(self) -> Standing:
        """One of its containers has started; it replaces one that ended."""
        return replace(self, owed=max(0, self.owed - 1), is_paused=False)


def declared(priority: int) -> int:
    """The priority, in tenths, that a whole number declares at submission: 1 to 5, and what is
    beyond them as the nearer of them."""
    return {4: _BECOMES_URGENT_AT, DECLARED_MAX: _HIGHEST}.get(
        number := min(DECLARED_MAX, max(1, priority)), 10 * number
    )


def class_of(tenths: int) -> PriorityClass:
    if tenths >= _HIGHEST:
        return PriorityClass.HIGHEST
    return PriorityClass.NORMAL if tenths < _URGENT[0] else PriorityClass.URGENT


def requested(tenths: int, net: int) -> int:
    """The priority after a period in which ``net`` steps were requested; the highest stays."""
    after = tenths + net
    match class_of(tenths):
        case PriorityClass.HIGHEST:
            return tenths
        case PriorityClass.URGENT:
            return _BECOMES_NORMAL_AT if after < _URGENT[0] else min(after, _URGENT[1])
        case PriorityClass.NORMAL:
            return _BECOMES_URGENT_AT if after > _NORMAL[1] else max(after, _NORMAL[0])


def priority_text(tenths: int) -> str:
    """As people see it: ``4.0 (urgent)``."""
    return f"{tenths // 10}.{tenths % 10} ({class_of(tenths).value})"


def _top(tenths: int) -> int:
    """The end of the range of its class."""
    tops = {PriorityClass.NORMAL: _NORMAL[1], PriorityClass.URGENT: _URGENT[1]}
    return tops.get(class_of(tenths), _HIGHEST)
