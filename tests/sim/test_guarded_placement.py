"""Candidates for placement under faults: whatever they do, nothing that must hold is broken.

They decide in every life of the master, next to the policy that the seed has drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import numpy as np
import pytest

from hrm.core.scheduling.cluster_view import ClusterView
from hrm.core.scheduling.scheduler import Placement, PlacementPolicy
from hrm.policies.guard import GuardBounds, GuardMode
from hrm.policies.guarded import PlacementGuard
from hrm.sim.actors import master
from hrm.sim.actors.policies import POLICIES, load
from hrm.sim.run import Result, run_plan, run_seed
from tests.sim.planted.yielding import beside_what_yields

SEEDS = range(6)
BOUNDS = GuardBounds(reference_share=0.0)
Candidate = Callable[[PlacementPolicy, int], PlacementPolicy]
Guards = list[PlacementGuard]


class Hostile:
    """Returns rows of all kinds, feasible or not, and none, raises, and spoils its view."""

    name = "hostile"

    def __init__(self, in_force: PlacementPolicy, index: int) -> None:
        self.strict_order = bool(getattr(in_force, "strict_order", False))
        self._random = Random(index)

    def place(self, view: ClusterView, placement: Placement, now: float) -> list[Any]:
        random, entries = self._random, placement.entries
        view.open = np.ones_like(view.open)
        for entry in entries[: random.randrange(3)]:
            view.apply(random.randrange(max(1, view.units)), entry, now)
        kind = random.randrange(8)
        if kind == 0:
            raise RuntimeError("no")
        if kind == 1:
            return [random.choice((None, "x", -1, 10**9, float("nan"))) for _ in entries]
        if kind == 2:
            return list(range(len(entries) + random.choice((-1, 1))))
        if kind == 3:
            return [None] * len(entries)
        return [random.choice((None, *range(view.units))) for _ in entries]


def put_around(
    patch: pytest.MonkeyPatch, candidate: Candidate, mode: GuardMode, bounds: GuardBounds = BOUNDS
) -> Guards:
    """Let the schedulers of every life of the master have a candidate; their guards."""
    guards: Guards = []

    def guarded(name: str, index: int) -> PlacementPolicy:
        if index == 0:  # a life begins
            guards.append(
                PlacementGuard(
                    "candidate", heuristic=name, origin="here", clock_s=lambda: 0.0, mode=mode,
                    bounds=bounds,
                )
            )  # fmt: skip
        in_force = load(name, index)
        return guards[-1].around(in_force, candidate(in_force, index))

    patch.setattr(master, "load", guarded)
    return guards


def asked(guards: Guards) -> int:
    return sum(guard.guard.status(0.0).asked for guard in guards)


def runs() -> Iterator[Result]:
    """Of plans of all kinds, and of some in which what runs yields, so that policies are asked in
    steps."""
    yield from map(run_seed, SEEDS)
    yield from (run_plan(beside_what_yields(seed)) for seed in SEEDS)


@pytest.mark.parametrize("mode", [GuardMode.SHADOW, GuardMode.CANARY_50, GuardMode.ON])
def test_a_hostile_candidate_breaks_nothing(
    monkeypatch: pytest.MonkeyPatch, mode: GuardMode
) -> None:
    guards = put_around(monkeypatch, Hostile, mode)
    for result in runs():
        assert result.violations == ()
    reasons = {reason for each in guards for reason in each.guard.status(0.0).fallbacks}
    assert reasons >= {"fault", "wrong-shape", "unplaced", "infeasible"}
    learned = sum(guard.guard.status(0.0).learned for guard in guards)
    assert learned == 0 if mode is GuardMode.SHADOW else 0 < learned < asked(guards)


def test_in_shadow_even_a_hostile_one_changes_no_event(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = [x.log_hash for x in runs()]
    guards = put_around(monkeypatch, Hostile, GuardMode.SHADOW)
    assert [x.log_hash for x in runs()] == alone
    assert asked(guards) > 100


def test_one_that_chooses_as_the_policy_in_force_changes_no_event_either(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All that HRM's own policies choose passes the checks, and is reserved as they reserve it."""
    alone = [x.log_hash for x in runs()]
    named: dict[object, str] = {kind: name for name, kind in POLICIES.items()}

    def again(in_force: PlacementPolicy, index: int) -> PlacementPolicy:
        return load(named[type(in_force)], index)

    guards = put_around(monkeypatch, again, GuardMode.ON)
    assert [x.log_hash for x in runs()] == alone
    assert [each.guard.status(0.0).fallbacks for each in guards] == [{}] * len(guards)
    assert sum(each.guard.status(0.0).learned for each in guards) == asked(guards) > 100
