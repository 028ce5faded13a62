"""How long a tenant's tasks take on each platform, learned from tasks that had company.

Affinities need the time of a task that is alone on its node, and tasks rarely are. So the logarithm
of a run time is taken as a straight line in the node's *load*, the part of its other cores that was
at work: the line at load 0 is the time alone, its slope what company costs. Logarithms, because
errors are relative. The past fades: each observation counts at least ``SHARE_MIN``.

Until loads have differed, the slope is not seen, and is the ``SLOPE`` that is common elsewhere. A
platform on which a tenant has run nothing gets what its other platforms and the other tenants
suggest: times are taken as a tenant's factor times a platform's.

Limits: one line for all company, mild or not. Tasks must be of like size, or a tenant's larger
inputs on one platform pass for slowness of it.

Source: two-level fairness paper takes run times as given; the estimates are this project's own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hrm.core.vocabulary.columns import Floats
from hrm.errors import InvalidRequest

__all__ = ["SHARE_MIN", "ObservedRunTimes", "RunTimeEstimate"]

SHARE_MIN = 0.05
"""What the latest observation counts for at least."""

SLOPE = 0.1
"""A full node's tasks take about e**0.1 as long, where nothing else is known."""

SLOPE_WEIGHT = 1.0
"""Of that assumption, as a variance of loads times observations."""

NORMAL_95 = 1.96
_PASSES = 20


@dataclass(frozen=True, slots=True)
class RunTimeEstimate:
    """Of a task that is alone on a node.

    Attributes:
        run_s: the estimate, in seconds.
        factor: above 1; the time lies between ``run_s / factor`` and ``run_s * factor`` with a
            confidence of 95 %, as far as observations are alike; infinite where there are none.
        observations: how many count, after fading; 0 where it is inferred from other cells.
    """

    run_s: float
    factor: float
    observations: float


class _Line:
    """Fading means of load, logarithm of run time, and their products."""

    __slots__ = ("count", "load", "load_load", "load_log", "log", "log_log", "squares")

    def __init__(self) -> None:
        self.count = 0
        self.squares = 0.0
        self.load = self.log = self.load_load = self.load_log = self.log_log = 0.0

    def add(self, load: float, log: float) -> None:
        self.count += 1
        share = max(SHARE_MIN, 1 / self.count)
        self.squares = (1 - share) ** 2 * self.squares + share**2
        self.load += share * (load - self.load)
        self.log += share * (log - self.log)
        self.load_load += share * (load * load - self.load_load)
        self.load_log += share * (load * log - self.load_log)
        self.log_log += share * (log * log - self.log_log)

    @property
    def observations(self) -> float:
        """As many of equal weight would be as certain."""
        return 1 / self.squares

    def alone(self) -> tuple[float, float]:
        """Logarithm of the time at load 0, and half of its 95 % interval."""
        count = self.observations
        spread = count * max(self.load_load - self.load**2, 0.0) + SLOPE_WEIGHT
        together = count * (self.load_log - self.load * self.log)
        slope = (together + SLOPE_WEIGHT * SLOPE) / spread
        at_0 = self.log - slope * self.load
        residual = self.log_log - self.log**2 - slope * (self.load_log - self.load * self.log)
        if self.count < 3:
            return at_0, math.inf
        variance = max(residual, 0.0) * (1 / count + self.load**2 / spread)
        return at_0, NORMAL_95 * math.sqrt(variance)


class ObservedRunTimes:
    """Estimates by tenant and platform; both go by name."""

    def __init__(self) -> None:
        self._lines: dict[tuple[str, str], _Line] = {}

    def observe(self, tenant: str, platform: str, run_s: float, load: float) -> None:
        """A task of ``tenant`` took ``run_s`` seconds on a node of ``platform``, where the part
        ``load`` (0 to 1) of the other cores worked.

        Raises:
            InvalidRequest: a time that is not above 0, or a load outside of 0 to 1.
        """
        if not (0 < run_s < math.inf and 0 <= load <= 1):
            raise InvalidRequest(
                f"a task of {tenant} took {run_s} s at a load of {load}; times are above 0, loads "
                "from 0 to 1"
            )
        line = self._lines.setdefault((tenant, platform), _Line())
        line.add(load, math.log(run_s))

    def forget(self, tenant: str) -> None:
        """It does not come back."""
        self._lines = {key: line for key, line in self._lines.items() if key[0] != tenant}

    def estimate(self, tenant: str, platform: str) -> RunTimeEstimate | None:
        """From tasks of this tenant on this platform; None without any."""
        line = self._lines.get((tenant, platform))
        if line is None:
            return None
        log, half = line.alone()
        return RunTimeEstimate(math.exp(log), math.exp(half), line.observations)

    def table(self, tenants: Sequence[str], platforms: Sequence[str]) -> Floats:
        """Run times alone in seconds, by tenant and platform: for ``platform_affinity``.

        NaN for a tenant of which nothing is known, and on a platform on which nothing has run.
        """
        logs = np.full((len(tenants), len(platforms)), np.nan)
        for row, tenant in enumerate(tenants):
            for column, platform in enumerate(platforms):
                line = self._lines.get((tenant, platform))
                if line is not None:
                    logs[row, column] = line.alone()[0]
        times: Floats = np.exp(_filled(logs))
        return times


def _filled(logs: Floats) -> Floats:
    """The cells that are NaN as the sum of a row's and a column's part, where both are known."""
    known = np.isfinite(logs)
    if known.all() or not known.any():
        return logs
    values = np.where(known, logs, 0.0)
    in_row, in_column = known.sum(axis=1), known.sum(axis=0)
    of_row, of_column = np.zeros(len(logs)), np.zeros(logs.shape[1])
    for _ in range(_PASSES):
        left = np.where(known, values - of_column, 0.0).sum(axis=1)
        of_row = left / np.maximum(in_row, 1)
        left = np.where(known, values - of_row[:, None], 0.0).sum(axis=0)
        of_column = left / np.maximum(in_column, 1)
    inferable = (in_row > 0)[:, None] & (in_column > 0)
    inferred = np.where(inferable, of_row[:, None] + of_column, np.nan)
    return np.where(known, logs, inferred)
