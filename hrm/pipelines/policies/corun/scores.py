"""Co-run scores: how badly would this subtask run with those on the GPU? Smaller is better.

``cosine``       the paper's: mean cosine of the angle between its features and each of the others'.
                 It does not see magnitude: ten small loads and one large score alike.
``overload``     the demand for each resource beyond its capacity, summed
``learned``      the time that all of them are expected to lose, by a regression of observed co-runs
                 on their loads (``Slowdowns``)
``sensitivity``  the same, by what each was seen to suffer and to inflict (``PairEffects``)

An idle GPU scores 0. Scores that learn may be below: a step whose time alone was that of a slow
first run seems to gain by any company. That still ranks partners, but nothing gains by sharing:
wherever a shared GPU is compared with an idle one, less than 0 counts as 0 (``loss``).

Source: LDWP + IAWP, section 3.4.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np

from hrm.pipelines.core.model import Estimates, Row
from hrm.pipelines.policies.corun.gpu_sharing import GpuSharing
from hrm.pipelines.policies.corun.pair_effects import PairEffects, pair_prior
from hrm.pipelines.policies.corun.predictors import Floats
from hrm.pipelines.policies.corun.slowdowns import LOADS, Slowdowns

__all__ = [
    "CoRunScore",
    "Cosine",
    "KnowsPairs",
    "KnowsSlowdowns",
    "LearnedLoss",
    "Overload",
    "PredictsVictims",
    "Sensitivity",
    "cosine",
    "joint_excess",
    "loss",
    "pair_excess",
    "progress",
    "speeds",
]


class CoRunScore(Protocol):
    """Smaller is better, 0 for an idle GPU, ``loss``. ``co_runners``: the rows that run there."""

    name: str

    def score(self, row: Row, co_runners: Sequence[Row], estimates: Estimates) -> float: ...


@runtime_checkable
class PredictsVictims(Protocol):
    """A score that knows what each loses by itself, and learns it from co-runs."""

    name: str

    def score(self, row: Row, co_runners: Sequence[Row], estimates: Estimates) -> float: ...

    def own(self, row: Row, co_runners: Sequence[Row], estimates: Estimates) -> float:
        """(slow-down - 1) expected of ``row`` alone, not of its co-runners."""


@runtime_checkable
class KnowsSlowdowns(Protocol):
    """Estimates that learn from co-runs, as ``Stdm`` does."""

    slowdowns: Slowdowns


@runtime_checkable
class KnowsPairs(Protocol):
    """Estimates that learn what rows suffer and inflict, as ``Stdm`` does."""

    sharing: GpuSharing
    pair_effects: PairEffects

    def pair_prior(self, victim: Row, partner: Row) -> float: ...


def cosine(one: Floats, other: Floats) -> float:
    """Of the angle between two vectors; 0 if one of them is 0."""
    lengths = float(np.sqrt((one @ one) * (other @ other)))
    return float(one @ other) / lengths if lengths > 0 else 0.0


class Cosine:
    """The paper's, on all eight features."""

    name = "cosine"

    def score(self, row: Row, co_runners: Sequence[Row], estimates: Estimates) -> float:
        if not co_runners:
            return 0.0
        own = _features(estimates, row)
        return sum(cosine(own, _features(estimates, other)) for other in co_runners) / len(
            co_runners
        )


class Overload:
    """Sum over resources of max(0, wanted - 1)."""

    name = "overload"

    def score(self, row: Row, co_runners: Sequence[Row], estimates: Estimates) -> float:
        if not co_runners:
            return 0.0
        wanted = _loads(estimates, [row, *co_runners]).sum(axis=0)
        return float(np.maximum(0.0, wanted - 1.0).sum())


class LearnedLoss:
    """What the new subtask loses by its co-runners, and each of them by it, from the slow-downs
    that the estimates have learned, if they learn any."""

    name = "learned"

    def __init__(self) -> None:
        self._prior = Slowdowns()

    def score(self, row: Row, co_runners: Sequence[Row], estimates: Estimates) -> float:
        if not co_runners:
            return 0.0
        model = estimates.slowdowns if isinstance(estimates, KnowsSlowdowns) else self._prior
        return joint_excess(model, _loads(estimates, [row, *co_runners]))

    def own(self, row: Row, co_runners: Sequence[Row], estimates: Estimates) -> float:
        """See ``PredictsVictims``."""
        if not co_runners:
            return 0.0
        model = estimates.slowdowns if isinstance(estimates, KnowsSlowdowns) else self._prior
        loads = _loads(estimates, [row, *co_runners])
        return float(model.excess(loads[:1], loads[1:].sum(axis=0)[None, :])[0])


class Sensitivity:
    """What the new subtask loses by each that runs there, and each of them by it.

    Estimates that learn no pairs are taken as those of a GPU shared in time, where nothing was
    observed yet.
    """

    name = "sensitivity"

    def score(self, row: Row, co_runners: Sequence[Row], estimates: Estimates) -> float:
        return sum(
            pair_excess(row, other, estimates) + pair_excess(other, row, estimates)
            for other in co_runners
        )

    def own(self, row: Row, co_runners: Sequence[Row], estimates: Estimates) -> float:
        """See ``PredictsVictims``."""
        return sum(pair_excess(row, other, estimates) for other in co_runners)


def loss(expected: float) -> float:
    """What a co-run that is ``expected`` to cost so much costs against none: at least 0."""
    return max(0.0, expected)


def progress(rows: Sequence[Row], estimates: Estimates) -> float:
    """Work that ``rows`` are expected to do together in a second on one GPU, in seconds alone.

    1 for one row by itself; below 1 they would all be done sooner one after the other.
    """
    return sum(speeds(rows, estimates))


def speeds(rows: Sequence[Row], estimates: Estimates) -> list[float]:
    """How fast each of ``rows`` is expected to be next to the others, over its speed alone."""
    found = []
    for place, row in enumerate(rows):
        others = (*rows[:place], *rows[place + 1 :])
        excess = sum(pair_excess(row, other, estimates) for other in others)
        found.append(1.0 / (1.0 + loss(excess)))
    return found


def pair_excess(victim: Row, partner: Row, estimates: Estimates) -> float:
    """(slow-down - 1) expected of ``victim`` next to ``partner`` alone."""
    if isinstance(estimates, KnowsPairs):
        return estimates.pair_effects.excess(victim, partner, estimates.pair_prior)
    own, other = _loads(estimates, [victim, partner])
    return math.expm1(pair_prior(own, other, GpuSharing.TIME_SLICING))


def joint_excess(model: Slowdowns, loads: Floats) -> float:
    """Slow-down that the first of ``loads`` (subtasks, loads) adds, its own and the others'."""
    new, others = loads[0], loads[1:]
    total = others.sum(axis=0)
    own = np.concatenate([new[None, :], others, others])
    co_runners = np.concatenate([total[None, :], total - others + new, total - others])
    excess = model.excess(own, co_runners)
    count = len(others)
    # A subtask that was alone until now had nothing to lose.
    before = excess[count + 1 :].sum() if count > 1 else 0.0
    return float(excess[: count + 1].sum() - before)


def _features(estimates: Estimates, row: Row) -> Floats:
    return np.asarray(estimates.gpu_features(row), np.float64)


def _loads(estimates: Estimates, rows: Sequence[Row]) -> Floats:
    return np.stack([_features(estimates, row)[:LOADS] for row in rows])
