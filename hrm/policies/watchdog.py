"""Whether a learned policy does worse than its heuristic: two randomisation tests over one span.

Questions are drawn for one of two arms by a hash of their key, in all modes in which the learned
policy decides, so load, tasks and time are the same for both but for chance. If the two policies
did the same, the arm of a question would say nothing about how it ended, whatever the load did
meanwhile. Both tests compare the ends of the last ``span`` with what the draw alone could explain:

- by **rank** (Mann and Whitney, 1947): are the learned arm's ends later on the whole? The variance
  is that without ties, which is never too small;
- by **tail**: has the heuristic fewer of the slowest tenth than by chance (hypergeometric, exact)?
  It finds failures and stragglers, of which ranks show little.

A value is the logarithm of response over expectation, at most that of a failure; the learned arm's
is lowered by the tolerated factor. What was drawn together counts as one value, its mean: ends of
one question resemble each other, and are no evidence of their own.

**False alarms.** The k-th comparison of a life may err with probability ``false_alarms`` /
(k (k + 1)), half of it for each test. The sum over all k is ``false_alarms``, so that is the bound
for a life of any length, however the comparisons depend on each other (Bonferroni). A life begins
with a mode, and so does the record: shares of other modes would confuse load with policy.

**Limits.** Where both arms share nodes or queues, one slows down the other as well, and what is
worse for both alike is not found. What ends never is not compared.
"""

from __future__ import annotations

import math
from collections import deque

import numpy as np
import numpy.typing as npt

__all__ = ["TAIL", "Watchdog", "rank_p", "tail_p"]

TAIL = 0.1
"""The share of all values that counts as the tail."""

_Floats = npt.NDArray[np.float64]


class _Unit:
    """What was drawn by one key, of the ends in the span: how many, and the sum of their values."""

    __slots__ = ("drawn", "ends", "total")

    def __init__(self, drawn: bool) -> None:
        self.drawn, self.ends, self.total = drawn, 0, 0.0


class Watchdog:
    """Compares how long things took with what the heuristic expected, for both arms.

    Args:
        factor: how many times worse the learned arm may be.
        span: ends, of both arms, that are compared.
        every: ends from one comparison to the next.
        samples_min: draws of either arm below which there is no comparison, and ends below which
            none of its figures are shown.
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
        self._ends: deque[tuple[str, bool, float]] = deque()
        self._units: dict[tuple[str, bool], _Unit] = {}
        self._since = self._comparisons = 0
        self.compared = self.reference_compared = 0
        """Ends taken in, in all lives: of the learned policy's arm, and of the heuristic's."""

    def observed(self, ratio: float, unit: str, *, drawn: bool) -> bool:
        """Take in one end; true: the learned arm is worse, by more than chance.

        ``ratio``: of response to expectation, positive; ``unit``: the key that was drawn for it;
        ``drawn``: whether for the learned policy.
        """
        if drawn:
            self.compared += 1
        else:
            self.reference_compared += 1
        self._ends.append((unit, drawn, ratio))
        self._add(unit, drawn, ratio, 1)
        if len(self._ends) > self._span:
            self._add(*self._ends.popleft(), -1)
        self._since += 1
        if self._since < self._every:
            return False
        self._since = 0
        return self._is_worse()

    def forget(self) -> None:
        """Begin another life: the shares of the arms have changed."""
        self._ends.clear()
        self._units.clear()
        self._since = self._comparisons = 0

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
        sides = [[r for _, drawn, r in self._ends if drawn is arm] for arm in (True, False)]
        return [side if len(side) >= self._samples_min else [] for side in sides]

    def _add(self, unit: str, drawn: bool, ratio: float, sign: int) -> None:
        held = self._units.setdefault((unit, drawn), _Unit(drawn))
        held.ends += sign
        least = 1.0 / self._ratio_max
        held.total += sign * math.log(min(max(ratio, least), self._ratio_max))
        if not held.ends:
            del self._units[unit, drawn]

    def _is_worse(self) -> bool:
        ours = self._values(True) - self._tolerated
        theirs = self._values(False)
        if min(len(ours), len(theirs)) < self._samples_min:
            return False
        self._comparisons += 1
        allowed = self._false_alarms / (self._comparisons * (self._comparisons + 1))
        return min(rank_p(ours, theirs), tail_p(ours, theirs)) <= allowed / 2.0

    def _values(self, drawn: bool) -> _Floats:
        return np.array(
            [unit.total / unit.ends for unit in self._units.values() if unit.drawn is drawn]
        )


def rank_p(ours: _Floats, theirs: _Floats) -> float:
    """Probability, 0..1, that chance alone ranks ``ours`` so far above ``theirs``.

    Both of shape (n,), none empty. Normal approximation with half a rank for continuity; the exact
    distribution has lighter tails. Equal values share their mean rank.
    """
    m, n = len(ours), len(theirs)
    _, place, counts = np.unique(
        np.concatenate((ours, theirs)), return_inverse=True, return_counts=True
    )
    ranks = (np.cumsum(counts) - (counts - 1) / 2.0)[place]
    above = float(ranks[:m].sum()) - m * (m + n + 1) / 2.0
    return 0.5 * math.erfc((above - 0.5) / math.sqrt(m * n * (m + n + 1) / 6.0))


def tail_p(ours: _Floats, theirs: _Floats) -> float:
    """Probability, 0..1, that chance alone leaves ``theirs`` so few of the greatest ``TAIL``.

    Both of shape (n,), none empty. Where values at the border are equal, the tail is what is above
    it, if there is anything.
    """
    both = np.concatenate((ours, theirs))
    border = np.quantile(both, 1.0 - TAIL, method="lower")
    is_tail = both > border
    if not is_tail.any():
        is_tail = both >= border
    tail, many, theirs_many = int(is_tail.sum()), len(both), len(theirs)
    seen = int(is_tail[len(ours) :].sum())
    least = max(0, theirs_many - (many - tail))
    chances = (
        _log_ways(tail, count) + _log_ways(many - tail, theirs_many - count)
        for count in range(least, seen + 1)
    )
    ways = _log_ways(many, theirs_many)
    return min(1.0, math.fsum(math.exp(chance - ways) for chance in chances))


def _log_ways(many: int, chosen: int) -> float:
    """Logarithm of the binomial coefficient; exact ones take seconds for thousands."""
    return math.lgamma(many + 1) - math.lgamma(chosen + 1) - math.lgamma(many - chosen + 1)
