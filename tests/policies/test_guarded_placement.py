"""A candidate next to the placement policy in force: what it decides, and what it cannot spoil."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hrm.core.queue.resource_unit import UnitQueue
from hrm.core.scheduling.cluster_view import ClusterView
from hrm.core.scheduling.scheduler import Placement, PlacementPolicy, Scheduler
from hrm.core.scheduling.shared_state import SharedState
from hrm.core.vocabulary.bounds import Bounds
from hrm.core.vocabulary.model import (
    ApplicationId,
    ContainerState,
    NodeName,
    WorkloadClass,
    container_id_of,
)
from hrm.policies.best_fit import BestFit
from hrm.policies.fifo import Fifo
from hrm.policies.guard import Doubt, GuardBounds, GuardMode, GuardStatus, Reason, canary_place
from hrm.policies.guarded import BUDGET_EACH_S, BUDGET_S, GuardedPlacement, PlacementGuard
from hrm.policies.min_wait import MinWait
from hrm.policies.worst_fit import WorstFit
from hrm.testing.virtual import VirtualCluster, unit
from tests.policies.states import NOW, PLACEMENTS, bound_broken, entries, states

BATCH, STREAM = WorkloadClass.BATCH, WorkloadClass.STREAM
EAGER = GuardBounds(budget_s=BUDGET_S, blind_share=1.0)
"""``on`` is on from the first question."""
Place = Callable[[ClusterView, Placement, float], Any]


class Candidate:
    """One whose choice a test makes."""

    name = "candidate"

    def __init__(self, place: Place) -> None:
        self.place: Any = place


class Clock:
    """Seconds that pass as a test orders."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def made(
    candidate: PlacementPolicy | None,
    mode: GuardMode = GuardMode.ON,
    heuristic: PlacementPolicy | None = None,
    clock: Callable[[], float] = lambda: 0.0,
    bounds: GuardBounds = EAGER,
) -> tuple[GuardedPlacement, PlacementGuard]:
    guard = PlacementGuard(
        "candidate", heuristic="min-wait", origin="here", clock_s=clock, mode=mode, bounds=bounds
    )
    return guard.around(heuristic or MinWait(0), candidate), guard


def two_units() -> SharedState:
    """Row 0 is full, and row 1 is idle; both have four cores."""
    state = SharedState()
    full, idle = UnitQueue(unit("full")), UnitQueue(unit("idle"))
    for entry in entries(4, (1, 1, 0, 1), BATCH, "old"):
        full.enqueue(entry)
    full.start_all(0.0)
    assert [state.add(NodeName("full"), full), state.add(NodeName("idle"), idle)] == [0, 1]
    return state


def batch(count: int = 2, waiting_limit: int = 4, app: str = "app", **fields: Any) -> Placement:
    demand = (1, 1, 0, 1)
    named = [container_id_of(ApplicationId(app), str(number)) for number in range(count)]
    made = entries(count, demand, BATCH)
    mine = tuple(x._replace(container_id=one) for x, one in zip(made, named, strict=True))
    return Placement(BATCH, demand, mine, waiting_limit, 600.0, **fields)


def status(guard: PlacementGuard) -> GuardStatus:
    return guard.guard.status(NOW)


def columns(view: ClusterView) -> list[Any]:
    return [x.tolist() for x in (view.free, view.waiting_stream, view.waiting_batch)]


def alone(state: SharedState, placement: Placement) -> tuple[list[int | None], list[Any]]:
    """What ``min-wait`` does by itself, and its view then."""
    view = ClusterView(state)
    return MinWait(0).place(view, placement, NOW), columns(view)


# --- who decides --------------------------------------------------------------------------------


def test_a_candidate_that_is_on_places() -> None:
    policy, guard = made(Candidate(lambda view, placement, now: [1, 0]))
    view = ClusterView(two_units())
    assert policy.place(view, batch(), NOW) == [1, 0]
    assert view.waiting_batch.tolist()[:2] == [1, 0]
    assert view.free[:2, 0].tolist() == [0, 3]
    assert (status(guard).learned, status(guard).fallbacks) == (1, {})


