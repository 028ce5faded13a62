"""What is offered to each arm: the stream, a fixed list of Spark jobs, and pipeline tasks at once.

The pool, the stream and the jobs are those of ``benchmarks.sharing.plan``, cut into slots in the
same way: executors of three slots, workers of one. Pipeline tasks wait as the paced store's do, so
slots are what is short, not the machine's cores. Those of class batch are all submitted at the
beginning; those of class stream arrive one by one, as a stream's would.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from benchmarks.common import interleaved
from benchmarks.sharing.plan import Plan as Offer
from benchmarks.sharing.plan import job_name

__all__ = [
    "ALONE",
    "ARMS",
    "CHAOS",
    "HALVES",
    "PIPELINE_LABEL",
    "POOL",
    "QUICK",
    "SPARK_LABEL",
    "WORKER_MEMORY_MIB",
    "Arm",
    "Plan",
    "Work",
    "bound_ratio",
    "labels",
    "rounds",
    "work_list",
]

ALONE, POOL, HALVES, CHAOS = "alone", "pool", "halves", "pool-chaos"
SPARK_LABEL, PIPELINE_LABEL = "for=spark", "for=pipelines"
WORKER_MEMORY_MIB = 1_024
"""Of a worker of pipelines with one core, by default: a node has so much for each slot."""

_STEPS = (1, 1, 2, 3)
_SEED = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """``works``: with jobs and tasks, not only the stream; ``halves``: half of the nodes for Spark,
    half for pipelines; ``chaos``: an agent and the master are killed midway."""

    name: str
    works: bool = True
    halves: bool = False
    chaos: bool = False


ARMS = {
    arm.name: arm
    for arm in (
        Arm(name=ALONE, works=False),
        Arm(name=POOL),
        Arm(name=HALVES, halves=True),
        Arm(name=CHAOS, chaos=True),
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The extent of the measurements.

    ``offer``: pool, stream and Spark jobs, of which ``jobs`` are submitted, ``offer.backlog`` at a
    time. ``tasks``: of pipelines; each step takes ``step_s_min`` to ``step_s_max``; one of
    ``stream_every`` is of class stream, and of these one arrives each ``stream_arrival_s``.
    ``block_bytes``: what a task reads. ``limit_s``: what has not ended by then is lost.
    ``kill_agent_at``, ``kill_master_at``: parts of all tasks that have ended then;
    ``down_s``: until the daemon is started again. ``kill_in_order_s``: the least time between that
    and the next death.
    """

    offer: Offer = field(
        default_factory=lambda: Offer(runs=3, backlog=2, batch_executors=3, text_mb=12.0)
    )
    jobs: int = 3
    tasks: int = 300
    step_s_min: float = 0.2
    step_s_max: float = 3.0
    stream_every: int = 10
    stream_arrival_s: float = 3.0
    block_bytes: int = 16_384
    limit_s: float = 600.0
    kill_agent_at: float = 0.25
    kill_master_at: float = 0.5
    down_s: float = 3.0
    kill_in_order_s: float = 10.0

    @property
    def runs(self) -> int:
        return self.offer.runs

    @property
    def capacity(self) -> int:
        """Slots of the whole pool."""
        return self.offer.capacity

    @property
    def job_names(self) -> list[str]:
        """The Spark jobs, in the order of their submission."""
        return [job_name(number, self.offer.queries) for number in range(self.jobs)]


QUICK = Plan(
    offer=replace(Plan().offer, runs=1, window_s=60.0),
    jobs=2,
    tasks=100,
    stream_arrival_s=4.0,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A pipeline task: ``seconds`` of each step; ``offset``: of its block in the text.
    ``submit_s``: since the beginning."""

    number: int
    seconds: tuple[float, ...]
    offset: int
    is_stream: bool
    submit_s: float

    @property
    def slot_s(self) -> float:
        """Seconds for which it holds a slot, at least."""
        return sum(self.seconds)


def work_list(plan: Plan, text_bytes: int) -> list[Work]:
    """All pipeline tasks, in the order of submission: the same for each plan, in every run."""
    generator = random.Random(_SEED)
    found = []
    for number in range(plan.tasks):
        steps = generator.choice(_STEPS)
        seconds = (generator.uniform(plan.step_s_min, plan.step_s_max) for _ in range(steps))
        is_stream = number % plan.stream_every == plan.stream_every - 1
        found.append(
            Work(
                number=number,
                seconds=tuple(round(each, 2) for each in seconds),
                offset=number * plan.block_bytes % max(1, text_bytes - plan.block_bytes),
                is_stream=is_stream,
                submit_s=number // plan.stream_every * plan.stream_arrival_s if is_stream else 0.0,
            )
        )
    return sorted(found, key=lambda work: (work.submit_s, work.number))


def labels(nodes: int) -> dict[str, str]:
    """The label of each node of ``hrm up``: the first half for Spark, the rest for pipelines."""
    return {
        f"node-{number}": SPARK_LABEL if number <= nodes // 2 else PIPELINE_LABEL
        for number in range(1, nodes + 1)
    }


def rounds(names: Iterable[str], runs: int) -> list[tuple[int, str]]:
    """The order of runs: (run, arm). Arms are interleaved; one with chaos comes last, and once:
    its times are not compared."""
    chosen = list(names)
    measured = [name for name in chosen if not ARMS[name].chaos]
    last = [(0, name) for name in chosen if ARMS[name].chaos]
    return [*interleaved(measured, runs), *last]


def bound_ratio(spark_slot_s: float, pipeline_slot_s: float) -> float:
    """How much longer halves must take than one pool, for so much work that any slot could do:
    the headroom of the makespan's ratio."""
    half_s = max(spark_slot_s, pipeline_slot_s) / 0.5
    return half_s / (spark_slot_s + pipeline_slot_s)
