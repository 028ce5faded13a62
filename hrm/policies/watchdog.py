"""Whether a learned policy does worse than its heuristic: two randomisation tests over one span.

Questions are drawn for one of two arms by a keyed hash, in all modes in which the learned policy
decides, so load, tasks and time are the same for both but for chance. If the two policies
did the same, the arm of a question would say nothing about how it ended, whatever the load did
meanwhile. Both tests compare the ends of the last ``span`` with what the draw alone could explain:

- by **rank** (Mann and Whitney, 1947): are the learned arm's ends later on the whole? The variance
  is that without ties, which is never too small;
- by **tail**: has the heuristic fewer of the slowest tenth than by chance (hypergeometric, exact)?
  It finds failures and stragglers, of which ranks show little.

A value is the logarithm of response over expectation, at most that of a failure; the learned arm's
is lowered by the tolerated factor, but for failures, which are alike on both sides. What was drawn
together counts as one value, its mean: ends of one question resemble each other, and are no
evidence of their own.

**Users.** How a task ends is in the hands of who wrote it. So a value is ranked only among those of
the same user (strata; van Elteren, 1960): tasks that fail wherever they run say nothing, and do not
fill the tail of others. The difference must also be there without any one user, whoever that is:
nobody's tasks alone bring a policy down, unless they are nearly all that the cluster has
(``OTHERS``). Users with few draws are one stratum. Where the span is full, the oldest end of the
user with most of it goes first, so that nobody drives out the others'; after ``AGE`` spans an end
goes in any case.

**False alarms.** The k-th comparison of a life may err with probability ``false_alarms`` /
(k (k + 1)), half of it for each test. The sum over all k is ``false_alarms``, so that is the bound
for a life of any length, however the comparisons depend on each other (Bonferroni); and, as what
is left without one user is tested at the same level, also for one in which that user sees to it
that tasks of his end as he wants. A life begins with a mode, and so does the record: shares of
other modes would confuse load with policy.

**Limits.** Where both arms share nodes or queues, one slows down the other as well, and what is
worse for both alike is not found. What ends never is not compared. A policy that is worse for one
of several users alone is not found, either.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["AGE", "OTHERS", "TAIL", "Watchdog", "rank_p", "tail_p"]

TAIL = 0.1
"""The share of a user's values that counts as the tail."""
OTHERS = 0.1
"""With a smaller share of the draws than this, all others together do not keep a user's from
being the cluster's."""
LEFT_OUT = 50
"""Users without whom the difference must be there, one at a time: those with most draws."""
AGE = 4
"""How many spans of ends, all users', an end is compared for at most."""

_Floats = npt.NDArray[np.float64]


class _Unit:
    """What was drawn by one key, of the ends in the span: how many, and the sum of their values."""

    __slots__ = ("drawn", "ends", "total")

    def __init__(self, drawn: bool) -> None:
        self.drawn, self.ends, self.total = drawn, 0, 0.0


class _End(NamedTuple):
    """``number``: of all ends of this life."""

    number: int
    unit: str
    drawn: bool
    ratio: float
    value: float


class _User:
    """Ends of one user in the span, oldest first, and what was drawn for them."""

    __slots__ = ("ends", "units")

    def __init__(self) -> None:
        self.ends: deque[_End] = deque()
        self.units: dict[tuple[str, bool], _Unit] = {}

    def values(self, drawn: bool) -> list[float]:
        """The mean of each draw of one arm."""
        return [x.total / x.ends for x in self.units.values() if x.drawn is drawn]


class _Stratum(NamedTuple):
    """Values of both arms, each of shape (n,), none empty."""

    ours: _Floats
    theirs: _Floats