def test_in_shadow_it_is_compared_and_changes_nothing() -> None:
    policy, guard = made(Candidate(lambda view, placement, now: [1, 1]), GuardMode.SHADOW)
    state = two_units()
    for app, limit in (("a", 4), ("b", 0)):
        view, placement = ClusterView(state), batch(waiting_limit=limit, app=app)
        assert (policy.place(view, placement, NOW), columns(view)) == alone(state, placement)
    seen = status(guard)
    assert (seen.asked, seen.learned, seen.shadowed, seen.agreed) == (2, 0, 2, 2)
    assert [(x.key, x.heuristic, x.learned) for x in seen.records] == [
        ("a", "2 at idle/cpu", "2 at idle/cpu"),
        ("b", "2 at idle/cpu", "2 at idle/cpu"),
    ]


def test_alike_containers_on_the_same_units_are_the_same_choice() -> None:
    state = SharedState()
    for name in ("n1", "n2"):
        state.add(NodeName(name), UnitQueue(unit(name)))
    chosen = [0, 1] if alone(state, batch())[0] == [1, 0] else [1, 0]
    policy, guard = made(Candidate(lambda *_: chosen), GuardMode.SHADOW)
    policy.place(ClusterView(state), batch(), NOW)
    assert (status(guard).shadowed, status(guard).agreed) == (1, 1)


def test_off_does_not_even_ask() -> None:
    asked: list[Placement] = []
    policy, guard = made(Candidate(lambda _view, x, _now: asked.append(x)), GuardMode.OFF)
    state = two_units()
    assert policy.place(ClusterView(state), batch(), NOW) == alone(state, batch())[0]
    assert (asked, status(guard).asked) == ([], 1)


def test_of_a_canary_all_containers_of_an_application_go_one_way() -> None:
    policy, guard = made(Candidate(lambda view, placement, now: [0] * 2), GuardMode.CANARY_50)
    state, apps = two_units(), [f"app-{number}" for number in range(200)]
    for _ in range(2):
        chosen = {app: policy.place(ClusterView(state), batch(app=app), NOW) for app in apps}
        assert {app for app, rows in chosen.items() if rows == [0, 0]} == {
            app for app in apps if canary_place(app) < 0.5
        }
    assert 0.35 < status(guard).learned / status(guard).asked < 0.65


def test_schedulers_share_one_guard_and_have_a_candidate_each() -> None:
    guard = PlacementGuard(
        "worst-fit", heuristic="min-wait", origin="here", clock_s=lambda: 0.0, bounds=EAGER
    )
    pairs = [guard.around(MinWait(index)) for index in range(3)]
    assert guard.loaded([WorstFit(index) for index in range(3)]) == ""
    for pair in pairs:
        pair.place(ClusterView(two_units()), batch(), NOW)
    assert status(guard).asked == 3
    assert len({id(pair.candidate) for pair in pairs}) == 3


def test_a_scheduler_sees_the_policy_in_force() -> None:
    policy, _ = made(Candidate(lambda *_: []), heuristic=Fifo(0))
    assert (policy.name, policy.strict_order) == ("fifo", True)
    assert Scheduler("one", policy, Bounds()).strict_order
    assert not made(BestFit(0))[0].strict_order


# --- what does not count ------------------------------------------------------------------------


def raising(error: BaseException) -> Place:
    def place(view: ClusterView, placement: Placement, now: float) -> list[int | None]:
        raise error

    return place


