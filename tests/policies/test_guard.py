"""The guard: the ladder of trust, its fallbacks, the breaker and the watchdog.

Views here are whole numbers, the heuristic decides 0 and the learned policy 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from hrm.errors import InvalidRequest, NotFound
from hrm.pipelines.core.model import Device, NodeView, StartDecision, SubtaskKey, TaskId
from hrm.policies.guard import (
    Doubt,
    GuardBounds,
    GuardMode,
    GuardRegistry,
    PolicyGuard,
    Reason,
    Recommendation,
    canary_place,
    mode_of,
)


class Clock:
    """Seconds that pass as a test orders."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def made(
    learned: Callable[[int], Recommendation[int]] | None = None,
    mode: GuardMode = GuardMode.ON,
    clock: Clock | None = None,
    check: Callable[[int, int], None] | None = None,
    budget_s: Callable[[int], float] | None = None,
    **bounds: Any,
) -> PolicyGuard[int, int]:
    return PolicyGuard(
        policy="clever",
        kind="cluster",
        heuristic="plain",
        model="clever-1",
        schema="abc",
        learned=learned or (lambda view: Recommendation(1, "learned")),
        fallback=lambda view: Recommendation(0, "computed", 10.0),
        clock_s=clock or Clock(),
        mode=mode,
        bounds=GuardBounds(**bounds),
        check=check,
        budget_s=budget_s,
    )


@pytest.mark.parametrize("mode", GuardMode)
def test_the_share_of_a_mode_is_the_share_that_is_learned(mode: GuardMode) -> None:
    guard = made(mode=mode, blind_share=1.0)
    decided = [guard.decide(f"task-{number}", number, 0.0) for number in range(4_000)]
    share = sum(each.decision for each in decided) / 4_000
    assert share == pytest.approx(mode.share, abs=0.02)
    assert [each.learned for each in decided] == [each.decision == 1 for each in decided]
    status = guard.status(0.0)
    assert (status.asked, status.learned) == (4_000, share * 4_000)
    assert status.shadowed == (4_000 if mode is GuardMode.SHADOW else 0)


def test_one_that_is_in_one_canary_is_in_the_next() -> None:
    places = [canary_place(f"task-{number}") for number in range(1_000)]
    assert all(0.0 <= place < 1.0 for place in places)
    assert len(set(places)) > 900
    assert canary_place("task-7") == canary_place("task-7")


def test_a_shadow_is_asked_and_recorded_and_changes_nothing() -> None:
    guard = made(lambda view: Recommendation(view % 2, "learned"), GuardMode.SHADOW, records_max=3)
    assert {guard.decide(str(n), n, float(n)).decision for n in range(10)} == {0}
    status = guard.status(10.0)
    assert (status.shadowed, status.agreed) == (10, 5)
    assert [(r.key, r.same) for r in status.records] == [("7", False), ("8", True), ("9", False)]


def test_off_does_not_even_ask() -> None:
    asked: list[int] = []
    guard = made(lambda view: asked.append(view) or Recommendation(1, ""), GuardMode.OFF)  # type: ignore[func-returns-value]
    assert guard.decide("a", 1, 0.0).why == "computed"
    assert asked == []


def test_a_doubt_is_counted_and_reported() -> None:
    def doubts(view: int) -> Recommendation[int]:
        raise Doubt(Reason.STALE, "old news")

    decided = made(doubts).decide("a", 1, 0.0)
    assert (decided.decision, decided.learned, decided.reason) == (0, False, Reason.STALE)
    assert decided.why == "computed; plain decided, not clever: stale-snapshot: old news"


@pytest.mark.parametrize("error", [ZeroDivisionError("x"), IndexError("y"), KeyError("z")])
def test_whatever_it_raises_is_a_fallback(error: Exception) -> None:
    def raises(view: int) -> Recommendation[int]:
        raise error

    guard = made(raises)
    assert guard.decide("a", 1, 0.0).reason is Reason.FAULT
    assert type(error).__name__ in guard.status(0.0).last


def test_in_a_shadow_doubts_are_counted_too() -> None:
    def doubts(view: int) -> Recommendation[int]:
        raise Doubt(Reason.VALUE, "too good to be true")

    guard = made(doubts, GuardMode.SHADOW)
    assert guard.decide("a", 1, 0.0).reason is None
    assert guard.status(0.0).fallbacks == {"value-out-of-range": 1}
    assert guard.status(0.0).records[0].reason.startswith("value-out-of-range")


