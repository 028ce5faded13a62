"""The files that tenants read, and what each job must compute from them, without Spark."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.apps.tenant import MODULUS, computed
from benchmarks.platforms.plan import Plan, Tenant
from benchmarks.sharing.store import paced, paced_jar

__all__ = ["Inputs", "Work", "prepare", "steps_per_s"]

_STEPS = 300_000
_LOOPS = 5
_GOLDEN = 0.618034
"""Multiples of it, less their whole parts, are spread evenly however many there are."""


@dataclass(frozen=True, slots=True)
class Work:
    """A directory with a file for each task, and the sum of what they compute."""

    directory: Path
    tasks: int
    expected: int

    @property
    def name(self) -> str:
        """As applications name it."""
        return f"{paced(self.directory)}/*"


@dataclass(frozen=True, slots=True)
class Inputs:
    """By tenant. ``jar``: the paced store; ``steps_per_s``: of this machine."""

    jobs: dict[str, Work]
    warm_up: dict[str, Work]
    jar: Path
    steps_per_s: float


def steps_per_s() -> float:
    """How many steps a core of this machine computes in a second: the most of several loops."""
    found = 0.0
    for _ in range(_LOOPS):
        begun_s = time.thread_time()
        computed(1, _STEPS)
        found = max(found, _STEPS / (time.thread_time() - begun_s))
    return found


def prepare(plan: Plan, directory: Path, cache: Path) -> Inputs:
    """Write all files below ``directory``.

    Raises:
        BenchmarkError: the paced store does not compile.
    """
    rate = steps_per_s()

    def work(tenant: Tenant, kind: str, tasks: int) -> Work:
        steps = round(tenant.cpu_s * rate)
        where = directory / f"{tenant.name}-{kind}"
        where.mkdir(parents=True)
        for number in range(tasks):
            # Waits of unlike length, or all tasks of a job would compute at the same moments.
            length = round(plan.file_bytes * (0.5 + number * _GOLDEN % 1.0))
            line = f"{number} {steps} ".ljust(length - 1, ".")
            (where / f"{number:03d}.txt").write_text(f"{line}\n")
        # Alike for all numbers but for the factor by which they begin.
        factor = computed(0, steps)
        expected = sum(factor * (number + 1) % MODULUS for number in range(tasks))
        return Work(where, tasks, expected)

    return Inputs(
        {each.name: work(each, "jobs", plan.tasks) for each in plan.tenants},
        {each.name: work(each, "warm-up", plan.warm_up_tasks) for each in plan.tenants},
        paced_jar(cache),
        rate,
    )
