"""What tenants do, and how slow the slow platform is.

A task waits for a paced store, then computes. Both are fixed: so many seconds of waiting, so many
steps of computing, of which this machine does a measured number in a second. Tenants differ in how
much of a task is computing, and so in how much a node slows them whose containers get a small part
of a core each. All tasks take about as long on the fast platform; there they leave most of the
machine's cores idle, so that a slot's speed does not depend on how many others work.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

__all__ = ["ARMS", "FAST", "QUICK", "SIMPLE", "SLOW", "Division", "Plan", "Tenant"]

FAST, SLOW = "fast", "slow"
"""Platforms, and what nodes' label ``speed`` is."""


@dataclass(frozen=True, slots=True)
class Tenant:
    """Of one task: ``cpu_s`` of computing and, on average, ``wait_s`` for its input, in seconds."""

    name: str
    cpu_s: float
    wait_s: float

    @property
    def queue(self) -> str:
        return f"root.{self.name}"


@dataclass(frozen=True, slots=True)
class Division:
    """How the master divides queues' shares over platforms: its settings ``platform_division`` and
    ``platform_affinity``."""

    policy: str
    measure: str = "reciprocal"


SIMPLE = "simple"
ARMS = {
    SIMPLE: Division("simple-fairness"),
    "reciprocal": Division("affinity-round-robin"),
    "egocentric": Division("affinity-round-robin", "egocentric"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The extent of the measurements.

    ``slots``: of each of two nodes, executors of one core each. ``quota_cores``: what a container
    of the slow node gets of a core, once it has started. ``start_cpu_s``: what starting costs an
    executor, which is not throttled. ``warm_up_s``: while each tenant runs on both platforms, by
    labels; ``settle_s``: then, without labels, while shares find their platforms;
    ``move_after_s``: the master's ``platform_move_after_s``. ``tasks``, ``jobs``: of each tenant
    when it counts; ``solo_jobs``: when it is alone.
    """

    runs: int = 3
    slots: int = 6
    tenants: tuple[Tenant, ...] = (
        Tenant("compute", 0.45, 2.55),
        Tenant("mixed", 0.03, 2.97),
        Tenant("store", 0.005, 3.0),
    )
    quota_cores: float = 0.08
    start_cpu_s: float = 3.0
    warm_up_s: float = 25.0
    settle_s: float = 40.0
    move_after_s: float = 15.0
    tasks: int = 40
    warm_up_tasks: int = 6
    jobs: int = 2
    solo_jobs: int = 1
    solo_warm_up_s: float = 6.0
    file_bytes: int = 2048
    executor_memory_mib: int = 512
    executor_overhead_mib: int = 384

    @property
    def executors(self) -> int:
        """Of each tenant: its part of all slots."""
        return 2 * self.slots // len(self.tenants)


QUICK = replace(Plan(), runs=1, jobs=1)