def test_three_slow_decisions_in_a_row_open_the_breaker_for_a_minute() -> None:
    clock, took_ms = Clock(), [2.0]

    def slow(view: int) -> Recommendation[int]:
        clock.now += took_ms[0] / 1e3
        return Recommendation(1, "learned")

    guard = made(slow, clock=clock)

    def reasons(at: float, times: int) -> list[Reason | None]:
        return [guard.decide(f"{at}-{n}", 1, at).reason for n in range(times)]

    assert reasons(0.0, 2) == [Reason.BUDGET] * 2
    took_ms[0] = 0.5
    assert reasons(0.0, 1) == [None]
    took_ms[0] = 2.0
    assert reasons(0.0, 5) == [Reason.BUDGET] * 3 + [Reason.BREAKER] * 2
    assert guard.status(1.0).breaker_until == 60.0
    took_ms[0] = 0.5
    assert reasons(59.9, 1) == [Reason.BREAKER]
    assert reasons(60.0, 2) == [None, None]
    status = guard.status(60.0)
    assert status.breaker_until is None
    assert status.fallbacks == {"over-budget": 5, "breaker-open": 3}
    assert (status.seconds_p50, status.seconds_p99) == pytest.approx((0.002, 0.002), abs=2e-4)


def test_a_decision_that_comes_in_time_is_checked_outside_of_it() -> None:
    clock, checked = Clock(), list[tuple[int, int]]()

    def check(view: int, decision: int) -> None:
        clock.now += 1.0
        checked.append((view, decision))
        if view > 1:
            raise Doubt(Reason.INFEASIBLE, "it is full")

    guard = made(clock=clock, check=check)
    assert [guard.decide(str(view), view, 0.0).reason for view in (1, 2)] == [
        None,
        Reason.INFEASIBLE,
    ]
    assert checked == [(1, 1), (2, 1)]
    assert guard.status(0.0).fallbacks == {"infeasible": 1}
    assert guard.status(0.0).seconds_p99 == 0.0


def test_the_time_that_a_question_may_take_can_depend_on_it() -> None:
    clock = Clock()

    def slow(view: int) -> Recommendation[int]:
        clock.now += 0.5
        return Recommendation(1, "learned")

    guard = made(slow, clock=clock, budget_s=float, strikes=9)
    assert [guard.decide(str(view), view, 0.0).reason for view in (1, 0, 2)] == [
        None,
        Reason.BUDGET,
        None,
    ]
    assert "500.00 ms of 0 ms" in guard.status(0.0).last


def test_how_both_fared_is_shown_where_enough_is_known() -> None:
    guard = made(mode=GuardMode.CANARY_50, samples_min=3)
    for number in range(40):
        learned = guard.decide(str(number), 1, 0.0).learned
        guard.ended(str(number), now=1.0, response_s=30.0 if learned else 10.0, ok=True)
    status = guard.status(1.0)
    assert status.compared == status.learned > 3
    assert status.reference_compared == 40 - status.learned
    assert (status.ratio_mean, status.reference_mean) == pytest.approx((3.0, 1.0))
    few = made(mode=GuardMode.CANARY_50).status(0.0)
    assert math.isnan(few.ratio_mean) and math.isnan(few.reference_mean)


def _live(
    guard: PolicyGuard[int, int], seconds: float, start: float, response: dict[bool, float]
) -> float:
    """One task a second, whose response depends on the deciding policy; returns the end."""
    now = start
    while now < start + seconds:
        decided = guard.decide(f"t{now}", 1, now)
        guard.ended(f"t{now}", now=now, response_s=response[decided.learned], ok=True)
        now += 1.0
    return now


def test_one_that_is_worse_at_two_hundred_ends_in_a_row_goes_back_into_the_shadow() -> None:
    guard = made(mode=GuardMode.CANARY_50)
    now = _live(guard, 300, 0.0, {False: 12.0, True: 13.0})
    assert guard.mode is GuardMode.CANARY_50
    now = _live(guard, 340, now, {False: 12.0, True: 15.0})
    assert guard.mode is GuardMode.CANARY_50
    now = _live(guard, 120, now, {False: 12.0, True: 15.0})
    status = guard.status(now)
    assert status.mode is GuardMode.SHADOW
    assert status.rolled_back_at is not None
    assert status.fallbacks == {"watchdog": 1}
    assert "p95 of response over expectation 1.50, plain's is 1.20" in status.last
    guard.set_mode(GuardMode.CANARY_10)
    assert guard.status(now).rolled_back_at is None


def test_a_bad_spell_that_ends_is_forgiven() -> None:
    guard = made(mode=GuardMode.CANARY_50)
    now = 0.0
    for _ in range(5):
        now = _live(guard, 10, now, {False: 10.0, True: 20.0})
        now = _live(guard, 390, now, {False: 10.0, True: 10.0})
    assert guard.mode is GuardMode.CANARY_50


def test_the_watchdog_counts_tasks_whether_they_take_hours_or_milliseconds() -> None:
    for scale in (1e-3, 1e4):
        guard = made(mode=GuardMode.CANARY_50)
        for number in range(600):
            now = number * scale
            learned = guard.decide(f"t{number}", 1, now).learned
            guard.ended(f"t{number}", now=now, response_s=20.0 if learned else 10.0, ok=True)
        assert guard.mode is GuardMode.SHADOW


