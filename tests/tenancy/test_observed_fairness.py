"""Fairness between queues by hand, and what counts in it."""

from __future__ import annotations

import pytest

from hrm.core.tenancy.observed_fairness import (
    LeafObservation,
    ObservedFairness,
    evenness,
    jain_index,
)
from hrm.core.tenancy.queue_spec import QueueName

A, B, C = (QueueName(f"root.{x}") for x in "abc")
HALF_LIFE_S = 600.0


def seconds(
    observed: ObservedFairness, first: int, last: int, **cores: tuple[float, float]
) -> None:
    """A tick a second; of each queue, what is due to it and what it holds."""
    for second in range(first + 1, last + 1):
        for name, (entitled, held) in cores.items():
            observed.had(QueueName(f"root.{name}"), entitled, held, 1.0, float(second))


def of(observed: ObservedFairness, name: QueueName, now: float) -> LeafObservation:
    found = observed.of(name, now)
    assert found is not None
    return found


def test_two_queues_by_hand() -> None:
    """Due are 8 cores each, and they hold 12 and 4: t is 1.5 and 0.5. mean 1, std 0.5."""
    observed = ObservedFairness(HALF_LIFE_S)
    seconds(observed, 0, 300, a=(8, 12), b=(8, 4))

    assert of(observed, A, 300).throughput == pytest.approx(1.5)
    assert of(observed, B, 300).throughput == pytest.approx(0.5)
    found = observed.summary(300)
    assert found.queues == 2
    assert found.fairness == pytest.approx(0.5)
    assert found.jain == pytest.approx(4 / (2 * 2.5))
    assert found.spread == pytest.approx(3.0)


def test_a_queue_that_is_due_three_times_as_much_is_to_get_that() -> None:
    observed = ObservedFairness(HALF_LIFE_S)
    seconds(observed, 0, 300, a=(12, 12), b=(4, 4))
    assert observed.summary(300).fairness == pytest.approx(1.0)


def test_equal_cores_are_not_equal_where_one_has_the_slow_ones() -> None:
    """Both hold what is due to them; tasks of root.b would take half the time elsewhere."""
    observed = ObservedFairness(HALF_LIFE_S)
    seconds(observed, 0, 300, a=(8, 8), b=(8, 8))
    observed.ran(A, 40.0, 1.0, 300)
    observed.ran(B, 40.0, 0.5, 300)

    assert of(observed, B, 300).speed == pytest.approx(0.5)
    found = observed.summary(300)
    assert found.with_speeds == 2
    # t is 1 and 0.5: mean 0.75, std 0.25.
    assert found.fairness == pytest.approx(1 - 0.25 / 0.75)


def test_for_like_tasks_it_is_the_sources_metric() -> None:
    """Tenants of 6 cores each for an hour, tasks of 100 s on the fastest platform: one has fast
    cores, of the other's half are at half the speed. Source: t = tasks/time / (k / solo)."""
    solo_s, run_s, hour_s, fair = 100.0, {A: (100.0,) * 6, B: (100.0,) * 3 + (200.0,) * 3}, 3600, 6
    observed = ObservedFairness(1e9)
    tasks = dict.fromkeys(run_s, 0)
    for second in range(1, hour_s + 1):
        for name, cores in run_s.items():
            observed.had(name, fair, len(cores), 1.0, second)
            for each in cores:
                if second % each == 0:
                    tasks[name] += 1
                    observed.ran(name, each, solo_s / each, second)

    ideal = fair / solo_s
    right = {name: (tasks[name] / hour_s) / ideal for name in run_s}
    for name in run_s:
        seen = of(observed, name, hour_s)
        assert seen.throughput == pytest.approx(right[name])
        assert seen.busy == pytest.approx(1.0)
    assert right == {A: 1.0, B: 0.75}


def test_executors_that_idle_are_shown_and_hold_nothing_against_the_rest() -> None:
    observed = ObservedFairness(1e9)
    seconds(observed, 0, 100, a=(4, 4))
    observed.ran(A, 100.0, None, 100)
    seen = of(observed, A, 100)
    assert seen.throughput == pytest.approx(1.0)
    assert seen.busy == pytest.approx(0.25)


