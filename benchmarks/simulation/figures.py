"""The figures of a run, and of several runs of one point.

The scheduling delay of a job lasts from its request until the last of its containers has a place
and the node there has the order; that of a container, until its own. ``notified`` lasts until the
application has been notified of all of them, through the nodes. Over runs of different seeds, the
mean is reported with a 95 % confidence interval (Student's t).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from hrm.core.vocabulary.model import WorkloadClass

__all__ = ["Interval", "JobTimes", "RunResult", "interval", "summary"]

_T_95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
    2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
"""Two-sided 95 % quantiles of Student's t for 1, 2, ... degrees of freedom."""
_NORMAL_95 = 1.960


@dataclass(slots=True)
class JobTimes:
    """One job, in seconds from the start; ``granted_s`` and ``notified_s`` by executor."""

    workload_class: WorkloadClass
    requested_s: float
    granted_s: dict[str, float] = field(default_factory=dict)
    notified_s: dict[str, float] = field(default_factory=dict)
    completed_s: float = math.nan

    @property
    def delay_s(self) -> float:
        return max(self.granted_s.values()) - self.requested_s

    @property
    def completion_s(self) -> float:
        return self.completed_s - self.requested_s


@dataclass(slots=True)
class RunResult:
    """One run. ``counts``: whole numbers of what happened; ``loads``: means over the time in which
    jobs waited (from the first request to the last grant)."""

    jobs: list[JobTimes]
    counts: dict[str, int]
    loads: dict[str, float]

    def values(self) -> dict[str, float]:
        """Every figure of the run by name; times in milliseconds but for completion."""
        found: dict[str, float] = {}
        for kind in WorkloadClass:
            jobs = [job for job in self.jobs if job.workload_class is kind]
            if not jobs:
                continue
            prefix = "" if kind is WorkloadClass.BATCH else "stream_"
            delays = [job.delay_s for job in jobs]
            found |= _quantiles(f"{prefix}delay", delays)
            each = [at_s - job.requested_s for job in jobs for at_s in job.granted_s.values()]
            found |= _quantiles(f"{prefix}container_delay", each)
            if all(len(job.notified_s) == len(job.granted_s) for job in jobs):
                notified = [max(job.notified_s.values()) - job.requested_s for job in jobs]
                found[f"{prefix}told_ms"] = 1e3 * statistics.fmean(notified)
            completions = [job.completion_s for job in jobs]
            if not any(map(math.isnan, completions)):
                found[f"{prefix}completion_s"] = statistics.fmean(completions)
        return found | {name: float(count) for name, count in self.counts.items()} | self.loads


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean over runs and its 95 % confidence interval; a single run has none."""

    mean: float
    low: float
    high: float
    runs: int

    def __str__(self) -> str:
        if self.runs < 2:
            return f"{self.mean:.4g}"
        return f"{self.mean:.4g} ± {self.high - self.mean:.2g}"

    def as_json(self) -> dict[str, float]:
        return {"mean": self.mean, "low": self.low, "high": self.high, "runs": self.runs}


def interval(values: Sequence[float]) -> Interval:
    """Mean and 95 % confidence interval of at least one value."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return Interval(mean, mean, mean, len(values))
    freedom = len(values) - 1
    quantile = _T_95[freedom - 1] if freedom <= len(_T_95) else _NORMAL_95
    half = quantile * statistics.stdev(values) / math.sqrt(len(values))
    return Interval(mean, mean - half, mean + half, len(values))


def summary(runs: Sequence[Mapping[str, float]]) -> dict[str, Interval]:
    """Each figure that all runs have, over the runs."""
    names = [name for name in runs[0] if all(name in run for run in runs)]
    return {name: interval([run[name] for run in runs]) for name in names}


def _quantiles(name: str, seconds: Sequence[float]) -> dict[str, float]:
    milliseconds = 1e3 * np.asarray(seconds)
    p50, p95, p99 = np.percentile(milliseconds, (50, 95, 99)).tolist()
    return {
        f"{name}_ms": float(milliseconds.mean()),
        f"{name}_p50_ms": p50,
        f"{name}_p95_ms": p95,
        f"{name}_p99_ms": p99,
    }
