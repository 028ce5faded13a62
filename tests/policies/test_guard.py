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
    guard = made(mode=mode, reference_share=0.0)
    decided = [guard.decide(f"task-{number}", number, 0.0) for number in range(4_000)]
    share = sum(each.decision for each in decided) / 4_000
    assert share == pytest.approx(mode.share, abs=0.02)
    assert [each.learned for each in decided] == [each.decision == 1 for each in decided]
    assert [each.drawn for each in decided] == [each.learned for each in decided]
    status = guard.status(0.0)
    assert (status.asked, status.learned) == (4_000, share * 4_000)
    assert status.shadowed == (4_000 if mode is GuardMode.SHADOW else 0)


def test_one_that_is_in_one_canary_is_in_the_next() -> None:
    places = [canary_place(f"task-{number}") for number in range(1_000)]
    assert all(0.0 <= place < 1.0 for place in places)
    assert len(set(places)) > 900
    assert canary_place("task-7") == canary_place("task-7")


def test_who_does_not_know_the_key_cannot_tell_on_which_side_a_question_is() -> None:
    """Names that would all be the learned policy's by the hash without a secret."""
    chosen = [key for key in map(str, range(4_000)) if canary_place(key) < 0.5]
    guard = made(mode=GuardMode.CANARY_50)
    GuardRegistry(draw_key=b"secret").add(guard)
    learned = sum(guard.decide(key, 1, 0.0).learned for key in chosen)
    assert learned / len(chosen) == pytest.approx(0.5, abs=0.06)


def test_a_shadow_is_asked_and_recorded_and_changes_nothing() -> None:
    guard = made(lambda view: Recommendation(view % 2, "learned"), GuardMode.SHADOW, records_max=3)
    assert {guard.decide(str(n), n, float(n)).decision for n in range(10)} == {0}
    status = guard.status(10.0)
    assert (status.shadowed, status.proposed, status.agreed) == (10, 10, 5)
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
    status = guard.status(0.0)
    assert (status.shadowed, status.proposed, status.agreed) == (1, 0, 0), "it was of no opinion"


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


def test_one_that_is_worse_goes_back_into_the_shadow() -> None:
    guard = made(mode=GuardMode.CANARY_50)
    now = _live(guard, 300, 0.0, {False: 12.0, True: 13.0})
    assert guard.mode is GuardMode.CANARY_50, "it is less than 10 % worse"
    now = _live(guard, 340, now, {False: 12.0, True: 15.0})
    status = guard.status(now)
    assert status.mode is GuardMode.SHADOW
    assert status.rolled_back_at is not None
    assert status.fallbacks == {"watchdog": 1}
    assert "than plain's by more than 10% and chance" in status.rolled_back_why
    assert "(p95 1.50, its 1.20): back from canary-50 to shadow" in status.rolled_back_why
    guard.set_mode(GuardMode.CANARY_10)
    assert guard.status(now).rolled_back_at is None
    assert guard.status(now).rolled_back_why == ""


def test_why_it_was_rolled_back_outlasts_later_fallbacks_until_somebody_sets_a_mode() -> None:
    doubtful = [False]

    def doubts(view: int) -> Recommendation[int]:
        if doubtful[0]:
            raise Doubt(Reason.STALE, "old news")
        return Recommendation(1, "learned")

    guard = made(doubts, mode=GuardMode.CANARY_50)
    now = _live(guard, 400, 0.0, {False: 10.0, True: 20.0})
    assert guard.mode is GuardMode.SHADOW
    doubtful[0] = True
    _live(guard, 5, now, {False: 10.0, True: 20.0})
    status = guard.status(now)
    assert status.last == "stale-snapshot: old news"
    assert status.rolled_back_why.startswith("watchdog: response over expectation")
    guard.set_mode(GuardMode.SHADOW)
    assert guard.status(now).rolled_back_why == ""


def test_a_bad_spell_that_ends_is_forgiven() -> None:
    guard = made(mode=GuardMode.CANARY_50)
    now = _live(guard, 390, 0.0, {False: 10.0, True: 10.0})
    now = _live(guard, 10, now, {False: 10.0, True: 20.0})
    _live(guard, 1_000, now, {False: 10.0, True: 10.0})
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


