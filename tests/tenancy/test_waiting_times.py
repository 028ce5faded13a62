"""Percentiles of waiting times against those of numpy, and how the past fades from them."""

from __future__ import annotations

import numpy as np
import pytest

from hrm.core.tenancy.waiting_times import BUCKETS_S, RELATIVE_ERROR, WaitingTimes, WaitSummary

HALF_LIFE_S = 600.0


def summary(waits: WaitingTimes, now: float) -> WaitSummary:
    found = waits.summary(now)
    assert found is not None
    return found


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("shape", ["even", "long-tailed", "two humps", "few"])
def test_percentiles_are_those_of_all_starts_within_the_stated_error(seed: int, shape: str) -> None:
    random = np.random.default_rng(seed)
    waited_s = {
        "even": random.uniform(0.02, 50, 3_000),
        "long-tailed": random.lognormal(2.0, 2.5, 3_000),
        "two humps": np.concatenate([random.normal(2, 0.1, 900), random.normal(900, 50, 100)]),
        "few": random.exponential(30, 7),
    }[shape]
    waits = WaitingTimes(HALF_LIFE_S)
    for each in waited_s.tolist():
        waits.add(each, 100.0)

    found = summary(waits, 100.0)

    for part, value in ((0.5, found.p50_s), (0.9, found.p90_s), (0.99, found.p99_s)):
        right = np.quantile(waited_s, part, method="inverted_cdf")
        assert value == pytest.approx(right, rel=RELATIVE_ERROR * (1 + 1e-9), abs=0.01)
    assert found.starts == pytest.approx(len(waited_s))
    assert found.total_s == pytest.approx(waited_s.sum())


def test_a_start_counts_half_after_each_half_life() -> None:
    """Two hundred waited for 100 s two half-lives ago, so they count as fifty."""
    waits = WaitingTimes(HALF_LIFE_S)
    for _ in range(200):
        waits.add(100.0, 0.0)
    late = 2 * HALF_LIFE_S
    for _ in range(51):
        waits.add(1.0, late)

    found = summary(waits, late)

    assert found.starts == pytest.approx(50 + 51)
    assert found.p50_s == pytest.approx(1.0, rel=RELATIVE_ERROR), "51 against 50"
    assert found.p90_s == pytest.approx(100.0, rel=RELATIVE_ERROR)
    waits.add(100.0, late)
    waits.add(100.0, late)
    assert summary(waits, late).p50_s == pytest.approx(100.0, rel=RELATIVE_ERROR), "51 against 52"


def test_weights_stay_finite_and_the_same_over_any_time() -> None:
    """A start a second for weeks: what is left of all is what a geometric series says."""
    waits = WaitingTimes(10.0)
    for second in range(100_000):
        waits.add(5.0 if second < 99_989 else 50.0, float(second))

    found = summary(waits, 99_999.0)

    assert found.starts == pytest.approx(1 / (1 - 0.5**0.1), rel=1e-6)
    # Of the last ten starts is one half, of the last eleven more.
    assert found.p50_s == pytest.approx(50.0, rel=RELATIVE_ERROR)
    assert sum(found.buckets) == 100_000


def test_where_nothing_has_started_lately_there_are_no_percentiles() -> None:
    waits = WaitingTimes(HALF_LIFE_S)
    assert waits.summary(0.0) is None
    waits.add(7.0, 0.0)

    assert summary(waits, 3 * HALF_LIFE_S).p99_s == pytest.approx(7.0, rel=RELATIVE_ERROR)
    found = summary(waits, 5 * HALF_LIFE_S)
    assert (found.p50_s, found.p90_s, found.p99_s) == (None, None, None)
    assert sum(found.buckets) == 1, "buckets do not fade"


def test_buckets_have_their_upper_bounds() -> None:
    waits = WaitingTimes(HALF_LIFE_S)
    for each in (-1.0, 0.0, 0.1, 0.1000001, 15.0, 14_400.0, 14_401.0, 1e300):
        waits.add(each, 0.0)
    buckets = dict(zip((*BUCKETS_S, float("inf")), summary(waits, 0.0).buckets, strict=True))
    counted = {bound: count for bound, count in buckets.items() if count}
    assert counted == {0.1: 3, 0.5: 1, 15.0: 1, 14_400.0: 1, float("inf"): 2}
    assert summary(waits, 0.0).p99_s == pytest.approx(1e7, rel=RELATIVE_ERROR), (
        "the most is bounded"
    )


def test_a_queue_takes_bounded_memory() -> None:
    random = np.random.default_rng(1)
    waits = WaitingTimes(1.0)
    for number, each in enumerate(np.exp(random.uniform(-20, 20, 30_000)).tolist()):
        waits.add(each, number / 10_000)
    assert len(waits._bins) <= 210


def test_it_is_read_before_the_clock_of_the_reader_has_begun() -> None:
    waits = WaitingTimes(600.0)
    for _ in range(20):
        waits.add(3.0, 1e6)
    found = summary(waits, 0.0)
    assert found.starts == 20.0
    assert found.p50_s == pytest.approx(3.0, rel=RELATIVE_ERROR)
