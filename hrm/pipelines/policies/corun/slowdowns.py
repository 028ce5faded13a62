"""The slow-down of a subtask with given co-runners: a regression on the node's own observations.

The excess over the time alone is assumed to be linear in the others' loads, in the product of both
loads, and in the overload, the joint demand beyond the device's capacity. The weights start at a
prior and move with every co-run that ends: ridge regression towards the prior, exact after each
observation, with forgetting. Linear, and independent of the order of arrival.

Source: LDWP + IAWP, section 3.4, the co-run score ``learned``; ridge after
Hoerl and Kennard (1970).
"""

from __future__ import annotations

import numpy as np

from hrm.pipelines.core.model import CO_RUN_FEATURES
from hrm.pipelines.policies.corun.predictors import Floats

__all__ = ["LOADS", "Slowdowns"]

LOADS = len(CO_RUN_FEATURES) - 1
"""The features that are loads: all but the size, which is last."""

_OVERLOAD = (0.6, 0.0, 0.2, 0.0, 0.4, 0.1, 0.1)
_PARTNER = (0.0, 0.0, 0.05, 0.0, 0.05, 0.0, 0.0)
_MOST = 10.0


class Slowdowns:
    """``strength``: how many observations the prior weighs. ``memory``: how many are remembered.

    ``overload`` and ``partner`` are the prior, one weight for each load.
    """

    def __init__(
        self,
        strength: float = 1.0,
        memory: int = 10_000,
        overload: tuple[float, ...] = _OVERLOAD,
        partner: tuple[float, ...] = _PARTNER,
    ) -> None:
        nothing = np.zeros(len(overload))
        self._prior = np.concatenate([[0.0], partner, nothing, overload])
        self._keep = 1.0 - 1.0 / memory
        self._strength = strength
        self._squares: Floats = np.zeros((len(self._prior), len(self._prior)))
        self._moments: Floats = np.zeros(len(self._prior))
        self._weights: Floats | None = self._prior
        self.observed = 0

    def excess(self, own: Floats, co_runners: Floats) -> Floats:
        """(slow-down - 1) of loads ``own`` with the co-runners' sums, both (cases, loads).

        Not bounded: meant for comparisons. Undefined without co-runners.
        """
        values: Floats = _terms(own, co_runners) @ self._fitted()
        return values

    def slowdown(self, own: Floats, co_runners: Floats) -> float:
        """Time of ``own`` (loads,) with ``co_runners`` (others, loads) over time alone, >= 1."""
        if not len(co_runners):
            return 1.0
        excess = float(self.excess(own[None, :], co_runners.sum(axis=0)[None, :])[0])
        return 1.0 + min(_MOST, max(0.0, excess))

    def observe(self, own: Floats, co_runners: Floats, slowdown: float) -> None:
        """Learn that a run of ``own`` with the sum of its co-runners, both (loads,), was slower.

        ``slowdown`` is its time over its time alone.
        """
        terms = _terms(own[None, :], co_runners[None, :])[0]
        # One run that hung for a minute must not outweigh a hundred that did not.
        excess = min(_MOST, max(-0.5, slowdown - 1.0))
        self._squares = self._keep * self._squares + np.outer(terms, terms)
        self._moments = self._keep * self._moments + terms * (excess - terms @ self._prior)
        self._weights = None
        self.observed += 1

    def _fitted(self) -> Floats:
        if self._weights is None:
            squares = self._squares + self._strength * np.eye(len(self._prior))
            self._weights = self._prior + np.linalg.solve(squares, self._moments)
        return self._weights

    def state(self) -> dict[str, Floats]:
        """The state for ``restore``."""
        return {
            "squares": self._squares,
            "moments": self._moments,
            "observed": np.array([float(self.observed)]),
        }

    def restore(self, state: dict[str, Floats]) -> None:
        """Continue from ``state``.

        Raises:
            ValueError: it is of other shapes, or not finite.
        """
        for name, own in (("squares", self._squares), ("moments", self._moments)):
            if state[name].shape != own.shape or not np.isfinite(state[name]).all():
                raise ValueError(f"{name} of the slow-downs are not finite and {own.shape}")
        self._squares = np.asarray(state["squares"], np.float64)
        self._moments = np.asarray(state["moments"], np.float64)
        self.observed = int(state["observed"][0])
        self._weights = None


def _terms(own: Floats, co_runners: Floats) -> Floats:
    overload = np.maximum(0.0, own + co_runners - 1.0)
    return np.concatenate([np.ones((len(own), 1)), co_runners, own * co_runners, overload], axis=1)
