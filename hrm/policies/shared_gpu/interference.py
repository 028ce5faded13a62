"""How fast jobs are that share a GPU, over their speed alone: nothing, overload, pairs.

``GpuInterference`` is what happens in a simulated GPU, tick by tick; ``PairSlowdowns`` is what is
known of it before jobs meet, from pairs that were measured or observed, which policies are given
(``KnownPairs``). What comes from pairs is the same from the first tick of a job to its last.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from hrm.policies.shared_gpu.profiles import Floats

__all__ = [
    "AdditiveOverload",
    "GpuInterference",
    "KnownPairs",
    "NoInterference",
    "PairFactors",
    "PairSlowdowns",
    "SummedExcess",
]


class GpuInterference(Protocol):
    """How fast jobs are that share a GPU."""

    def speeds(self, kinds: Sequence[int], uses: Floats) -> Sequence[float]:
        """Of each job, over its speed alone, given all kinds and uses (jobs, 4) of this tick."""


class PairSlowdowns(Protocol):
    """How fast jobs are together, as far as it follows from their kinds."""

    def together(self, kinds: Sequence[int]) -> Sequence[float]:
        """Of each of the jobs of these kinds, over its speed alone."""


class NoInterference:
    """Every job is as fast as alone."""

    def speeds(self, kinds: Sequence[int], uses: Floats) -> Sequence[float]:
        """See ``GpuInterference``."""
        return [1.0] * len(kinds)

    def together(self, kinds: Sequence[int]) -> Sequence[float]:
        """See ``PairSlowdowns``."""
        return [1.0] * len(kinds)


@dataclass(frozen=True, slots=True)
class AdditiveOverload:
    """All jobs slow down by what they use together beyond the card, summed over the resources that
    are not memory, with ``weights``."""

    weights: tuple[float, float, float, float] = (1.0, 0.0, 0.5, 0.5)

    def speeds(self, kinds: Sequence[int], uses: Floats) -> Sequence[float]:
        """See ``GpuInterference``."""
        over = np.maximum(uses.sum(axis=0) - 1.0, 0.0)
        speed = 1.0 / (1.0 + float(over @ np.asarray(self.weights)))
        return [max(speed, 1.0 / len(kinds))] * len(kinds)


class PairFactors:
    """Measured speeds of pairs: ``factors[kind, other]``, shares of the speed alone.

    With more than one other, the factors are multiplied (``rule`` product) or the least counts
    (min). No job is slower than in turns with the others, 1/n, nor faster than alone.
    """

    def __init__(self, factors: Floats, rule: Literal["product", "min"] = "product") -> None:
        self._factors = np.minimum(factors, 1.0)
        self._rule = rule
        self._known: dict[tuple[int, ...], list[float]] = {}

    def speeds(self, kinds: Sequence[int], uses: Floats) -> Sequence[float]:
        """See ``GpuInterference``."""
        return self.together(kinds)

    def together(self, kinds: Sequence[int]) -> Sequence[float]:
        """See ``PairSlowdowns``."""
        key = tuple(kinds)
        if key not in self._known:
            floor = 1.0 / len(kinds)
            found = []
            for place, kind in enumerate(kinds):
                others = [self._factors[kind, o] for at, o in enumerate(kinds) if at != place]
                both = math.prod(others) if self._rule == "product" else min(others, default=1.0)
                found.append(max(floor, float(both)))
            self._known[key] = found
        return self._known[key]


class SummedExcess:
    """Expected slowdowns of pairs whose excesses add up: ``excess[kind, other]`` is by how much
    longer a job takes next to the other, over its time alone; less than 0 in sum counts as 0."""

    def __init__(self, excess: Floats) -> None:
        self._excess: list[list[float]] = excess.tolist()

    def together(self, kinds: Sequence[int]) -> Sequence[float]:
        """See ``PairSlowdowns``."""
        found = []
        for place, kind in enumerate(kinds):
            own = self._excess[kind]
            excess = sum(own[other] for at, other in enumerate(kinds) if at != place)
            found.append(1.0 / (1.0 + max(0.0, excess)))
        return found


@dataclass(frozen=True, slots=True)
class KnownPairs:
    """Slowdowns that are known, and the kinds in them of what runs and of what waits."""

    slowdowns: PairSlowdowns
    running: Sequence[int]
    waiting: Sequence[int]

    def pace(self) -> Floats:
        """Shape (waiting, 3): ``GpuSharingView.pace``."""
        together = self.slowdowns.together
        running = tuple(self.running)
        before = sum(together(running)) if running else 0.0
        kinds = list(dict.fromkeys(self.waiting))
        of_kind = {}
        for kind in kinds:
            after = together((*running, kind))
            best = max(sum(together((kind, other))) for other in kinds)
            of_kind[kind] = (after[-1], sum(after) - before, best)
        return np.array([of_kind[kind] for kind in self.waiting]).reshape(-1, 3)
