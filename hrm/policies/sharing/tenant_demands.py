"""What a division policy is given, and what it returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from hrm.core.vocabulary.columns import Floats, Ints
from hrm.errors import InvalidRequest

__all__ = ["Division", "DivisionPolicy", "TenantDemands"]

Division = Ints
"""Cores by tenant (row) and platform (column)."""


@dataclass(frozen=True)
class TenantDemands:
    """What tenants could use, of what there is.

    Attributes:
        wanted: cores that each tenant could use now, shape (tenants,): its tasks that wait or run.
        cores: cores of each platform, shape (platforms,).
        affinity: how much each tenant prefers each platform, shape (tenants, platforms); higher is
            better. See ``platform_affinity``.
        weights: of each tenant, shape (tenants,), above 0; without them all are alike. Not all
            policies know them.
        previous: the division that this one replaces, with the same tenants and platforms.
    """

    wanted: Ints
    cores: Ints
    affinity: Floats
    weights: Floats | None = None
    previous: Division | None = None

    def __post_init__(self) -> None:
        """Raises:
        InvalidRequest: shapes differ, a number is negative or not finite, a weight is 0.
        """
        shape = (len(self.wanted), len(self.cores))
        if self.affinity.shape != shape:
            raise InvalidRequest(
                f"affinities have shape {self.affinity.shape}, but there are {shape[0]} tenants "
                f"and {shape[1]} platforms; state one for each pair"
            )
        if self.previous is not None and self.previous.shape != shape:
            raise InvalidRequest(
                f"the previous division has shape {self.previous.shape} instead of {shape}; give "
                "it with the present tenants and platforms, or leave it out"
            )
        for numbers in (self.wanted, self.cores):
            if len(numbers) and not np.issubdtype(numbers.dtype, np.integer):
                raise InvalidRequest(
                    f"numbers of cores are of type {numbers.dtype}; state whole ones (int64)"
                )
        if (self.wanted < 0).any() or (self.cores < 0).any():
            raise InvalidRequest("a number of cores is negative; state 0 or more")
        if not (np.isfinite(self.affinity) & (self.affinity >= 0)).all():
            raise InvalidRequest(
                "an affinity is negative or not finite; state 1 where it is not known"
            )
        weights = self.weights
        if weights is not None and (
            weights.shape != shape[:1] or not (np.isfinite(weights) & (weights > 0)).all()
        ):
            raise InvalidRequest("weights are one for each tenant, above 0 and finite")

    @property
    def total(self) -> int:
        """Cores of all platforms."""
        return int(self.cores.sum())


class DivisionPolicy(Protocol):
    """Keeps nothing between calls: the same demands give the same division.

    What it returns holds for all demands: no tenant has more than it wants, no platform gives more
    than it has, nothing is negative, and either every want is met or no core is left. A policy that
    knows no weights refuses them (``InvalidRequest``).
    """

    @property
    def name(self) -> str: ...

    def divide(self, demands: TenantDemands) -> Division:
        """Cores by tenant and platform."""
        ...