def test_slow_for_all_is_no_fault_of_the_learned_one() -> None:
    guard = made(mode=GuardMode.CANARY_50)
    _live(guard, 2_000, 0.0, {False: 90.0, True: 90.0})
    assert guard.mode is GuardMode.CANARY_50


def test_what_was_learned_of_the_heuristic_is_the_measure_when_all_is_learned() -> None:
    guard = made(mode=GuardMode.SHADOW)
    now = _live(guard, 100, 0.0, {False: 10.0})
    guard.set_mode(GuardMode.ON)
    _live(guard, 700, now, {True: 12.0, False: 10.0})
    assert guard.mode is GuardMode.SHADOW


def test_failures_count_as_very_late() -> None:
    guard = made(mode=GuardMode.SHADOW)
    now = _live(guard, 100, 0.0, {False: 10.0})
    guard.set_mode(GuardMode.ON)
    while now < 1_000 and guard.mode is GuardMode.ON:
        guard.decide(f"t{now}", 1, now)
        guard.ended(f"t{now}", now=now, response_s=1.0, ok=int(now) % 10 > 0)
        now += 1.0
    assert guard.mode is GuardMode.SHADOW


def test_few_samples_decide_nothing() -> None:
    guard = made(mode=GuardMode.ON, samples_min=10_000)
    _live(guard, 2_000, 0.0, {True: 1e6, False: 10.0})
    assert guard.mode is GuardMode.ON
    assert math.isnan(guard.status(0.0).reference_p95)


def test_one_that_is_on_without_a_record_of_the_heuristic_leaves_a_tenth_to_it_until_there_is() -> (
    None
):
    guard = made(mode=GuardMode.ON)
    learned = []
    for number in range(1_000):
        learned.append(guard.decide(str(number), 1, 0.0).learned)
        guard.ended(str(number), now=float(number), response_s=10.0, ok=True)
    assert learned.count(False) == 20
    assert all(learned[learned.index(False) + 600 :])


def test_what_never_ends_is_forgotten_at_the_bound() -> None:
    guard = made(mode=GuardMode.ON, pending_max=10)
    for number in range(50):
        guard.decide(str(number), 1, 0.0)
    guard.ended("3", now=1.0, response_s=1.0, ok=True)  # long forgotten, and ignored
    assert len(guard._pending) == 10


def test_modes_are_set_by_name_and_kept_for_later_lives() -> None:
    guards = GuardRegistry({"clever": GuardMode.CANARY_10})
    guard = made(mode=GuardMode.SHADOW)
    guards.add(guard)
    assert guard.mode is GuardMode.CANARY_10
    guards.set_mode("clever", mode_of("on"))
    assert guards.modes == {"clever": GuardMode.ON}
    assert [status.mode for status in guards.statuses(0.0)] == [GuardMode.ON]
    with pytest.raises(NotFound, match="in use: clever"):
        guards.set_mode("other", GuardMode.ON)
    with pytest.raises(InvalidRequest, match="canary-10"):
        mode_of("half")


def test_a_restart_does_not_undo_a_fall_back() -> None:
    kept: list[dict[str, GuardMode]] = []
    guards = GuardRegistry(
        {"clever": GuardMode.CANARY_50}, keep=lambda modes: kept.append(dict(modes))
    )
    guard = made(mode=GuardMode.SHADOW)
    guards.add(guard)
    _live(guard, 1_200, 0.0, {False: 12.0, True: 15.0})
    assert guard.mode is GuardMode.SHADOW
    assert kept == [{"clever": GuardMode.SHADOW}]
    later = made()
    GuardRegistry(kept[0]).add(later)
    assert later.mode is GuardMode.SHADOW


def test_a_policy_of_nodes_has_the_same_guard() -> None:
    """Stage 2 has other inputs and decisions: views of a node, and lists of what to start."""
    key = SubtaskKey(TaskId("t"), "s")
    guard: PolicyGuard[NodeView, list[StartDecision]] = PolicyGuard(
        policy="iawp",
        kind="node",
        heuristic="pats",
        model="iawp-1",
        schema="abc",
        learned=lambda view: Recommendation(
            [StartDecision(key, Device.GPU, view.gpus[0].index)], "co-run"
        ),
        fallback=lambda view: Recommendation(
            [StartDecision(key, Device.CPU, view.idle_cores[0])], "speed-up"
        ),
        clock_s=Clock(),
        mode=GuardMode.ON,
    )
    estimates: Any = None
    view = NodeView(now=0.0, ready=(), idle_cores=(3,), core_remaining_s=(0.0,) * 4, gpus=(),
                    memory_free_mib=1.0, estimates=estimates)  # fmt: skip
    decided = guard.decide("node-1/17", view, 0.0)
    assert decided.decision == [StartDecision(key, Device.CPU, 3)]  # there is no GPU: an IndexError
    assert decided.reason is Reason.FAULT


def test_nan_is_no_percentile() -> None:
    assert np.isnan(made().status(0.0).seconds_p50)
