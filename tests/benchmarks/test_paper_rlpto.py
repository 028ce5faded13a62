"""RLPTO's tables by the beta rule alone, and the methods around it."""

from __future__ import annotations

import statistics
from functools import cache

import pytest

from benchmarks.paper.rlpto_methods import (
    BETAS,
    SETUPS,
    SIMULATED,
    Method,
    baselines,
    beta_method,
    run_twelve,
)
from hrm.learn.training_jobs import TrainingRun

SEEDS = range(12)


@cache
def methods(table: str) -> dict[str, Method]:
    found = [*baselines(SETUPS[table]), *map(beta_method, BETAS)]
    return {method.name: method for method in found}


@cache
def runs(table: str, name: str, seeds: int = len(SEEDS)) -> list[TrainingRun]:
    return [run_twelve(methods(table)[name], SETUPS[table], seed) for seed in range(seeds)]


def mean_of(table: str, name: str, seeds: int = len(SEEDS)) -> tuple[float, float]:
    """Accuracy, %, and total time, s."""
    held = runs(table, name, seeds)
    return (
        100.0 * statistics.fmean(run.accuracy for run in held),
        statistics.fmean(run.total_s for run in held),
    )


@pytest.mark.parametrize("name", SIMULATED)
def test_the_simulator_is_the_one_of_the_specification(name: str) -> None:
    """Within its own spread over seeds of what the fit gave where it was made."""
    accuracy, total_s = mean_of("II", name)
    wanted, spread, wanted_s, spread_s = SIMULATED[name]
    assert accuracy == pytest.approx(wanted, abs=spread)
    assert total_s == pytest.approx(wanted_s, abs=spread_s)


@pytest.mark.parametrize("table", SETUPS)
def test_accuracy_and_time_fall_as_beta_grows(table: str) -> None:
    found = [mean_of(table, f"beta-{beta:g}") for beta in BETAS]
    assert [x for x, _ in found] == sorted((x for x, _ in found), reverse=True)
    assert [x for _, x in found] == sorted((x for _, x in found), reverse=True)


def test_the_baselines_are_ordered_as_published() -> None:
    accuracy, total_s = (
        {name: mean_of("II", name, 2)[part] for name in ("fs", "fcfs", "slaq", "dolphin", "tradl")}
        for part in (0, 1)
    )
    assert min(accuracy, key=accuracy.__getitem__) == "fcfs"
    assert max(accuracy, key=accuracy.__getitem__) == "slaq"
    assert max(total_s, key=total_s.__getitem__) == "fcfs"
    assert min(total_s, key=total_s.__getitem__) == "tradl"


def test_jobs_of_fixed_slots_are_never_resized() -> None:
    for name in ("fs", "fcfs"):
        assert all(x.resizes == 0 for run in runs("II", name, 2) for x in run.outcomes)