class Mute(Exception):
    """An error that cannot even be shown."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


def endless(view: ClusterView, placement: Placement, now: float) -> Any:
    while True:
        yield 1


def writes(view: ClusterView, placement: Placement, now: float) -> list[int | None]:
    view.free[1] = 0
    return [1, 1]


def _unreasonable() -> Doubt:
    doubt = Doubt(Reason.STALE, "unsure")
    doubt.reason = "made up"  # type: ignore[assignment]
    return doubt


@pytest.mark.parametrize(
    ("place", "reason", "detail"),
    [
        (lambda *_: None, Reason.SHAPE, "it returned a NoneType"),
        (lambda *_: 7, Reason.SHAPE, "it returned a int"),
        (lambda *_: [1], Reason.SHAPE, "1 rows for 2 containers"),
        (lambda *_: [1, 1, 1], Reason.SHAPE, "more than 2 rows for 2 containers"),
        (endless, Reason.SHAPE, "more than 2"),
        (lambda *_: [1, "idle"], Reason.SHAPE, "it returned a str for a row"),
        (lambda *_: [1, 0.5], Reason.SHAPE, "it returned a float for a row"),
        (lambda *_: np.array([1.0, np.nan]), Reason.NOT_FINITE, "nan"),
        (lambda *_: [1, float("inf")], Reason.NOT_FINITE, "inf"),
        (lambda *_: [1, -1], Reason.VALUE, "there is no row -1; rows are 0 to 15"),
        (lambda *_: [1, 16], Reason.VALUE, "there is no row 16"),
        (lambda *_: [1, 10**5000], Reason.VALUE, "beyond"),
        (lambda *_: [1, 9], Reason.INFEASIBLE, "row 9 is not in use"),
        (lambda *_: [1, 2], Reason.INFEASIBLE, "row 2 is closed"),
        (lambda *_: [1, 3], Reason.INFEASIBLE, "row 3 is too small"),
        (lambda *_: [None, None], Reason.UNPLACED, "0 of 2 got a place, min-wait has one for 2"),
        (writes, Reason.FAULT, "ValueError: assignment destination is read-only"),
        (raising(ZeroDivisionError("by 0")), Reason.FAULT, "ZeroDivisionError: by 0"),
        (raising(SystemExit(3)), Reason.FAULT, "SystemExit: 3"),
        (raising(Mute()), Reason.FAULT, "Mute: no text"),
        (raising(RecursionError("x" * 9_999)), Reason.FAULT, "RecursionError"),
        (raising(Doubt(Reason.STALE, "unsure")), Reason.STALE, "unsure"),
        (raising(_unreasonable()), Reason.FAULT, "unsure"),
    ],
)
@pytest.mark.parametrize("mode", [GuardMode.ON, GuardMode.SHADOW])
def test_whatever_it_does_the_policy_in_force_decides_and_the_reason_counts(
    place: Place, reason: Reason, detail: str, mode: GuardMode
) -> None:
    policy, guard = made(Candidate(place), mode)
    state = two_units()
    for name, vcores in (("closed", 4), ("small", 0)):
        state.add(NodeName(name), UnitQueue(unit(name, vcores)))
    state.set_open(unit("closed").unit_id, False)
    view = ClusterView(state)
    assert (policy.place(view, batch(), NOW), columns(view)) == alone(state, batch())
    assert status(guard).fallbacks == {reason.value: 1}
    assert detail in status(guard).last
    assert len(status(guard).last) < 300


def test_a_view_that_it_spoils_is_its_own() -> None:
    """Columns that are writable again, reservations, attributes, queues: all gone with its view."""

    def spoils(view: ClusterView, placement: Placement, now: float) -> list[int | None]:
        for column in (view.free, view.open, view.total, view.waiting_batch, view.preempts):
            if column.flags.owndata:
                column.flags.writeable = True
                column[:] = 0
        for entry in placement.entries:
            view.apply(1, entry, now)
            view.apply(0, entry, now)
        view.image(1)
        view.open = np.zeros_like(view.open)
        view.keep_rows(np.zeros_like(view.open))
        view._table[:] = 0
        return [1, 1]

    for mode in (GuardMode.SHADOW, GuardMode.ON):
        policy, _ = made(Candidate(spoils), mode)
        state = two_units()
        view = ClusterView(state)
        for number in range(3):
            view.renew()
            placement = batch(app=f"app-{number}")
            assert policy.place(view, placement, NOW) == [1, 1]
            assert columns(view)[0][:2] == [[0, 8188, 0, 0], [2, 8190, 0, 2]]
            assert view.open[:2].all() and not view.open.flags.writeable
            assert state.open[:2].all() and state.total[0, 0] == 4


def test_one_that_is_slow_does_not_count_and_is_left_alone_for_a_minute() -> None:
    clock, took_s = Clock(), [0.0]

    def slow(view: ClusterView, placement: Placement, now: float) -> list[int | None]:
        clock.now += took_s[0]
        return [1] * len(placement.entries)

    policy, guard = made(Candidate(slow), clock=clock)

    def fallbacks(seconds: float, count: int, at: float) -> dict[str, int]:
        took_s[0] = seconds
        policy.place(ClusterView(two_units()), batch(count), at)
        return status(guard).fallbacks

    assert fallbacks(BUDGET_S + BUDGET_EACH_S, 1, 0.0) == {}
    assert fallbacks(BUDGET_S + 1.1 * BUDGET_EACH_S, 1, 0.0) == {"over-budget": 1}
    assert fallbacks(BUDGET_S + 4 * BUDGET_EACH_S, 4, 0.0) == {"over-budget": 1}
    for _ in range(3):
        fallbacks(1.0, 1, 0.0)
    assert status(guard).fallbacks == {"over-budget": 4}
    assert fallbacks(0.0, 1, 59.0) == {"over-budget": 4, "breaker-open": 1}
    assert fallbacks(0.0, 1, 61.0) == {"over-budget": 4, "breaker-open": 1}
    assert status(guard).learned == 3


def test_one_that_leaves_some_for_later_may_but_not_of_what_starts_together() -> None:
    policy, guard = made(Candidate(lambda *_: [None, 1]))
    assert policy.place(ClusterView(two_units()), batch(), NOW) == [None, 1]
    together = batch(waiting_limit=0, together=True)
    assert policy.place(ClusterView(two_units()), together, NOW) == [1, 1]
    assert status(guard).fallbacks == {"unplaced": 1}


def test_in_strict_order_none_overtakes() -> None:
    policy, guard = made(Candidate(lambda *_: [None, 1]), heuristic=Fifo(0))
    policy.candidate = Candidate(lambda *_: [None, 1])
    assert policy.place(ClusterView(two_units()), batch(), NOW) == [1, 1]
    assert status(guard).fallbacks == {"infeasible": 1}


def test_none_waits_where_the_negotiator_would_refuse_it() -> None:
    policy, guard = made(Candidate(lambda *_: [0, 0, 0]))
    state = two_units()
    assert policy.place(ClusterView(state), batch(3, waiting_limit=3), NOW) == [0, 0, 0]
    assert policy.place(ClusterView(state), batch(3, waiting_limit=2), NOW) == [1, 1, 1]
    assert status(guard).fallbacks == {"infeasible": 1}
    assert "none may wait any more at full/cpu" in status(guard).last


def test_what_is_closed_for_this_round_stays_closed() -> None:
    policy, guard = made(Candidate(lambda *_: [1, 1]))
    state = two_units()
    view, closed = ClusterView(state), ClusterView(state)
    for each in (view, closed):
        each.avoid(frozenset({NodeName("idle")}))
        each.open_to((1, 1, 0, 1))
    expected = MinWait(0).place(closed, batch(), NOW)
    assert policy.place(view, batch(), NOW) == expected == [0, 0]
    assert "row 1 is closed in this round" in status(guard).last


ROWS = st.lists(st.one_of(st.none(), st.integers(-1, 7)), min_size=12, max_size=12)


@settings(max_examples=150, deadline=None)
@given(states(), PLACEMENTS, ROWS, st.booleans())
def test_only_what_is_feasible_is_ever_proposed(
    state: SharedState, placement: Placement, rows: list[int | None], repeats: bool
) -> None:
    """Any rows at all: what counts is sound, or what the heuristic does by itself, and the view has
    got it."""
    rows = rows[: len(placement.entries)] if not repeats else rows[:1] * len(placement.entries)
    policy, guard = made(Candidate(lambda *_: rows))
    view = ClusterView(state)
    chosen = policy.place(view, placement, NOW)
    if status(guard).fallbacks:
        assert (chosen, columns(view)) == alone(state, placement)
        return
    assert chosen == rows
    replayed = ClusterView(state)
    for row, entry in zip(chosen, placement.entries, strict=True):
        if row is not None:
            assert state.refusal(row, placement.demand) == ""
            assert bound_broken(replayed, placement, row) == ""
            replayed.apply(row, entry, NOW)
    assert columns(view) == columns(replayed)


def test_a_policy_in_force_that_fails_is_reported_as_without_a_candidate() -> None:
    """Its rubbish goes to the scheduler as it is; what it raises is raised."""
    policy, _ = made(BestFit(0), GuardMode.SHADOW, Candidate(lambda *_: ["rubbish", None]))
    chosen: list[Any] = policy.place(ClusterView(two_units()), batch(), NOW)
    assert chosen == ["rubbish", None]
    policy, _ = made(BestFit(0), GuardMode.SHADOW, Candidate(raising(ZeroDivisionError("x"))))
    with pytest.raises(ZeroDivisionError):
        policy.place(ClusterView(two_units()), batch(), NOW)


# --- candidates that do not load ----------------------------------------------------------------


class Asking(Candidate):
    """One that asks for what is known of tenants, and may fail then."""

    def __init__(self, error: Exception | None = None) -> None:
        super().__init__(lambda *_: [1, 1])
        self.known: list[object] = []
        self._error = error

    def learns_from(self, co_running: object) -> None:
        self.known.append(co_running)
        if self._error is not None:
            raise self._error


def test_without_a_candidate_the_policy_in_force_decides_and_the_reason_is_shown() -> None:
    policy, guard = made(None)
    state = two_units()
    assert policy.place(ClusterView(state), batch(), NOW) == alone(state, batch())[0]
    guard.missed("it is of no use")
    policy.place(ClusterView(state), batch(), NOW)
    assert status(guard).fallbacks == {"not-loaded": 2}
    assert status(guard).last == "not-loaded: it is of no use"


@pytest.mark.parametrize(
    ("heuristic", "candidate", "why"),
    [
        (MinWait(0), Fifo(0), "fifo has strict_order = True, which min-wait has not"),
        (Fifo(0), MinWait(0), "min-wait has not strict_order = True, which fifo has"),
        (MinWait(0), Asking(KeyError("tenant")), "KeyError: 'tenant'"),
    ],
)
def test_one_that_cannot_be_used_is_not(
    heuristic: PlacementPolicy, candidate: PlacementPolicy, why: str
) -> None:
    policy, guard = made(None, heuristic=heuristic)
    policy.learns_from("what is known")  # type: ignore[arg-type]
    assert why in guard.loaded([candidate])
    policy.place(ClusterView(two_units()), batch(), NOW)
    assert status(guard).fallbacks == {"not-loaded": 1}


def test_both_are_given_what_the_master_knows_whichever_comes_first() -> None:
    first, late, heuristic = Asking(), Asking(), Asking()
    known: Any = object()
    made(first, heuristic=heuristic)[0].learns_from(known)
    assert first.known == heuristic.known == [known]
    policy, guard = made(None)
    policy.learns_from(known)
    assert (guard.loaded([late]), late.known) == ("", [known])


# --- how containers fare ------------------------------------------------------------------------


def moves(guard: PlacementGuard, placement: Placement, state: ContainerState, now: float) -> None:
    watch = guard.watching()
    for entry in placement.entries:
        watch(("container", entry.container_id, None, ContainerState.ASSIGNED, state, now, "test"))


def test_waits_are_compared_with_what_was_expected() -> None:
    """Those of the heuristic start at once, as expected; the candidate's wait for what runs."""
    bounds = GuardBounds(budget_s=BUDGET_S, blind_share=1.0, samples_min=2)
    policy, guard = made(Candidate(lambda *_: [0, 0]), GuardMode.OFF, bounds=bounds)
    for app, mode, wait_s in (("a", GuardMode.SHADOW, 0.0), ("b", GuardMode.ON, 8.0)):
        guard.guard.set_mode(mode)
        policy.place(ClusterView(two_units()), batch(app=app), NOW)
        moves(guard, batch(app=app), ContainerState.WAITING, NOW)
        moves(guard, batch(app=app), ContainerState.RUNNING, NOW + wait_s)
        moves(guard, batch(app=app), ContainerState.ENDED, NOW + 50.0)
    seen = status(guard)
    assert (seen.compared, seen.reference_compared) == (2, 2)
    assert (seen.ratio_mean, seen.ratio_p95) == pytest.approx((9.0, 9.0))
    assert (seen.reference_mean, seen.reference_p95) == pytest.approx((1.0, 1.0))