class Watchdog:
    """Compares how long things took with what the heuristic expected, for both arms.

    Args:
        factor: how many times worse the learned arm may be.
        span: ends, of both arms and of all users, that are compared.
        every: ends from one comparison to the next.
        samples_min: draws of either arm below which there is no comparison, ends below which none
            of its figures are shown, and draws of both arms that make a user a stratum.
        false_alarms: probability of a roll back in a life in which both arms are alike, 0..1.
        ratio_max: what greater ratios count as, in the comparison.
    """

    def __init__(
        self,
        *,
        factor: float,
        span: int,
        every: int,
        samples_min: int,
        false_alarms: float,
        ratio_max: float,
    ) -> None:
        self._tolerated = math.log(factor)
        self._span = span
        self._every = every
        self._samples_min = samples_min
        self._false_alarms = false_alarms
        self._ratio_max = ratio_max
        self._users: dict[str, _User] = {}
        self._held = self._number = self._since = self._comparisons = 0
        self.compared = self.reference_compared = 0
        """Ends taken in, in all lives: of the learned policy's arm, and of the heuristic's."""

    def observed(
        self, ratio: float, unit: str, *, drawn: bool, user: str = "", failed: bool = False
    ) -> bool:
        """Take in one end; true: the learned arm is worse, by more than chance.

        ``ratio``: of response to expectation, positive; ``unit``: the key that was drawn for it;
        ``drawn``: whether for the learned policy; ``user``: whose it is; ``failed``: it counts as
        ``ratio_max`` for either arm, whatever its ratio.
        """
        ratio = self._ratio_max if failed else ratio
        value = math.log(max(ratio, 1.0 / self._ratio_max))
        if drawn and not failed:
            value -= self._tolerated
        value = min(value, math.log(self._ratio_max))
        if drawn:
            self.compared += 1
        else:
            self.reference_compared += 1
        self._number += 1
        held = self._users.setdefault(user, _User())
        held.ends.append(_End(self._number, unit, drawn, ratio, value))
        self._add(held, held.ends[-1], 1)
        if self._held > self._span:
            self._drop(max(self._users, key=lambda name: len(self._users[name].ends)))
        self._since += 1
        if self._since < self._every:
            return False
        self._since = 0
        self._drop_old()
        return self._is_worse()

    def forget(self) -> None:
        """Begin another life: the shares of the arms have changed."""
        self._users.clear()
        self._held = self._number = self._since = self._comparisons = 0

    def p95(self) -> tuple[float, float]:
        """The 95th percentiles of both arms' ratios in the span, the learned one's first; NaN:
        there are few."""
        ours, theirs = (
            float(np.percentile(side, 95)) if side else math.nan for side in self._sides()
        )
        return ours, theirs

    def means(self) -> tuple[float, float]:
        """The means of the same."""
        ours, theirs = (float(np.mean(side)) if side else math.nan for side in self._sides())
        return ours, theirs

    def _sides(self) -> list[list[float]]:
        ends = [end for user in self._users.values() for end in user.ends]
        sides = [[end.ratio for end in ends if end.drawn is arm] for arm in (True, False)]
        return [side if len(side) >= self._samples_min else [] for side in sides]

    def _add(self, user: _User, end: _End, sign: int) -> None:
        self._held += sign
        key = end.unit, end.drawn
        held = user.units.setdefault(key, _Unit(end.drawn))
        held.ends += sign
        held.total += sign * end.value
        if not held.ends:
            del user.units[key]

    def _drop(self, name: str) -> None:
        user = self._users[name]
        self._add(user, user.ends.popleft(), -1)
        if not user.ends:
            del self._users[name]

    def _drop_old(self) -> None:
        oldest = self._number - AGE * self._span
        for name in list(self._users):
            while name in self._users and self._users[name].ends[0].number <= oldest:
                self._drop(name)

    def _is_worse(self) -> bool:
        sides = {name: (x.values(True), x.values(False)) for name, x in self._users.items()}
        strata = self._strata(sides)
        if not self._enough(strata):
            return False
        self._comparisons += 1
        allowed = self._false_alarms / (self._comparisons * (self._comparisons + 1)) / 2.0
        if _p(strata) > allowed:
            return False
        draws = sum(len(ours) + len(theirs) for ours, theirs in sides.values())
        by_draws = sorted(sides, key=lambda name: -len(self._users[name].units))
        for name in by_draws[:LEFT_OUT]:
            own = len(sides[name][0]) + len(sides[name][1])
            if draws - own < OTHERS * draws:
                continue
            others = self._strata({x: both for x, both in sides.items() if x != name})
            if not self._enough(others) or _p(others) > allowed:
                return False
        return True

    def _strata(self, sides: dict[str, tuple[list[float], list[float]]]) -> list[_Stratum]:
        """Of each user with enough draws, and one of all others; those with one arm alone compare
        nothing."""
        few: tuple[list[float], list[float]] = [], []
        held = [few]
        for ours, theirs in sides.values():
            if len(ours) + len(theirs) >= self._samples_min:
                held.append((ours, theirs))
            else:
                few[0].extend(ours)
                few[1].extend(theirs)
        return [
            _Stratum(np.array(ours), np.array(theirs)) for ours, theirs in held if ours and theirs
        ]

    def _enough(self, strata: Sequence[_Stratum]) -> bool:
        ours = sum(len(one.ours) for one in strata)
        theirs = sum(len(one.theirs) for one in strata)
        return min(ours, theirs) >= self._samples_min


