"""A summary of a trace in a few numbers, without keeping it in memory."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.traces import LoadReport, find_format
from benchmarks.traces.trace_records import Record, TraceJob

__all__ = ["Spread", "describe"]


@dataclass(slots=True)
class Spread:
    """Count, mean and extremes of a stream of numbers, each with a weight."""

    weight: float = 0.0
    sum: float = 0.0
    low: float = math.inf
    high: float = -math.inf

    def add(self, value: float, weight: float = 1.0) -> None:
        self.weight += weight
        self.sum += weight * value
        self.low = min(self.low, value)
        self.high = max(self.high, value)

    def as_json(self) -> dict[str, float]:
        mean = self.sum / self.weight if self.weight else 0.0
        return {"mean": mean, "min": self.low, "max": self.high} if self.weight else {}


@dataclass(slots=True)
class _Jobs:
    """The numbers of a job trace. Sizes are means over instances, durations too."""

    jobs: int = 0
    tasks: int = 0
    instances: int = 0
    with_parents: int = 0
    together: int = 0
    first_s: float = math.inf
    last_s: float = -math.inf
    work_vcore_s: float = 0.0
    work_gpu_s: float = 0.0
    users: set[str] = field(default_factory=set)
    kinds: set[str] = field(default_factory=set)
    sizes: dict[str, Spread] = field(default_factory=dict)

    def add(self, job: TraceJob) -> None:
        self.jobs += 1
        self.together += job.together
        self.first_s = min(self.first_s, job.arrival_s)
        self.last_s = max(self.last_s, job.arrival_s)
        self.users.add(job.user)
        self.kinds.add(job.kind)
        for task in job.tasks:
            many = task.instances
            self.tasks += 1
            self.instances += many
            self.with_parents += bool(task.parents)
            gpus = task.gpus * task.gpu_share
            self.work_vcore_s += many * task.vcores * task.duration_s
            self.work_gpu_s += many * gpus * task.duration_s
            sizes = {
                "duration_s": task.duration_s,
                "vcores": task.vcores,
                "memory_mib": task.memory_mib,
                "gpus": gpus,
            }
            for name, value in sizes.items():
                self.sizes.setdefault(name, Spread()).add(value, many)

    def as_json(self) -> dict[str, Any]:
        return {
            "jobs": self.jobs,
            "span_s": self.last_s - self.first_s if self.jobs else 0.0,
            "tasks": self.tasks,
            "tasks_with_parents": self.with_parents,
            "instances": self.instances,
            "jobs_together": self.together,
            "users": len(self.users - {""}),
            "kinds": len(self.kinds - {""}),
            "work_vcore_s": self.work_vcore_s,
            "work_gpu_s": self.work_gpu_s,
            "per_instance": {name: spread.as_json() for name, spread in self.sizes.items()},
        }


def describe(name: str, path: Path) -> dict[str, Any]:
    """Format, origin, counts of rows, and the numbers of what could be read, ready for JSON.

    Raises:
        InvalidRequest, NotFound: see ``benchmarks.traces.load``.
    """
    chosen = find_format(name)
    report = LoadReport()
    records = chosen.read(path, report)
    document = _jobs(records) if chosen.has_jobs else _table(records)
    return {
        "format": chosen.name,
        "path": str(path),
        "origin": chosen.origin,
        "holds": chosen.rows,
        **document,
        "rows": report.as_json(),
    }


def _jobs(records: Iterable[TraceJob]) -> dict[str, Any]:
    jobs = _Jobs()
    for job in records:
        jobs.add(job)
    return jobs.as_json()


def _table(records: Iterable[Record]) -> dict[str, Any]:
    """Mean and extremes of every field that is one number."""
    spreads: dict[str, Spread] = {}
    count = 0
    for record in records:
        count += 1
        for each in dataclasses.fields(record):
            value = getattr(record, each.name)
            if isinstance(value, int | float):
                spreads.setdefault(each.name, Spread()).add(value)
    return {"records": count, "fields": {name: x.as_json() for name, x in spreads.items()}}
