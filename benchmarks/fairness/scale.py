"""Processor time of one decision of either level, by the number of tenants."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import numpy as np

from hrm.policies.mapping import (
    CoRunnerRoundRobin,
    MostAffectedFirst,
    SeparableSlowdowns,
    most_affected_first_of_pairs,
)
from hrm.policies.sharing import DIVISIONS, TenantDemands

__all__ = ["decision_times"]

TENANTS = (5, 50, 500, 5_000)
_PLATFORMS, _CORES = 4, 25_000
_NODE_CORES = 8
_REPEATS = 5
_MOST_OF_PAIRS = 50
"""Tenants up to which every pair is looked at."""


def decision_times(tenants: Sequence[int] = TENANTS) -> list[dict[str, Any]]:
    """Rows of ``policy``, ``tenants``, ``median_ms`` and ``most_ms`` over a few draws."""
    rows = []
    for count in tenants:
        for name, division in DIVISIONS.items():
            drawn = [_demands(count, seed) for seed in range(_REPEATS)]
            rows.append(_row(name, count, [_timed(division.divide, each) for each in drawn]))
        rows += _of_mappings(count)
    return rows


def _of_mappings(tenants: int) -> list[dict[str, Any]]:
    policies = (MostAffectedFirst(largest=2), CoRunnerRoundRobin(largest=2))
    times: dict[str, list[float]] = {}
    for seed in range(_REPEATS):
        random, mixing = Random(seed), np.random.default_rng(seed)
        cores = [random.randrange(2 * _CORES // tenants) for _ in range(tenants)]
        slow = SeparableSlowdowns(
            [random.uniform(10, 500) for _ in cores],
            [random.uniform(0.05, 1) for _ in cores],
            [random.uniform(0.1, 3) for _ in cores],
        )
        used_ms = _timed(most_affected_first_of_pairs, cores, _NODE_CORES, slow, mixing)
        times.setdefault("most-affected-first, separable pairs", []).append(used_ms)
        for policy in policies if tenants <= _MOST_OF_PAIRS else ():
            used_ms = _timed(policy.map, cores, _NODE_CORES, slow, mixing)
            times.setdefault(f"{policy.name}, pairs", []).append(used_ms)
    return [_row(name, tenants, found) for name, found in times.items()]


def _demands(tenants: int, seed: int) -> TenantDemands:
    generator = np.random.default_rng(seed)
    return TenantDemands(
        wanted=generator.integers(1, 4 * _CORES * _PLATFORMS // tenants, tenants),
        cores=np.full(_PLATFORMS, _CORES),
        affinity=generator.uniform(0.5, 2.0, (tenants, _PLATFORMS)),
    )


def _timed(work: Callable[..., object], *arguments: object) -> float:
    begun_s = time.thread_time()
    work(*arguments)
    return 1e3 * (time.thread_time() - begun_s)


def _row(policy: str, tenants: int, times_ms: list[float]) -> dict[str, Any]:
    return {
        "policy": policy,
        "tenants": tenants,
        "median_ms": round(statistics.median(times_ms), 3),
        "most_ms": round(max(times_ms), 3),
    }
