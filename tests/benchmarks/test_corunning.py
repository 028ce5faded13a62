"""Containers that slow each other down, in virtual time: what is known by hand of run times."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from benchmarks.corunning.__main__ import ARMS, Arm, Cell, main, measure
from benchmarks.fairness.world import Platform, World
from hrm.policies.mapping import Mix


@dataclass(frozen=True)
class ByHand:
    """``own``: with a container of the same kind on the unit; ``other``: with one of another."""

    own: float
    other: float

    def slowdown(self, tenant: int, mix: Mix, platform: int) -> float:
        return self.own if len(mix.cores) == 1 else self.other


def world(own: float, other: float) -> World:
    return World(
        platforms=(Platform("slow", 1, 2), Platform("fast", 1, 2)),
        tenants=("a", "b"),
        tasks=(1.0, 1.0),
        run_s=np.array([[60.0, 30.0], [120.0, 60.0]]),
        slowdowns=ByHand(own, other),
    )


@pytest.mark.parametrize("arm", ARMS, ids=str)
def test_containers_that_do_not_slow_each_other_down_run_as_long_as_alone(arm: Arm) -> None:
    figures = measure(world(1.0, 1.0), Cell(0.5), arm, seed=3, containers=120)
    assert figures["slowdown"] == pytest.approx(1.0)
    assert figures["worst"] == pytest.approx(1.0)
    assert figures["response"] >= 1.0
    assert 0.1 < figures["used"] < 0.9


def test_no_container_is_slowed_more_than_by_the_worst_neighbour_all_the_time() -> None:
    figures = measure(world(3.0, 3.0), Cell(0.3), Arm("best-fit"), seed=1, containers=120)
    assert 1.0 < figures["slowdown"] < 3.0


def test_what_suits_each_other_is_put_together_where_that_is_known() -> None:
    """Either kind hurts itself alone: beside the other it runs as if it were alone."""
    cell, suited = Cell(0.4), world(3.0, 1.0)

    def slowdown(policy: str, knows: str = "") -> float:
        return measure(suited, cell, Arm(policy, knows), seed=2, containers=400)["slowdown"]

    unaware = slowdown("best-fit")
    for policy in ("least-slowdown", "most-affected-first", "co-runner-round-robin"):
        assert slowdown(policy, "true") < slowdown(policy, "learned") < unaware
    assert slowdown("least-slowdown", "learned") < slowdown("worst-fit")
    assert slowdown("one-tenant-per-node") > unaware


def test_one_seed_is_one_run() -> None:
    arm = Arm("most-affected-first", "learned")
    first, second = (
        measure(world(2.0, 1.2), Cell(0.5), arm, seed=5, containers=120) for _ in range(2)
    )
    assert first == second
    assert first != measure(world(2.0, 1.2), Cell(0.5), arm, seed=6, containers=120)


def test_without_measurements_nothing_is_made_up(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--data", str(tmp_path)]) == 2
    assert "slowdowns are not made up" in " ".join(capsys.readouterr().err.split())
