"""From a failing run to a small one that fails as well.

Greedy: leave out a trait or a kind of fault, applications, nodes, or the end of the horizon, and
keep whatever still fails, until nothing more can be left out. A smaller run draws other random
numbers where it differs, so it may fail in another way: that, too, is a bug, and easier to read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from hrm.sim.faults.plan import KINDS, TRAITS, Plan
from hrm.sim.faults.plan_generator import draw
from hrm.sim.run import Result, run_plan

__all__ = ["shrink"]

RUNS_MAX = 300


def shrink(
    failing: Result,
    run: Callable[[Plan], Result] = run_plan,
    said: Callable[[str], None] = lambda _: None,
) -> Result:
    """The smallest failing run that was found, at most ``RUNS_MAX`` runs later."""
    best, runs = failing, 0
    progress = True
    while progress and runs < RUNS_MAX:
        progress = False
        for candidate in _smaller(best.plan):
            if runs >= RUNS_MAX:
                break
            runs += 1
            result = run(candidate)
            if result.violations:
                best, progress = result, True
                said(f"still fails: {candidate.command()}")
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
