"""Rewards, targets and schedules against numbers computed by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hrm.learn.rewards import Rewards, epsilon_at, kappa_of


def test_delta_is_the_difference_of_throughputs() -> None:
    """Throughputs 10, 12, 11, 15 a minute, the windows a minute apart."""
    rewards = Rewards("delta")
    got = []
    for minute, completed in enumerate((10, 12, 11, 15)):
        for number in range(completed):
            rewards.ended(60.0 * minute + 1.0 + number, ok=True)
        rewards.ended(60.0 * minute + 30.0, ok=False)
        got.append(rewards.interval(60.0 * (minute + 1)))
    assert got == [None, (2.0, 0.8), (-1.0, 0.8), (4.0, 0.8)]
    total = sum(0.8**n * r for n, (r, _) in enumerate(x for x in got if x is not None))
    assert total == pytest.approx(3.76)
    assert total == pytest.approx(-10 + 0.2 * (12 + 0.8 * 11) + 0.64 * 15)
    assert sum(r for r, _ in (x for x in got if x is not None)) == 5


def test_smdp_counts_completions_and_discounts_by_time() -> None:
    rewards = Rewards("smdp")
    assert rewards.interval(10.0) is None
    for _ in range(3):
        rewards.ended(10.5, ok=True)
    reward, discount = rewards.interval(11.2) or (0, 0)
    assert reward == 3
    assert discount == pytest.approx(0.98020, abs=5e-6)


def test_slowdown_is_the_logarithm_of_response_over_ideal_within_bounds() -> None:
    rewards = Rewards("slowdown")
    rewards.kappa = 0.5
    assert rewards.of_task(20.0, 10.0, ok=True) == pytest.approx(-0.5 * math.log(2))
    assert rewards.of_task(1e9, 1.0, ok=True) == -2.5
    assert rewards.of_task(5.0, 10.0, ok=False) == -2.5
    assert rewards.of_task(5.0, math.nan, ok=True) == -2.5


def test_a_new_history_forgets_the_old_one() -> None:
    rewards = Rewards("delta")
    rewards.ended(1.0, ok=True)
    rewards.interval(2.0)
    rewards.begin()
    assert rewards.interval(3.0) is None
    assert rewards.interval(4.0) == (0.0, 0.8)


def test_kappa_gives_a_standard_deviation_of_a_half() -> None:
    rewards = np.random.default_rng(0).normal(3.0, 7.0, 1_000)
    assert np.std(kappa_of(list(rewards)) * rewards) == pytest.approx(0.5)
    assert kappa_of([2.0, 2.0]) == kappa_of([]) == 1.0


def test_the_share_of_random_actions_falls_linearly_and_stays() -> None:
    found = [epsilon_at(step, 1.0, 0.05, 1_000) for step in (0, 300, 1_000, 3_000)]
    assert found == pytest.approx([1, 0.715, 0.05, 0.05])
    assert epsilon_at(0, 0.3, 0.05, 0) == 0.05
