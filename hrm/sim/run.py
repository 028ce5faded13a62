"""Runs: one seed, or many; their results, as figures and as text; a failing one made small."""

from __future__ import annotations

import hashlib
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from hrm.sim.faults.plan import KINDS, TRAITS, Limits, Plan
from hrm.sim.faults.plan_generator import draw
from hrm.sim.world import World

__all__ = ["Result", "Summary", "run_plan", "run_seed", "shrink"]

RUNS_MAX = 300


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


def run_plan(plan: Plan) -> Result:
    """Run a plan to its end."""
    world = World(plan)
    begin_s = world.clock.now
    try:
        world.run()
    except Exception as error:  # of an oracle or an actor: a finding, too, with its seed
        where = traceback.extract_tb(error.__traceback__)[-1]
        world.oracle.violated(f"{error!r} at {Path(where.filename).name}:{where.lineno}")
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


def shrink(failing: Result, on_progress: Callable[[str], None] = lambda _: None) -> Result:
    """From a failing run to a small one that fails as well, at most ``RUNS_MAX`` runs later.

    Greedy: leave out a trait or a kind of fault, applications, nodes, or the end of the horizon,
    and keep whatever still fails. A smaller run draws other random numbers where it differs, so it
    may fail in another way: that, too, is a bug, and easier to read.
    """
    best, runs = failing, 0
    progress = True
    while progress and runs < RUNS_MAX:
        progress = False
        for candidate in _smaller(best.plan):
            if runs >= RUNS_MAX:
                break
            runs += 1
            result = run_plan(candidate)
            if result.violations:
                best, progress = result, True
                on_progress(f"still fails: {candidate.command()}")
                break
    return best


def _smaller(plan: Plan) -> Iterator[Plan]:
    """Smaller plans, the boldest first."""
    limits = plan.limits
    applications, nodes = len(plan.applications), len(plan.nodes)
    for count in sorted({1, applications // 2, applications - 1}):
        if 1 <= count < applications:
            yield draw(plan.seed, replace(limits, applications=count))
    for count in sorted({1, nodes // 2, nodes - 1}):
        if 1 <= count < nodes:
            yield draw(plan.seed, replace(limits, nodes=count))
    happening = {kind for kind, rate in plan.rates.items() if rate}
    happening |= {fault.kind for fault in plan.faults}
    happening |= set(plan.traits)
    for kind in (*TRAITS, *KINDS):
        if kind in happening:
            yield draw(plan.seed, replace(limits, without=limits.without | {kind}))
    for share in (0.5, 0.8):
        horizon_s = round(plan.horizon_s * share, 1)
        if horizon_s >= 2.0:
            yield draw(plan.seed, replace(limits, horizon_s=horizon_s))
