"""What is offered to each arm: the stream's load over time, the backlog of batch, the pool.

The pool is cut into slots, one for each task at once. A slot is not a core: tasks read from a paced
store (``benchmarks.sharing.store``) and mostly wait for it, so 18 slots need about one core. What
the arms differ in is who may use which slots, and what is measured is how many work.

The stream's load has a base, rises in two steps to a peak and falls again, once in a window. Batch
is a list without end, of which a fixed number of jobs is offered at a time: word counts, and TPC-H
in parts of some queries.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

__all__ = [
    "ALONE",
    "ARMS",
    "BATCH_QUEUES",
    "LOAD",
    "QUEUES",
    "QUICK",
    "QUICK_QUEUES",
    "STREAM_QUEUE",
    "Arm",
    "Plan",
    "files_at",
    "guarantees",
    "job_name",
    "query_groups",
]

ALONE = "hrm-alone"

STREAM_QUEUE = "root.stream"
BATCH_QUEUES = ("root.etl", "root.adhoc")

LOAD = ((0.35, 1), (0.20, 2), (0.15, 3), (0.05, 2), (0.25, 1))
"""Shares of the window, and the stream's load in each: executors that its files fill."""

_QUERY_GROUPS = 4


@dataclass(frozen=True, slots=True)
class Arm:
    """``manager`` runs it, on one ``shared`` pool or on two parts; ``batch``: with the backlog;
    ``queues``: the stream and each half of the backlog have a queue."""

    manager: str
    shared: bool
    batch: bool = True
    queues: bool = False

    @property
    def pool(self) -> str:
        """What kind of pool it runs on; arms of one manager and kind have the same one."""
        return "queues" if self.queues else "shared" if self.shared else "split"

    @property
    def name(self) -> str:
        return f"{self.manager}-{self.pool}" if self.batch else ALONE


ARMS = {
    arm.name: arm
    for arm in (
        Arm("hrm", True),
        Arm("hrm", False),
        Arm("standalone", True),
        Arm("standalone", False),
        Arm("hrm", True, batch=False),
        Arm("hrm", True, queues=True),
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The extent of the measurements.

    ``settle_s``: from the submission of the first batch jobs to the window. ``file_s``: how long a
    task waits for the stream's file, ``batch_bytes_per_s``: how fast batch reads. ``backlog``:
    batch jobs offered at a time; ``jobs_counted``: as many have ended when the makespan is taken.
    ``gaps``: containers ended one by one for the feedback gap, with queues and without.
    ``queries``: every second batch job is a part of TPC-H, not a word count. ``reclaim_wait_s``:
    the master's ``queue_reclaim_wait_s`` where there are queues.
    """

    runs: int = 2
    window_s: float = 120.0
    settle_s: float = 45.0
    drain_s: float = 10.0
    makespan_limit_s: float = 300.0
    nodes: int = 2
    executors_per_node: int = 3
    slots: int = 3
    executor_memory_mib: int = 768
    executor_overhead_mib: int = 384
    trigger_s: float = 5.0
    file_s: float = 2.0
    rows_per_file: int = 5_000
    backlog: int = 3
    batch_executors: int = 2
    jobs_counted: int = 2
    batch_bytes_per_s: int = 49_152
    split_bytes: int = 262_144
    text_mb: float = 24.0
    scale_factor: float = 0.05
    lineitem_files: int = 12
    gaps: int = 12
    queries: bool = True
    reclaim_wait_s: float = 5.0

    @property
    def capacity(self) -> int:
        """Slots of the whole pool."""
        return self.nodes * self.executors_per_node * self.slots

    @property
    def ticks(self) -> int:
        """Triggers of the stream in the window."""
        return round(self.window_s / self.trigger_s)

    @property
    def stream_executors_max(self) -> int:
        """What the stream needs at its peak: its half of the machines."""
        return max(load for _, load in LOAD)


QUEUES = Plan(
    runs=3,
    backlog=4,
    batch_bytes_per_s=24_576,
    split_bytes=131_072,
    text_mb=12.0,
    queries=False,
    settle_s=45.0,
    makespan_limit_s=0.0,
    reclaim_wait_s=1.0,
)
"""Of the comparison of queues: two jobs of each batch queue at a time, twice what one may have.
Slots are to be what is short, not the machine's cores, which drivers of TPC-H would fill. A stream
does not wait for long until what it has lent is taken back: an administrator's choice."""

QUICK_QUEUES = replace(QUEUES, runs=1, window_s=60.0)

QUICK = Plan(runs=1, window_s=60.0, settle_s=40.0, text_mb=12.0, jobs_counted=1, gaps=4)


def guarantees(plan: Plan) -> dict[str, int]:
    """Percent of the pool that each queue is guaranteed: what the stream needs at its peak, and
    equal numbers of executors of the rest. Whole ones: nothing is preempted of a queue that would
    be left with less than its guarantee, so with one and a half each both would keep two."""
    executors = plan.nodes * plan.executors_per_node
    stream = math.ceil(100 * plan.stream_executors_max / executors)
    each = (executors - plan.stream_executors_max) // len(BATCH_QUEUES) * 100 // executors
    return {STREAM_QUEUE: stream, **dict.fromkeys(BATCH_QUEUES, each)}


def files_at(plan: Plan, tick: int) -> int:
    """Files that come to the stream at this trigger; 0 is the first of the window. Before and after
    the window: the base load."""
    passed = tick / plan.ticks
    for share, load in LOAD:
        if tick < 0 or passed < share:
            return load * plan.slots
        passed -= share
    return LOAD[-1][1] * plan.slots


def job_name(number: int, queries: bool = True) -> str:
    """Of a batch job by its place in the list: ``wordcount``, or, with ``queries``, ``tpch-N`` with
    a group of them."""
    is_query = queries and number % 2 == 1
    return f"tpch-{number // 2 % _QUERY_GROUPS}" if is_query else "wordcount"


def query_groups(names: list[str]) -> list[list[str]]:
    """TPC-H's queries in parts, one for each ``tpch-N``: like those of a pack of cards, dealt."""
    return [names[first::_QUERY_GROUPS] for first in range(_QUERY_GROUPS)]