def test_a_wait_begins_with_the_first_proposal_and_a_lost_one_counts_as_long_as_it_was() -> None:
    bounds = GuardBounds(budget_s=BUDGET_S, blind_share=1.0, samples_min=1)
    policy, guard = made(Candidate(lambda *_: [1]), bounds=bounds)
    for now in (NOW, NOW + 4.0):  # the first is not committed
        policy.place(ClusterView(two_units()), batch(1), now)
    moves(guard, batch(1), ContainerState.ENDED, NOW + 9.0)
    assert status(guard).ratio_mean == pytest.approx(10.0)
    policy.place(ClusterView(two_units()), batch(1, app="b"), NOW)
    moves(guard, batch(1, app="b"), ContainerState.ENDED, NOW)  # it has waited no longer than that
    assert status(guard).compared == 1
    watch = guard.watching()
    watch(("node", "n1", None, None, ContainerState.RUNNING, NOW, "of another kind"))
    watch(("container", "unknown", None, None, ContainerState.RUNNING, NOW, "of no question"))
    assert status(guard).compared == 1


def test_the_watch_behind_it_gets_all_moves() -> None:
    got: list[Any] = []
    _, guard = made(None)
    guard.watching(got.append)(("node", "n1", None, None, ContainerState.RUNNING, NOW, "why"))
    assert [move[1] for move in got] == ["n1"]


