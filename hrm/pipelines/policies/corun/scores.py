"""Co-run scores: how badly would this subtask run with those on the GPU? Smaller is better.

``cosine``    the paper's: mean cosine of the angle between its features and each of the others'. It
              does not see magnitude: ten small loads and one large score alike.
``overload``  the demand for each resource beyond its capacity, summed
``learned``   the time that all of them are expected to lose, by observed co-runs (``Slowdowns``)

An idle GPU scores 0. Source: LDWP + IAWP, section 3.4.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np

from hrm.pipelines.core.model import Estimates, Row
from hrm.pipelines.policies.corun.predictors import Floats
from hrm.pipelines.policies.corun.slowdowns import LOADS, Slowdowns

__all__ = [
    "CoRunScore",
    "Cosine",
    "KnowsSlowdowns",
    "LearnedLoss",
    "Overload",
    "cosine",
    "joint_excess",
]


class CoRunScore(Protocol):
    """Smaller is better, 0 for an idle GPU. ``co_runners``: the rows that run there."""

    name: str

    def score(self, row: Row, co_runners: Sequence[Row], estimates: Estimates) -> float: ...


@runtime_checkable
class KnowsSlowdowns(Protocol):
    """Estimates that learn from co-runs, as ``Stdm`` does."""

    slowdowns: Slowdowns


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
