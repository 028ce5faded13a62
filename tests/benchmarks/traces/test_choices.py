"""What wrong estimates cost where units are chosen by them."""

from __future__ import annotations

import random

import pytest

from benchmarks.traces import choices
from benchmarks.traces.recurring import Workload, measure
from hrm.core.messages.claims import Entry
from hrm.core.queue.resource_unit import UnitQueue
from hrm.core.vocabulary.model import (
    ContainerId,
    Resources,
    ResourceUnit,
    ResourceUnitId,
    WorkloadClass,
)

TRUE_S = [20.0, 35.0, 60.0, 100.0, 300.0]


def test_who_knows_the_truth_regrets_nothing() -> None:
    assert choices.regret([(x, x) for x in TRUE_S], seed=1, choices=40) == pytest.approx(0.0)


def test_the_worse_the_estimates_the_more_is_regretted() -> None:
    near = [(x * (1.2 if x > 50 else 0.8), x) for x in TRUE_S]
    reversed_s = list(zip(reversed(TRUE_S), TRUE_S, strict=True))
    few, many = (choices.regret(each, seed=1, choices=60) for each in (near, reversed_s))
    assert 0.0 <= few < 0.5 * many
    assert many > 0.1


def test_the_wait_is_that_of_true_run_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two units, each of which runs one container that takes all of it, expected to end first where
    it ends last."""
    queues = iter([(10.0, 90.0), (50.0, 30.0)])

    def busy(
        name: str, _pairs: object, _draw: object, truths: dict[str, float], _: float
    ) -> object:
        container_id = ContainerId(f"{name}-c0")
        expected_s, truths[container_id] = next(queues)
        queue = UnitQueue(
            ResourceUnit(
                unit_id=ResourceUnitId(f"{name}/cpu"),
                capacity=Resources(8, 1_024),
                run_limit=64,
            )
        )
        queue.enqueue(Entry(container_id, WorkloadClass.BATCH, (8, 1, 0, 1), expected_s))
        queue.start_all(0.0)
        return queue

    monkeypatch.setattr(choices, "_busy", busy)
    monkeypatch.setattr(choices, "_UNITS", 2)
    monkeypatch.setattr(random.Random, "uniform", lambda *_: 0.0)
    assert choices.regret([(5.0, 5.0)], seed=0, choices=1) == pytest.approx(90 / 30 - 1)


def test_learned_run_times_choose_better_than_none_and_no_better_than_medians() -> None:
    found = [measure(Workload(sigma=0.2), seed=seed) for seed in range(2)]
    learned, default, bound = (
        sum(getattr(x, name) for x in found)
        for name in ("regret", "regret_default", "regret_bound")
    )
    assert bound < learned < 0.4 * default