def _p(strata: Sequence[_Stratum]) -> float:
    return min(rank_p(*strata), tail_p(*strata))


def rank_p(*strata: tuple[_Floats, _Floats]) -> float:
    """Probability, 0..1, that chance alone ranks the first of each pair so far above the second.

    Each of shape (n,), none empty; values are ranked within their pair alone, and pairs are weighed
    by one over their number of values and one (van Elteren). Normal approximation with half a rank
    for continuity; the exact distribution has lighter tails. Equal values share their mean rank.
    """
    above = variance = 0.0
    rank = math.inf
    for ours, theirs in strata:
        m, n = len(ours), len(theirs)
        _, place, counts = np.unique(
            np.concatenate((ours, theirs)), return_inverse=True, return_counts=True
        )
        ranks = (np.cumsum(counts) - (counts - 1) / 2.0)[place]
        above += float(ranks[:m].sum()) / (m + n + 1) - m / 2.0
        variance += m * n / (12.0 * (m + n + 1))
        rank = min(rank, 1.0 / (m + n + 1))
    return 0.5 * math.erfc((above - 0.5 * rank) / math.sqrt(2.0 * variance))


def tail_p(*strata: tuple[_Floats, _Floats]) -> float:
    """Probability, 0..1, that chance alone leaves the second of each pair, all together, so few of
    the greatest ``TAIL`` of their pair.

    Each of shape (n,), none empty. Where values at the border are equal, the tail is what is above
    it, if there is anything. The sum of independent hypergeometric counts, by convolution.
    """
    ways, seen = np.ones(1), 0
    for ours, theirs in strata:
        both = np.concatenate((ours, theirs))
        border = np.quantile(both, 1.0 - TAIL, method="lower")
        is_tail = both > border
        if not is_tail.any():
            is_tail = both >= border
        ways = np.convolve(ways, _hypergeometric(len(both), int(is_tail.sum()), len(theirs)))
        seen += int(is_tail[len(ours) :].sum())
    return min(1.0, math.fsum(ways[: seen + 1]))


def _hypergeometric(many: int, tail: int, chosen: int) -> _Floats:
    """The probabilities of 0 to ``min(tail, chosen)`` of the tail among ``chosen`` of ``many``."""
    least, most = max(0, tail + chosen - many), min(tail, chosen)
    all_ways = _log_ways(many, chosen)
    found = np.zeros(most + 1)
    for count in range(least, most + 1):
        log_ways = _log_ways(tail, count) + _log_ways(many - tail, chosen - count)
        found[count] = math.exp(log_ways - all_ways)
    return found


def _log_ways(many: int, chosen: int) -> float:
    """Logarithm of the binomial coefficient; exact ones take seconds for thousands."""
    return math.lgamma(many + 1) - math.lgamma(chosen + 1) - math.lgamma(many - chosen + 1)
