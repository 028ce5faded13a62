"""How much each subtask suffers on a shared GPU, and how much it inflicts, by observed co-runs.

For a victim v next to a partner c the model is

    ln(slow-down) = intercept + weight x prior(v, c) + the sum of seven effects

where ``prior`` is what the loads of both say (``pair_prior``). Effects are of the kind of the
victim, the kind of the partner, both kinds together; of the victim's row (kind, size, model of
GPU) alone and with the partner's kind, and the same with the sides exchanged. Effects shrink to 0,
the weight to 1: a row that was never seen has the effects of its kind, two kinds that never met
what each did with others, a kind that was never seen the prior alone. So a pair that never ran is
estimated from all that resembles it, which a table of pairs cannot.

With several partners the excesses over the time alone add up; what such a run took longer is
attributed to its pairs in proportion to what was expected of each.

The fit is ridge regression over the mean of each observed pair, by block coordinate descent: the
two coefficients, and each kind of effect, are solved in closed form while the others are fixed.

Source: LDWP + IAWP, section 3.4, the score ``learned``; additive effects of both sides of a pair
after Koren, Bell and Volinsky (2009), the biases of "Matrix factorization techniques for
recommender systems"; ridge after Hoerl and Kennard (1970).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from hrm.pipelines.core.model import CO_RUN_FEATURES, Row
from hrm.pipelines.policies.corun.gpu_sharing import GpuSharing
from hrm.pipelines.policies.corun.predictors import Floats
from hrm.pipelines.policies.corun.slowdowns import LOADS, Slowdowns

__all__ = ["PAIRS_MAX", "PairEffects", "Ridges", "pair_prior"]

PAIRS_MAX = 2048
"""Ordered pairs that are remembered; the least recently observed one gives way."""
_MOST = 10.0
_LEAST = 0.05
"""Slow-downs are clipped to this range: a run that hung must not outweigh a hundred others."""
_COUNTED_MAX = 20.0
"""Observations of one pair that weigh; more of the same say little about others."""
_SWEEPS = 25
_SETTLED = 1e-4
_REFIT_SHARE = 0.02
_SM = CO_RUN_FEATURES.index("sm")
_ALL_LOADS = Slowdowns()

Pair: TypeAlias = tuple[Row, Row]
Prior: TypeAlias = Callable[[Row, Row], float]
"""(victim, partner) to the ln(slow-down) that is expected by their loads, >= 0."""
_Indexes: TypeAlias = npt.NDArray[np.intp]


def pair_prior(own: Floats, other: Floats, sharing: GpuSharing) -> float:
    """ln(slow-down) of loads ``own`` next to ``other``, both (loads,), by their loads alone.

    Under time slicing two processes that have work for the shares u and v of the time take
    max(1, u + v) as long; ``sm`` is that share, as NVML reports it. Under MPS it is the
    regression's prior for contention of caches and memory (``Slowdowns``).
    """
    if sharing is GpuSharing.TIME_SLICING:
        return math.log(max(1.0, float(own[_SM] + other[_SM])))
    excess = float(_ALL_LOADS.excess(own[None, :LOADS], other[None, :LOADS])[0])
    return math.log1p(max(0.0, excess))


@dataclass(frozen=True, slots=True, kw_only=True)
class Ridges:
    """How many observations each prior weighs: of an effect of a kind, of a row, of an interaction
    of both sides, and of the coefficients."""

    kind: float = 0.3
    row: float = 1.0
    interaction: float = 3.0
    coefficient: float = 1.0


_EFFECTS: tuple[tuple[str, Callable[[Row, Row], Hashable]], ...] = (
    ("kind", lambda victim, partner: ("suffers", victim.kind)),
    ("kind", lambda victim, partner: ("inflicts", partner.kind)),
    ("row", lambda victim, partner: ("suffers", victim)),
    ("row", lambda victim, partner: ("inflicts", partner)),
    ("interaction", lambda victim, partner: ("together", victim.kind, partner.kind)),
    ("interaction", lambda victim, partner: ("suffers", victim, partner.kind)),
    ("interaction", lambda victim, partner: ("inflicts", victim.kind, partner)),
)
"""The ridge of each, and what a pair has in common with others that share the effect; in the order
of the descent, the general before the special."""


class PairEffects:
    """See the module. It keeps sums for each ordered pair, and the fit to them."""

    def __init__(self, ridges: Ridges | None = None) -> None:
        self._ridges = Ridges() if ridges is None else ridges
        self._sums: dict[Pair, tuple[float, float]] = {}
        """(victim, partner): observations, and the sum of their ln(slow-down); in the order of the
        latest."""
        self._marks: dict[Pair, int] = {}
        self._coefficients = np.array([0.0, 1.0])
        self._effects: dict[Hashable, float] = {}
        self._new = 0.0

    def __len__(self) -> int:
        return len(self._sums)

    def observe(
        self,
        victim: Row,
        co_runners: Sequence[Row],
        slowdown: float,
        prior: Prior,
        mark: int = 0,
    ) -> None:
        """Learn, with the next ``fit``, that a run of ``victim`` took ``slowdown`` times its time
        alone.

        Args:
            co_runners: what shared its GPU, at least one.
            prior: see ``Prior``; divides the excess among several co-runners.
            mark: for ``since``; never decreases.
        """
        excess = min(_MOST, max(_LEAST, slowdown)) - 1.0
        expected = [max(1e-3, self.excess(victim, one, prior)) for one in co_runners]
        whole = sum(expected)
        weight = 1.0 / len(co_runners)
        for one, part in zip(co_runners, expected, strict=True):
            own = excess * part / whole if excess > 0 else excess * weight
            count, total = self._sums.pop((victim, one), (0.0, 0.0))
            if not count and len(self._sums) >= PAIRS_MAX:
                self._evict()
            value = math.log(max(_LEAST, 1.0 + own))
            self._sums[victim, one] = (count + weight, total + weight * value)
            self._marks[victim, one] = mark
        self._new += 1.0

    def _evict(self) -> None:
        oldest = next(iter(self._sums))
        del self._sums[oldest]
        self._marks.pop(oldest, None)

    def excess(self, victim: Row, partner: Row, prior: Prior) -> float:
        """(slow-down - 1) of ``victim`` next to ``partner``, at least -0.95."""
        known = self._effects
        value = float(self._coefficients[0] + self._coefficients[1] * prior(victim, partner))
        value += sum(known.get(key(victim, partner), 0.0) for _, key in _EFFECTS)
        return math.exp(min(math.log1p(_MOST), max(math.log(_LEAST), value))) - 1.0

    def slowdown(self, victim: Row, co_runners: Sequence[Row], prior: Prior) -> float:
        """Time of ``victim`` with ``co_runners`` over its time alone, >= 1."""
        excess = sum(self.excess(victim, one, prior) for one in co_runners)
        return 1.0 + min(_MOST, max(0.0, excess))

    def sums(self) -> Mapping[Pair, tuple[float, float]]:
        """By (victim, partner): how many observations, and the sum of their ln(slow-down)."""
        return self._sums

    def since(self, mark: int) -> dict[Pair, tuple[float, float]]:
        """As ``sums``, of those that were observed after ``mark``, the latest first; -1: all."""
        pairs = reversed(self._sums.items())
        return {pair: sums for pair, sums in pairs if self._marks.get(pair, 0) > mark}

    def adopt(self, sums: Mapping[Pair, tuple[float, float]]) -> None:
        """Continue from ``sums``, with the next ``fit``; each replaces what is known of its pair.

        Raises:
            ValueError: a number is not finite, or a count not above 0.
        """
        for pair, (count, total) in sums.items():
            if not (math.isfinite(count) and count > 0 and math.isfinite(total)):
                raise ValueError(f"the slow-down of {pair[0].kind} with {pair[1].kind} is {total}")
        for pair, known in sums.items():
            self._sums.pop(pair, None)
            self._sums[pair] = known
        while len(self._sums) > PAIRS_MAX:
            self._evict()
        self._new += len(sums)

    def fit(self, prior: Prior) -> None:
        """Fit to all pairs, if enough is new. Not part of a decision: it takes milliseconds."""
        if self._new <= _REFIT_SHARE * len(self._sums):
            return
        self._new = 0.0
        pairs, ridges = list(self._sums), self._ridges
        counts = np.array([self._sums[pair][0] for pair in pairs])
        means = np.array([self._sums[pair][1] for pair in pairs]) / counts
        weights = np.minimum(counts, _COUNTED_MAX)
        design = np.stack([np.ones(len(pairs)), [prior(*pair) for pair in pairs]], axis=1)
        blocks = [
            _Block([key(*pair) for pair in pairs], getattr(ridges, ridge))
            for ridge, key in _EFFECTS
        ]
        at_first = np.array([0.0, 1.0])
        square = design.T @ (weights[:, None] * design) + ridges.coefficient * np.eye(2)
        for _ in range(_SWEEPS):
            rest = means - sum(block.values() for block in blocks)
            before = self._coefficients
            gap = design.T @ (weights * (rest - design @ at_first))
            self._coefficients = at_first + np.linalg.solve(square, gap)
            moved = float(np.abs(self._coefficients - before).max())
            left = means - design @ self._coefficients - sum(block.values() for block in blocks)
            for block in blocks:
                left, change = block.improve(left, weights)
                moved = max(moved, change)
            if moved < _SETTLED:
                break
        self._effects = {}
        for block in blocks:
            self._effects |= block.effects()


class _Block:
    """The effects of one kind. ``keys``: of each pair; those of equal keys share an effect."""

    def __init__(self, keys: Sequence[Hashable], ridge: float) -> None:
        numbers: dict[Hashable, int] = {}
        for key in keys:
            numbers.setdefault(key, len(numbers))
        self._keys = list(numbers)
        self._of_pair: _Indexes = np.array([numbers[key] for key in keys], np.intp)
        self._ridge = ridge
        self._effects: Floats = np.zeros(len(self._keys))

    def values(self) -> Floats:
        """The effect in each pair, (pairs,)."""
        return self._effects[self._of_pair]

    def effects(self) -> dict[Hashable, float]:
        return dict(zip(self._keys, self._effects.tolist(), strict=True))

    def improve(self, left: Floats, weights: Floats) -> tuple[Floats, float]:
        """Solve for these effects while all else is fixed; the new residuals, and the largest
        change."""
        size = len(self._keys)
        whole = left + self.values()
        total = np.bincount(self._of_pair, weights * whole, size)
        count = np.bincount(self._of_pair, weights, size)
        effects = total / (count + self._ridge)
        change = float(np.abs(effects - self._effects).max())
        self._effects = effects
        return whole - self.values(), change