def test_one_whose_containers_wait_longer_goes_back_to_shadow() -> None:
    policy, guard = made(Candidate(lambda view, x, _: [0] * len(x.entries)), GuardMode.CANARY_50)
    rolled: list[bool] = []
    guard.guard.on_roll_back = lambda: rolled.append(True)
    now, by_candidate = NOW, 0
    while guard.guard.mode is GuardMode.CANARY_50 and now < NOW + 5_000:
        placement = batch(app=f"app-{now}")
        rows = policy.place(ClusterView(two_units()), placement, now)
        by_candidate += 2 * (rows == [0, 0])
        moves(guard, placement, ContainerState.RUNNING, now + (9.0 if rows == [0, 0] else 0.0))
        now += 5.0
    assert guard.guard.mode is GuardMode.SHADOW
    assert rolled == [True]
    assert status(guard).fallbacks["watchdog"] == 1
    bounds = GuardBounds()
    assert bounds.watch_tasks <= by_candidate <= bounds.watch_tasks + 2 * bounds.samples_min


# --- a whole cluster ----------------------------------------------------------------------------


def history(
    policy: Callable[[int], PlacementPolicy], watch: Any = None, *, restart: bool = False
) -> list[tuple[str, str, float]]:
    """Where each container went, and when it ran: batch and a stream, more than fits."""
    nodes = [unit("n1"), unit("n2", vcores=6), unit("n3", vcores=2)]
    cluster = VirtualCluster(nodes, policy=policy, run_s=3.0, watch=watch)
    apps = [cluster.submit(15), cluster.submit(4, workload_class=STREAM), cluster.submit(9)]
    cluster.advance(4)
    apps.append(cluster.submit(7))
    cluster.advance(100)
    assert cluster.running() == 0
    for scheduler in cluster.master.placement.schedulers.values():
        assert scheduler.policy_faults == 0
    return [
        (x.container_id, x.unit_id, x.started_at_s)
        for app in apps
        for x in sorted(cluster.app(app).ended, key=lambda x: x.container_id)
    ]


