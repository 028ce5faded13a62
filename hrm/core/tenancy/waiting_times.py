"""How long the containers of a queue waited for their start: percentiles in which the past fades.

A histogram with bounds in a geometric series: any waiting time is within ``RELATIVE_ERROR`` of the
value that stands for its bin, so any percentile is, too, and a queue takes no more memory than
``_BINS_MAX`` numbers, however many containers it starts. What fades is the weight of an
observation: half of it after each half-life. Instead of making all counts smaller as time passes,
a later one counts more, by as much (*forward decay*); the counts are scaled back once in a while.

What has not started is not in it: a queue that starts nothing shows no long waits. ``QueueStatus``
has the wait of what waits now.

Source: the bins are those of DDSketch (Masson, Rim, Lee, VLDB 2019), the weights of Cormode et al.,
"Forward Decay", ICDE 2009.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass

__all__ = ["BUCKETS_S", "RELATIVE_ERROR", "WaitSummary", "WaitingTimes"]

RELATIVE_ERROR = 0.05
"""A percentile is off by no more than this part of it, or by ``_LEAST_S``."""
BUCKETS_S = (0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3_600.0, 14_400.0)
"""Upper bounds of the buckets in which all starts are counted, those long past, too."""

_LEAST_S = 0.01
_MOST_S = 1e7
_RATIO = (1 + RELATIVE_ERROR) / (1 - RELATIVE_ERROR)
_LOG_RATIO = math.log(_RATIO)
_BINS_MAX = math.ceil(math.log(_MOST_S / _LEAST_S) / _LOG_RATIO) + 1
_SCALED_AT = 32.0
"""Half-lives after which counts are scaled back."""
_FORGOTTEN = 1e-6
_FEWEST = 1 / 16
"""Where so little is left of all starts, there was none lately."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitSummary:
    """Waiting times, in seconds. The percentiles are None where nothing has started lately.
    ``starts``: how many containers they are of, each by what has not faded of it. ``buckets``: all
    starts by ``BUCKETS_S``, those that waited for longer last; ``total_s``: what they waited
    together."""

    p50_s: float | None
    p90_s: float | None
    p99_s: float | None
    starts: float
    buckets: tuple[int, ...]
    total_s: float


class WaitingTimes:
    """Of one queue. ``half_life_s`` is above 0; ``now`` never goes back by much."""

    __slots__ = ("_bins", "_buckets", "_half_life_s", "_since_s", "_total_s")

    def __init__(self, half_life_s: float) -> None:
        self._half_life_s = half_life_s
        self._bins: dict[int, float] = {}
        self._since_s: float | None = None
        self._buckets = [0] * (len(BUCKETS_S) + 1)
        self._total_s = 0.0

    def add(self, waited_s: float, now: float) -> None:
        """A container has started."""
        waited_s = min(max(0.0, waited_s), _MOST_S)
        self._buckets[bisect_left(BUCKETS_S, waited_s)] += 1
        self._total_s += waited_s
        number = 0
        if waited_s > _LEAST_S:
            number = max(1, math.ceil(math.log(waited_s / _LEAST_S) / _LOG_RATIO))
        if self._since_s is None:
            self._since_s = now
        past = (now - self._since_s) / self._half_life_s
        if past > _SCALED_AT:
            self._scale(0.5**past)
            self._since_s, past = now, 0.0
        self._bins[number] = self._bins.get(number, 0.0) + 2.0**past

    def _scale(self, factor: float) -> None:
        self._bins = {x: y * factor for x, y in self._bins.items() if y * factor > _FORGOTTEN}

    def summary(self, now: float) -> WaitSummary | None:
        """None: nothing has started yet. ``now`` may be before the latest start: a master that has
        just begun has no tick yet."""
        if self._since_s is None:
            return None
        bins = sorted(self._bins.items())
        weight = sum(count for _, count in bins)
        starts = weight * 0.5 ** (max(0.0, now - self._since_s) / self._half_life_s)
        is_known = starts >= _FEWEST
        p50_s, p90_s, p99_s = (
            _value(bins, x * weight) if is_known else None for x in (0.5, 0.9, 0.99)
        )
        return WaitSummary(
            p50_s=p50_s,
            p90_s=p90_s,
            p99_s=p99_s,
            starts=starts,
            buckets=tuple(self._buckets),
            total_s=self._total_s,
        )


def _value(bins: list[tuple[int, float]], weight: float) -> float:
    """What stands for the first bin up to which there is so much weight."""
    up_to, last = 0.0, 0
    for number, count in bins:
        up_to, last = up_to + count, number
        if up_to >= weight * (1 - 1e-9):
            break
    return 2 * _LEAST_S * _RATIO**last / (_RATIO + 1) if last else 0.0
