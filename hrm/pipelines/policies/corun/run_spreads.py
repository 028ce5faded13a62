"""How the runs of one row differ: quantiles of their time, and the memory that they reach.

**Times.** Kept are mean and variance of ln(time), and a histogram, with bins of 10 %, of how far
each run was from that mean as it was before it: the error of the mean is part of it. The first
runs, whose mean is no measure, decide by mean and variance alone, as a normal distribution; later
this counts as ``_PRIOR_RUNS`` runs, and the latest ``RUNS_REMEMBERED`` make up most of the rest. So
the tail of a skewed distribution is its own once it has been seen, and until then a guess. The
alternatives that were measured: ``benchmarks/pipelines/estimate_quality.py``.

**Device memory.** Peaks of co-runners are added up, and what adds up are means and variances, so
these are kept, of ln(peak). A run that ran out of memory counts as one with half as much again as
it had, which is what it is given when it is tried again.

Both have a bound in size, are the same for the same runs in the same order, and are merged by
taking the one into which more runs have gone, as everything in the table of estimates is.
"""

from __future__ import annotations

import bisect
import itertools
import math
from dataclasses import dataclass, replace
from statistics import NormalDist

from hrm.pipelines.core.device_memory import OUT_OF_MEMORY_FACTOR, PeakMemory

__all__ = [
    "BINS_MAX",
    "BIN_LIMIT",
    "RUNS_REMEMBERED",
    "PeakSpread",
    "TimeSpread",
]

RUNS_REMEMBERED = 100
"""The latest runs, about so many, make up a spread: a P99 needs as many."""
BINS_MAX = 48
BIN_LIMIT = 96
"""Bins are numbered from -96 to 96: a nine-thousandth of what was expected, and as many times."""
_BIN = math.log(1.1)
_PRIOR_RUNS = 8.0
_PRIOR_VARIANCE, _PRIOR_WEIGHT = 0.1, 4.0
"""Of ln(time): the variance before anything is known, and for how many runs it counts."""
_PEAK_VARIANCE, _PEAK_WEIGHT = 0.01, 2.0
"""The same of ln(peak)."""
_WEIGHT_MIN = 0.02
_LEAST_S = 1e-6
_LEAST_MIB = 1e-3
_PEAKS_MIN, _GREATEST_MIN = 5, 20
"""Runs from which on a spread of memory counts, and from which on its end is taken to be known."""
_BINS_AFTER = 5
_STEPS = 30
"""Halvings of the range of bins: to a ten-millionth."""


