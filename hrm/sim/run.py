"""Runs: one seed, or many; their results, as figures and as text."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass, field

from hrm.sim.faults.plan import Limits, Plan
from hrm.sim.faults.plan_generator import draw
from hrm.sim.world import World

__all__ = ["Result", "Summary", "run_plan", "run_seed"]


@dataclass(frozen=True, slots=True)
class Result:
    """One run. ``violations`` as text, in order; ``tail``: the latest events as text.

    ``outcomes``: how each driver ended. ``submissions``: in which state each submission is.
    ``faults``: how often each kind happened. ``checks``: how often everything was checked.
    """

    plan: Plan
    violations: tuple[str, ...]
    events: int
    checks: int
    faults: dict[str, int]
    outcomes: dict[str, str]
    submissions: dict[str, str]
    virtual_s: float
    log_hash: str
    tail: tuple[str, ...]


@dataclass(slots=True)
class Summary:
    """Many runs. ``log_hash`` is over the hashes of all, in order."""

    runs: int = 0
    violations: int = 0
    events: int = 0
    checks: int = 0
    virtual_s: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    failed_seeds: list[int] = field(default_factory=list)
    _hash: str = ""

    def add(self, result: Result) -> None:
        self.runs += 1
        self.events += result.events
        self.checks += result.checks
        self.virtual_s += result.virtual_s
        self.faults.update(result.faults)
        if result.violations:
            self.violations += 1
            self.failed_seeds.append(result.plan.seed)
        self._hash = hashlib.sha256((self._hash + result.log_hash).encode()).hexdigest()

    def as_dict(self) -> dict[str, object]:
        return {
            "runs": self.runs,
            "violations": self.violations,
            "faults": sum(self.faults.values()),
            "events": self.events,
            "log_hash": self._hash,
            "checks": self.checks,
            "virtual_s": round(self.virtual_s, 3),
            "faults_by_kind": dict(sorted(self.faults.items())),
            "failed_seeds": self.failed_seeds,
        }


def run_plan(plan: Plan, tail_length: int = 80) -> Result:
    """Run a plan to its end."""
    world = World(plan, tail_length)
    begin_s = world.clock.now
    world.run()
    return Result(
        plan=plan,
        violations=tuple(world.oracle.found),
        events=world.log.events,
        checks=world.oracle.checks + world.oracle.submissions.checks,
        faults=dict(sorted(world.network.injected.items())),
        outcomes={driver.name: driver.outcome for driver in world.drivers},
        submissions=world.submitters.states(),
        virtual_s=world.clock.now - begin_s,
        log_hash=world.log.hash(),
        tail=tuple(world.log.tail),
    )


def run_seed(seed: int, limits: Limits | None = None) -> Result:
    return run_plan(draw(seed, limits))
