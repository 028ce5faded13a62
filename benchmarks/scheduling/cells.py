"""The unit of measurement: a cluster of like nodes, jobs of one size, one class, one policy.

A node has 16 vcores, 64 GiB and a run limit of 16, a task one vcore and 1 GiB, so 16 tasks fill a
node. Every figure is taken on a cluster that stays about half full.
"""

from __future__ import annotations

import contextlib
import gc
import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from hrm.core.vocabulary.model import (
    ContainerRequest,
    NodeName,
    Resources,
    ResourceUnit,
    ResourceUnitId,
    WorkloadClass,
)

__all__ = [
    "BATCH",
    "NODE_SLOTS",
    "STREAM",
    "TASK",
    "Cell",
    "Sample",
    "building",
    "matrix",
    "node_names",
    "percentile",
    "requests_of",
    "unit_of",
]

NODE_SLOTS = 16
TASK = Resources(1, 1024)
BATCH, STREAM = WorkloadClass.BATCH, WorkloadClass.STREAM


@dataclass(frozen=True, slots=True)
class Cell:
    """One point of the matrix. ``tasks``: containers of one job."""

    nodes: int
    tasks: int
    workload_class: WorkloadClass = BATCH
    policy: str = "min-wait"

    def __str__(self) -> str:
        kind = self.workload_class.value.lower()
        return f"{self.nodes:,} nodes, {self.tasks:,} tasks, {kind}, {self.policy}"


@dataclass(slots=True)
class Sample:
    """Repetitions of one measurement.

    ``cpu_values``: the same per second of processor time, which other processes on the machine
    less. ``stages_us``: how a decision's time divides into stages, for each run.
    """

    values: list[float] = field(default_factory=list)
    cpu_values: list[float] = field(default_factory=list)
    stages_us: dict[str, list[float]] = field(default_factory=dict)

    @property
    def median(self) -> float:
        return float(statistics.median(self.values))

    def as_json(self) -> dict[str, object]:
        document: dict[str, object] = {
            "median": self.median,
            "low": min(self.values),
            "high": max(self.values),
            "runs": len(self.values),
        }
        if self.cpu_values:
            document["per_cpu_s"] = float(statistics.median(self.cpu_values))
        if self.stages_us:
            document["stages_us"] = {
                name: round(statistics.median(values), 3) for name, values in self.stages_us.items()
            }
        return document

    def __str__(self) -> str:
        return f"{self.median:,.0f} [{min(self.values):,.0f}, {max(self.values):,.0f}]"


@contextlib.contextmanager
def building() -> Iterator[None]:
    """No garbage collection while a cluster is built, which would traverse all of it repeatedly."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def matrix(
    nodes: Iterable[int],
    tasks: Iterable[int],
    classes: Iterable[WorkloadClass],
    policies: Iterable[str],
) -> list[Cell]:
    """Every combination, the smallest clusters first."""
    some_tasks, some_classes, some_policies = list(tasks), list(classes), list(policies)
    return [
        Cell(n, t, kind, policy)
        for n in sorted(nodes)
        for t in some_tasks
        for kind in some_classes
        for policy in some_policies
    ]


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least ``share`` of all do not exceed (nearest rank)."""
    if not values:
        raise ValueError("the percentile of no values does not exist")
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def node_names(count: int) -> list[NodeName]:
    return [NodeName(f"n{number:06d}") for number in range(count)]


def unit_of(node: NodeName) -> ResourceUnit:
    """The one resource unit of a node."""
    return ResourceUnit(
        unit_id=ResourceUnitId(f"{node}/cpu"),
        capacity=Resources(NODE_SLOTS, NODE_SLOTS * 4096),
        run_limit=NODE_SLOTS,
    )


def requests_of(tasks: int, first: int = 1) -> tuple[ContainerRequest, ...]:
    """The requests of one job: like containers, numbered from ``first``."""
    return tuple(
        ContainerRequest(executor_id=str(number), resource_profile_id=0, resources=TASK)
        for number in range(first, first + tasks)
    )