@dataclass(frozen=True, slots=True)
class TimeSpread:
    """``log_mean`` and ``log_variance``: of ln(seconds); ``bins``: number and weight, bin ``n``
    being around 1.1 to the power of ``n`` times what was expected; ``runs``: how many have gone
    into it, without a bound."""

    log_mean: float = 0.0
    log_variance: float = 0.0
    bins: tuple[tuple[int, float], ...] = ()
    runs: int = 0

    def observed(self, seconds: float) -> TimeSpread:
        """With a run that took so long."""
        runs, log = self.runs + 1, math.log(max(seconds, _LEAST_S))
        weight = min(runs, RUNS_REMEMBERED)
        moved = log - self.log_mean
        log_mean = self.log_mean + moved / weight
        variance = self.log_variance + (moved * (log - log_mean) - self.log_variance) / weight
        bins = self.bins if runs <= _BINS_AFTER else self._with(moved)
        return TimeSpread(log_mean, max(0.0, variance), bins, runs)

    def _with(self, moved: float) -> tuple[tuple[int, float], ...]:
        """The bins, and one more run that was so far from the mean."""
        number = max(-BIN_LIMIT, min(BIN_LIMIT, round(moved / _BIN)))
        kept = 1.0 if self.runs < RUNS_REMEMBERED else 1.0 - 1.0 / RUNS_REMEMBERED
        bins = {n: w * kept for n, w in self.bins if w * kept >= _WEIGHT_MIN}
        bins[number] = bins.get(number, 0.0) + 1.0
        if len(bins) > BINS_MAX:
            others = (one for one in bins.items() if one[0] != number)
            del bins[min(others, key=lambda one: (one[1], one[0]))[0]]
        return tuple(sorted(bins.items()))

    def at_speed(self, speed: float) -> TimeSpread:
        """On a device that is so many times as fast."""
        return replace(self, log_mean=self.log_mean - math.log(speed))

    def quantile_s(self, share: float) -> float:
        """What a run takes at most with a probability of ``share``, 0 to 1; there is a run."""
        assert 0.0 < share < 1.0, share
        normal = NormalDist(0.0, self._log_deviation())
        if not self.bins:
            return math.exp(self.log_mean + normal.inv_cdf(share))
        places, weights = zip(*self.bins, strict=True)
        before = [0.0, *itertools.accumulate(weights)]
        wanted = share * (before[-1] + _PRIOR_RUNS)
        low, high = -BIN_LIMIT * _BIN, BIN_LIMIT * _BIN
        for _ in range(_STEPS):
            at = (low + high) / 2.0
            ahead = bisect.bisect_right(places, at / _BIN + 0.5) - 1
            below = _PRIOR_RUNS * normal.cdf(at)
            if ahead >= 0:
                part = min(1.0, at / _BIN + 0.5 - places[ahead])
                below += before[ahead] + part * weights[ahead]
            low, high = (at, high) if below < wanted else (low, at)
        return math.exp(self.log_mean + high)

    def deviation(self) -> float:
        """The standard deviation of a run's time, over its mean."""
        return math.sqrt(math.expm1(self._log_deviation() ** 2))

    def _log_deviation(self) -> float:
        """Of ln(time) from ``log_mean``; there is a run."""
        known = min(self.runs, RUNS_REMEMBERED)
        squares = self.log_variance * known + _PRIOR_VARIANCE * _PRIOR_WEIGHT
        return math.sqrt(squares / (known + _PRIOR_WEIGHT) * (1.0 + 1.0 / known))


@dataclass(frozen=True, slots=True)
class PeakSpread:
    """``log_mean`` and ``log_variance``: of ln(peak in MiB); ``greatest_mib``; ``runs``: how many
    have gone into it, the ``out_of_memory`` included, which ran out of it."""

    log_mean: float = 0.0
    log_variance: float = 0.0
    greatest_mib: float = 0.0
    runs: int = 0
    out_of_memory: int = 0

    def observed(self, peak_mib: float) -> PeakSpread:
        """With a run that reached this."""
        runs, log = self.runs + 1, math.log(max(peak_mib, _LEAST_MIB))
        weight = min(runs, RUNS_REMEMBERED)
        moved = log - self.log_mean
        mean = self.log_mean + moved / weight
        variance = self.log_variance + (moved * (log - mean) - self.log_variance) / weight
        greatest_mib = max(self.greatest_mib, peak_mib)
        return PeakSpread(mean, max(0.0, variance), greatest_mib, runs, self.out_of_memory)

    def ran_out(self, had_mib: float) -> PeakSpread:
        """With a run that had this, and needed more."""
        more = self.observed(had_mib * OUT_OF_MEMORY_FACTOR)
        return replace(more, out_of_memory=self.out_of_memory + 1)

    def peak(self) -> PeakMemory | None:
        """Of the next run; None: too little is known for the spread to count."""
        if self.runs < _PEAKS_MIN and not self.out_of_memory:
            return None
        known = min(self.runs, RUNS_REMEMBERED)
        variance = self.log_variance * known + _PEAK_VARIANCE * _PEAK_WEIGHT
        variance *= (1.0 + 1.0 / known) / (known + _PEAK_WEIGHT)
        mean_mib = math.exp(self.log_mean + variance / 2.0)
        most_mib = self.greatest_mib if self.runs >= _GREATEST_MIN else math.inf
        return PeakMemory(mean_mib, mean_mib**2 * math.expm1(variance), most_mib)
