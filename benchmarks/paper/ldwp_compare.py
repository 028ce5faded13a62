"""Statistical comparisons: paired by seed, Student's t, Holm over scenarios, and the ship rule.

All policies get the same arrivals, so the difference of two on one seed is a sample of its own;
what the seeds have in common cancels. Several scenarios are several chances for a lucky result:
Holm's procedure raises each p value for that.

Source: LDWP + IAWP, section 6.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.simulation.figures import Interval, interval

__all__ = ["Paired", "holm", "paired", "ship"]

SHIP_WINS, SHIP_OF = 8, 10
SHIP_WORST = -0.02


@dataclass(frozen=True, slots=True)
class Paired:
    """Relative difference of ours to theirs, its 95 % interval, and the two-sided p value."""

    difference: Interval
    p: float

    def as_json(self) -> dict[str, float]:
        return {**self.difference.as_json(), "p": self.p}


def paired(ours: Mapping[int, float], theirs: Mapping[int, float]) -> Paired:
    """(ours - theirs) over the mean of theirs, by seed. Values of both, by seed.

    If theirs are all 0, nothing can be concluded: 0, with p = 1.
    """
    seeds = sorted(ours.keys() & theirs.keys())
    base = statistics.fmean(theirs[seed] for seed in seeds)
    if base == 0.0:
        return Paired(Interval(0.0, 0.0, 0.0, len(seeds)), 1.0)
    differences = [(ours[seed] - theirs[seed]) / base for seed in seeds]
    found = interval(differences)
    spread = statistics.stdev(differences) if len(differences) > 1 else 0.0
    if spread == 0.0:
        return Paired(found, 0.0 if found.mean and len(differences) > 1 else 1.0)
    from scipy.stats import t

    value = abs(found.mean) / (spread / math.sqrt(len(differences)))
    return Paired(found, float(2.0 * t.sf(value, len(differences) - 1)))


def holm(values: Sequence[float]) -> list[float]:
    """p values adjusted for multiple comparisons, in the order given."""
    order = sorted(range(len(values)), key=lambda one: values[one])
    adjusted, least = [1.0] * len(values), 0.0
    for rank, place in enumerate(order):
        least = max(least, min(1.0, (len(values) - rank) * values[place]))
        adjusted[place] = least
    return adjusted


def ship(found: Sequence[Paired]) -> tuple[bool, int, int]:
    """Whether it may become the default: (yes, scenarios won, scenarios lost by more than 2 %).

    Won: the interval lies above 0. Lost: it lies below -2 % in part, so that such a loss cannot be
    ruled out, and its mean is a loss.
    """
    won = sum(one.difference.low > 0.0 for one in found)
    lost = sum(one.difference.low < SHIP_WORST and one.difference.mean < 0.0 for one in found)
    return won >= SHIP_WINS * len(found) / SHIP_OF and not lost, won, lost