def test_speeds_that_are_mostly_unknown_count_as_one() -> None:
    observed = ObservedFairness(1e9)
    seconds(observed, 0, 100, a=(4, 4))
    observed.ran(A, 40.0, 0.5, 100)
    observed.ran(A, 60.0, None, 100)
    assert (of(observed, A, 100).speed, of(observed, A, 100).throughput) == (None, 1.0)
    observed.ran(A, 30.0, 0.5, 100)
    assert of(observed, A, 100).speed == pytest.approx(0.5), "of what is known"
    assert of(observed, A, 100).throughput == pytest.approx(0.5)


def test_half_of_what_counts_is_of_the_last_half_life() -> None:
    observed = ObservedFairness(100.0)
    seconds(observed, 0, 3_000, a=(10, 10))
    seconds(observed, 3_000, 3_100, a=(10, 0))
    assert of(observed, A, 3_100).throughput == pytest.approx(0.5, abs=1e-6)
    seconds(observed, 3_100, 3_200, a=(10, 0))
    assert of(observed, A, 3_200).throughput == pytest.approx(0.25, abs=1e-6)


def test_the_length_of_ticks_makes_no_difference() -> None:
    often, rarely = ObservedFairness(100.0), ObservedFairness(100.0)
    seconds(often, 0, 60, a=(10, 5))
    seconds(often, 60, 120, a=(10, 10))
    rarely.had(A, 10, 5, 60.0, 60.0)
    rarely.had(A, 10, 10, 60.0, 120.0)
    assert of(often, A, 120).throughput == pytest.approx(of(rarely, A, 120).throughput)


def test_a_queue_that_wants_nothing_drops_out_and_comes_back() -> None:
    observed = ObservedFairness(HALF_LIFE_S)
    seconds(observed, 0, 600, a=(8, 8), b=(8, 4), c=(8, 8))
    assert observed.summary(600).queues == 3

    seconds(observed, 600, 1_199, a=(12, 12), c=(12, 12))
    assert observed.summary(1_199).queues == 3, "it had something to do within a half-life"
    seconds(observed, 1_199, 1_202, a=(12, 12), c=(12, 12))
    found = observed.summary(1_202)
    assert found.queues == 2
    assert found.fairness == pytest.approx(1.0)
    assert not of(observed, B, 1_202).takes_part
    assert of(observed, B, 1_202).throughput == pytest.approx(0.5), "as it was, not less"

    seconds(observed, 1_202, 1_203, a=(8, 8), b=(8, 8), c=(8, 8))
    assert observed.summary(1_203).queues == 3


def test_a_newcomer_takes_part_after_a_tenth_of_the_half_life() -> None:
    observed = ObservedFairness(HALF_LIFE_S)
    seconds(observed, 0, 300, a=(8, 8))
    seconds(observed, 300, 355, a=(8, 16), b=(8, 0))
    assert observed.summary(355).fairness is None
    seconds(observed, 355, 365, a=(8, 16), b=(8, 0))
    found = observed.summary(365)
    assert (found.queues, found.spread) == (2, None), "one has got nothing"
    assert found.fairness == pytest.approx(0.0)
    assert found.jain == pytest.approx(0.5)


@pytest.mark.parametrize("throughputs", [[], [1.0], [0.0, 0.0]])
def test_there_is_no_fairness_of_one_or_of_nothing(throughputs: list[float]) -> None:
    assert evenness(throughputs) is None
    assert jain_index(throughputs) is None


def test_the_published_throughputs_give_the_published_fairness() -> None:
    """Affinity round robin with reciprocal affinity, five tenants, without interference."""
    found = evenness([0.895, 0.970, 1.058, 0.906, 0.896])
    assert found == pytest.approx(0.9334, abs=5e-4)


def test_queues_that_are_gone_are_forgotten() -> None:
    observed = ObservedFairness(HALF_LIFE_S)
    seconds(observed, 0, 100, a=(8, 8), b=(8, 4))
    observed.keep({A})
    assert observed.of(B, 100.0) is None
    assert observed.of(A, 100.0) is not None
