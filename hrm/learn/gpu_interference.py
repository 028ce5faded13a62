"""How fast jobs are that share a GPU, over their speed alone: nothing, overload, measured pairs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from hrm.policies.shared_gpu.profiles import Floats

__all__ = ["AdditiveOverload", "GpuInterference", "NoInterference", "PairFactors"]

_NO_USES: Floats = np.zeros((0, 4))


class GpuInterference(Protocol):
    """How fast jobs are that share a GPU."""

    def speeds(self, kinds: Sequence[int], uses: Floats) -> Sequence[float]:
        """Of each job, over its speed alone, given all kinds and uses (jobs, 4) of this tick."""


class NoInterference:
    """Every job is as fast as alone."""

    def speeds(self, kinds: Sequence[int], uses: Floats) -> Sequence[float]:
        """See ``GpuInterference``."""
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

    def totals(self, kinds: Sequence[int]) -> Floats:
        """Shape (kinds, kinds): the sum of both speeds in each pair."""
        pairs = [[sum(self.speeds((one, other), _NO_USES)) for other in kinds] for one in kinds]
        return np.array(pairs)