@pytest.mark.parametrize("earlier", [GuardMode.SHADOW, GuardMode.CANARY_50])
def test_what_was_decided_in_another_mode_is_not_compared(earlier: GuardMode) -> None:
    """Calm while the heuristic decided, busy since the policy is on: no difference between them."""
    guard = made(mode=earlier)
    now = _live(guard, 200, 0.0, {False: 10.0, True: 10.0})
    late = [f"late-{number}" for number in range(200)]
    for key in late:
        guard.decide(key, 1, now)
    guard.set_mode(GuardMode.ON)
    for key in late:
        guard.ended(key, now=now, response_s=10.0, ok=True)
    _live(guard, 1_200, now, {True: 30.0, False: 30.0})
    assert guard.mode is GuardMode.ON
    assert guard.status(now).reference_p95 == 3.0


def test_failures_count_as_very_late() -> None:
    """A tenth fails, and nothing else differs: ranks show little of that, the tail does."""
    guard = made(mode=GuardMode.CANARY_50)
    for number in range(2_000):
        learned = guard.decide(str(number), 1, 0.0).learned
        ok = not learned or number % 10 > 0
        guard.ended(str(number), now=float(number), response_s=10.0 + number % 7, ok=ok)
    assert guard.mode is GuardMode.SHADOW


@pytest.mark.parametrize("others", [{False: 10.0, True: 10.0}, {False: 10.0, True: 16.0}])
def test_one_user_alone_does_not_roll_back_what_serves_others(others: dict[bool, float]) -> None:
    """Bob looks who has placed a task of his, and lets it fail where that was the learned one."""
    guard = made(mode=GuardMode.CANARY_50)
    for number in range(1_200):
        learned = guard.decide(f"b{number}", 1, 0.0, user="bob").learned
        guard.ended(f"b{number}", now=1.0, response_s=10.0, ok=not learned)
        if number % 3 == 0:
            learned = guard.decide(f"a{number}", 1, 0.0, user="ada").learned
            guard.ended(f"a{number}", now=1.0, response_s=others[learned], ok=True)
    worse = others[True] > others[False]
    assert guard.mode is (GuardMode.SHADOW if worse else GuardMode.CANARY_50)


def test_an_end_whose_expectation_was_a_guess_counts_for_neither() -> None:
    guard = made(mode=GuardMode.CANARY_50)
    for number in range(400):
        learned = guard.decide(str(number), 1, 0.0).learned
        guard.expect(str(number), math.nan, drawn=learned)
        guard.ended(str(number), now=1.0, response_s=10.0, ok=not learned)
    status = guard.status(1.0)
    assert (status.mode, status.compared) == (GuardMode.CANARY_50, 0)


def test_few_samples_decide_nothing() -> None:
    guard = made(mode=GuardMode.ON, samples_min=10_000)
    _live(guard, 2_000, 0.0, {True: 1e6, False: 10.0})
    assert guard.mode is GuardMode.ON
    assert math.isnan(guard.status(0.0).reference_p95)


def test_one_that_is_on_leaves_a_twentieth_to_the_heuristic_for_good() -> None:
    guard = made(mode=GuardMode.ON)
    learned = []
    for number in range(10_000):
        learned.append(guard.decide(str(number), 1, 0.0).learned)
        guard.ended(str(number), now=float(number), response_s=10.0, ok=True)
    for thousand in range(0, 10_000, 1_000):
        assert learned[thousand : thousand + 1_000].count(False) == pytest.approx(50, abs=25)
    status = guard.status(0.0)
    assert (status.compared, status.reference_compared) == (
        learned.count(True),
        learned.count(False),
    )


def test_where_the_learned_policy_falls_back_its_tasks_are_still_its_own() -> None:
    """It doubts what is slow, and does as the heuristic does: no difference that is its fault."""
    random = np.random.default_rng(3)

    def doubts(view: int) -> Recommendation[int]:
        if view:
            raise Doubt(Reason.DISAGREEMENT, "strange")
        return Recommendation(1, "learned")

    guard = made(doubts)
    for number in range(3_000):
        slow = int(random.random() < 0.5)
        decided = guard.decide(str(number), slow, 0.0)
        response_s = (40.0 if slow else 10.0) * float(random.lognormal(0.0, 0.5))
        guard.ended(str(number), now=1.0, response_s=response_s, ok=True)
        assert decided.drawn or not decided.learned
    status = guard.status(1.0)
    assert status.mode is GuardMode.ON
    assert status.compared > 2_800 and status.learned < 1_600


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