def around(
    candidate: Callable[[int], PlacementPolicy], mode: GuardMode
) -> tuple[Callable[[int], PlacementPolicy], PlacementGuard]:
    guard = PlacementGuard(
        "candidate", heuristic="min-wait", origin="here", clock_s=lambda: 0.0, mode=mode,
        bounds=EAGER,
    )  # fmt: skip
    return (lambda index: guard.around(MinWait(index), candidate(index))), guard


@pytest.mark.parametrize("candidate", [BestFit, WorstFit])
def test_in_shadow_a_cluster_runs_as_without_a_candidate(
    candidate: Callable[[int], PlacementPolicy],
) -> None:
    policy, guard = around(candidate, GuardMode.SHADOW)
    assert history(policy, guard.watching()) == history(MinWait) != history(candidate)
    seen = status(guard)
    assert seen.shadowed == seen.asked > seen.agreed
    assert (seen.compared, seen.learned) == (0, 0)
    assert seen.reference_compared >= 20
    assert seen.reference_mean < 3.0


@pytest.mark.parametrize("candidate", [BestFit, WorstFit])
def test_that_is_on_a_cluster_runs_as_with_the_candidate_alone(
    candidate: Callable[[int], PlacementPolicy],
) -> None:
    policy, guard = around(candidate, GuardMode.ON)
    assert history(policy, guard.watching()) == history(candidate) != history(MinWait)
    seen = status(guard)
    assert seen.learned == seen.asked > 0
    assert (seen.fallbacks, seen.reference_compared) == ({}, 0)
    assert seen.compared >= 20


def test_one_that_returns_rubbish_leaves_a_cluster_as_it_is_without_it() -> None:
    def rubbish(index: int) -> PlacementPolicy:
        questions = itertools.count(2 * index)

        def place(view: ClusterView, placement: Placement, now: float) -> Sequence[Any]:
            kind = next(questions) % 4
            if kind == 0:
                raise RuntimeError("no")
            if kind == 1:
                return []
            row: Any = (-1, 99)[kind - 2]
            return [row] * len(placement.entries)

        return Candidate(place)

    policy, guard = around(rubbish, GuardMode.ON)
    assert history(policy, guard.watching()) == history(MinWait)
    assert set(status(guard).fallbacks) == {"fault", "wrong-shape", "value-out-of-range"}
    assert status(guard).learned == 0
