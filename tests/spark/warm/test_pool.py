"""The pool of warm drivers, without processes: what is asked for, starts, and is handed over."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from hrm.spark.warm.pool import (
    FAILURES_MAX,
    KINDS_KNOWN_MAX,
    REQUESTS_MIN,
    DriverRequested,
    EndJvm,
    Event,
    HandJvm,
    JvmDeclined,
    JvmEnded,
    JvmReady,
    JvmTaken,
    KindKept,
    PoolStopped,
    PoolTicked,
    StartCold,
    StartJvm,
    WarmBounds,
    WarmDriverPool,
)

BOUNDS = WarmBounds(per_kind=1, kinds_max=2, memory_max_mib=1000, idle_s=100.0, delay_s=5.0)


def pool_with(kind: str, bounds: WarmBounds = BOUNDS) -> WarmDriverPool:
    """One JVM of ``kind`` is ready, number 1."""
    pool = WarmDriverPool(bounds)
    assert pool.handle(KindKept(now=0.0, kind=kind)) == [StartJvm(jvm=1, kind=kind)]
    assert pool.handle(JvmReady(now=10.0, jvm=1, memory_mib=400)) == []
    return pool


def test_a_jvm_serves_one_application_and_is_replaced_some_seconds_later() -> None:
    pool = pool_with("a")
    assert pool.handle(DriverRequested(now=20.0, request=7, kind="a")) == [
        HandJvm(jvm=1, request=7)
    ]
    assert pool.handle(JvmTaken(now=20.1, jvm=1)) == [], "the taker starts first"
    assert pool.wake_at_s() == 25.0
    assert pool.handle(PoolTicked(now=25.0)) == [StartJvm(jvm=2, kind="a")]
    (shown,) = pool.shown()
    assert (shown.used, shown.missed, shown.ready, shown.starting) == (1, 0, 0, 1)


def test_two_applications_that_want_the_one_jvm_get_one_warm_and_one_cold_start() -> None:
    pool = pool_with("a")
    assert pool.handle(DriverRequested(now=20.0, request=1, kind="a")) == [
        HandJvm(jvm=1, request=1)
    ]
    (refusal,) = pool.handle(DriverRequested(now=20.0, request=2, kind="a"))
    assert isinstance(refusal, StartCold)
    assert refusal.request == 2
    assert "no warm driver of its kind is ready" in refusal.why


def test_a_kind_gets_a_jvm_when_it_is_asked_for_again() -> None:
    pool = WarmDriverPool(BOUNDS)
    assert pool.handle(DriverRequested(now=0.0, request=1, kind="a")) == [
        StartCold(request=1, why="the first of its kind")
    ]
    assert pool.wake_at_s() == math.inf
    pool.handle(DriverRequested(now=1.0, request=2, kind="a"))
    assert pool.handle(PoolTicked(now=6.0)) == [StartJvm(jvm=1, kind="a")]


def test_the_kinds_asked_for_last_have_jvms_and_the_users_own_stays() -> None:
    pool = pool_with("kept")
    for request in range(REQUESTS_MIN):
        pool.handle(DriverRequested(now=20.0, request=request, kind="a"))
    assert pool.handle(PoolTicked(now=30.0)) == [StartJvm(jvm=2, kind="a")]
    pool.handle(DriverRequested(now=31.0, request=3, kind="b"))
    assert pool.handle(DriverRequested(now=32.0, request=4, kind="b"))[1:] == [EndJvm(jvm=2)]
    pool.handle(JvmEnded(now=33.0, jvm=2, why="it was not needed any more"))
    assert pool.handle(PoolTicked(now=40.0)) == [StartJvm(jvm=3, kind="b")]
    assert {shown.kind: shown.ready for shown in pool.shown()} == {"kept": 1, "a": 0, "b": 0}


def test_a_kind_that_nobody_asks_for_any_more_loses_its_jvm() -> None:
    pool = WarmDriverPool(BOUNDS)
    for request in range(REQUESTS_MIN):
        pool.handle(DriverRequested(now=0.0, request=request, kind="a"))
    pool.handle(PoolTicked(now=5.0))
    pool.handle(JvmReady(now=9.0, jvm=1, memory_mib=100))
    assert pool.wake_at_s() == 100.0
    assert pool.handle(PoolTicked(now=99.0)) == []
    assert pool.handle(PoolTicked(now=100.0)) == [EndJvm(jvm=1)]
    pool.handle(JvmEnded(now=101.0, jvm=1, why="it was not needed any more"))
    assert pool.wake_at_s() == math.inf
    assert pool.shown()[0].problem == "", "its end was no failure"


def test_memory_is_bounded_by_what_a_jvm_has_been_seen_to_take() -> None:
    pool = WarmDriverPool(WarmBounds(per_kind=3, memory_max_mib=1000, delay_s=0.0))
    pool.handle(KindKept(now=0.0, kind="a"))
    assert pool.handle(JvmReady(now=10.0, jvm=1, memory_mib=400)) == [StartJvm(jvm=2, kind="a")]
    assert pool.handle(JvmReady(now=11.0, jvm=2, memory_mib=400)) == [], "a third would be 1200"
    pool.handle(DriverRequested(now=12.0, request=1, kind="a"))
    assert pool.handle(JvmTaken(now=12.0, jvm=1)) == [StartJvm(jvm=3, kind="a")]


def test_a_jvm_that_hangs_in_its_rehearsal_is_ended_and_the_kind_is_given_up_in_the_end() -> None:
    pool = WarmDriverPool(BOUNDS)
    pool.handle(KindKept(now=0.0, kind="a"))
    now = 0.0
    for number in range(1, FAILURES_MAX + 1):
        now = pool.wake_at_s()
        commands = pool.handle(PoolTicked(now=now))
        assert commands[0] == EndJvm(jvm=number)
        now += 1.0
        pool.handle(JvmEnded(now=now, jvm=number, why="it was ended"))
        pool.handle(PoolTicked(now=now + BOUNDS.delay_s))
    assert pool.wake_at_s() == math.inf
    (refusal,) = pool.handle(DriverRequested(now=now, request=1, kind="a"))
    assert isinstance(refusal, StartCold)
    assert "not ready within 600 s" in refusal.why


def test_one_that_dies_while_it_waits_or_is_handed_over_is_replaced() -> None:
    pool = pool_with("a")
    assert pool.handle(JvmEnded(now=20.0, jvm=1, why="killed")) == []
    assert pool.handle(PoolTicked(now=25.0)) == [StartJvm(jvm=2, kind="a")]
    pool.handle(JvmReady(now=30.0, jvm=2, memory_mib=400))
    assert pool.handle(DriverRequested(now=40.0, request=1, kind="a")) == [
        HandJvm(jvm=2, request=1)
    ]
    assert pool.handle(JvmDeclined(now=40.1, jvm=2, why="other addresses")) == []
    assert pool.handle(JvmEnded(now=40.2, jvm=2, why="other addresses")) == []
    assert pool.handle(PoolTicked(now=45.2)) == [StartJvm(jvm=3, kind="a")]


def test_when_it_stops_what_waits_ends_and_nothing_else_starts() -> None:
    pool = pool_with("a")
    assert pool.handle(PoolStopped(now=20.0)) == [EndJvm(jvm=1)]
    (refusal,) = pool.handle(DriverRequested(now=21.0, request=1, kind="a"))
    assert isinstance(refusal, StartCold)
    assert pool.wake_at_s() == math.inf


def test_kinds_that_are_only_counted_are_bounded() -> None:
    pool = WarmDriverPool(BOUNDS)
    pool.handle(KindKept(now=0.0, kind="kept"))
    for number in range(2 * KINDS_KNOWN_MAX):
        pool.handle(DriverRequested(now=1.0, request=number, kind=number))
    assert len(pool.shown()) == KINDS_KNOWN_MAX
    assert "kept" in [shown.kind for shown in pool.shown()]


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["kept", "asked", "ready", "taken", "declined", "ended", "tick"]),
        st.integers(0, 4),
        st.floats(0.0, 50.0),
    ),
    max_size=60,
)


@given(STEPS)
def test_bounds_and_replies_hold_whatever_happens(steps: list[tuple[str, int, float]]) -> None:
    """Each request has one reply, none gets a JVM that another has, and bounds hold."""
    pool, now, asked = WarmDriverPool(BOUNDS), 0.0, 0
    handed: set[int] = set()
    living: dict[int, object] = {}
    ready: set[int] = set()
    for what, number, pause_s in steps:
        now += pause_s
        events: dict[str, Event] = {
            "kept": KindKept(now=now, kind=0),
            "asked": DriverRequested(now=now, request=asked, kind=number),
            "ready": JvmReady(now=now, jvm=number, memory_mib=300),
            "taken": JvmTaken(now=now, jvm=number),
            "declined": JvmDeclined(now=now, jvm=number, why="x"),
            "ended": JvmEnded(now=now, jvm=number, why="x"),
            "tick": PoolTicked(now=now),
        }
        if what in ("ready", "taken", "declined", "ended") and number not in living:
            continue
        if what == "taken" and number not in handed:
            continue
        commands = pool.handle(events[what])
        replies = [x for x in commands if isinstance(x, HandJvm | StartCold)]
        assert len(replies) == (what == "asked")
        asked += what == "asked"
        if what == "ready":
            ready.add(number)
        if what in ("taken", "ended"):
            living.pop(number)
            ready.discard(number)
        for command in commands:
            match command:
                case StartJvm():
                    living[command.jvm] = command.kind
                case HandJvm():
                    assert command.jvm in ready, "a JVM that is ready"
                    assert command.jvm not in handed, "and nobody else's"
                    handed.add(command.jvm)
                case EndJvm():
                    assert command.jvm not in handed
        assert sum(shown.starting for shown in pool.shown()) <= 1
        assert all(shown.ready + shown.starting <= BOUNDS.per_kind for shown in pool.shown())
        waiting = [shown for shown in pool.shown() if shown.ready or shown.starting]
        assert len(waiting) <= BOUNDS.kinds_max
        assert sum(shown.memory_mib for shown in waiting) <= BOUNDS.memory_max_mib
