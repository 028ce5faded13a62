"""When schedulers are woken: the latest wake of each counts, once, in order of time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hrm.core.master.wake_timers import WakeTimers


def test_a_later_command_takes_the_place_of_the_wake_before_it() -> None:
    wakes = WakeTimers()
    wakes.set("a", 20.0)
    wakes.set("a", 10.0)

    assert wakes.next_time_s == 10.0
    assert wakes.take_due(10.0) == ["a"]
    assert wakes.take_due(20.0) == []
    assert wakes.next_time_s is None


def test_each_scheduler_has_its_own_wake_and_asking_early_takes_none() -> None:
    wakes = WakeTimers()
    wakes.set("b", 12.0)
    wakes.set("a", 11.0)
    wakes.set("c", 11.0)

    assert wakes.take_due(10.9) == []
    assert wakes.take_due(11.5) == ["a", "c"]
    assert wakes.next_time_s == 12.0


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 9), st.booleans()), max_size=30))
def test_the_latest_wake_of_each_is_taken_once(steps: list[tuple[str, int, bool]]) -> None:
    wakes, latest = WakeTimers(), dict[str, float]()
    for name, at_s, take in steps:
        wakes.set(name, at_s)
        latest[name] = at_s
        if take:
            due = [x for x, y in latest.items() if y <= at_s]
            times = {x: latest.pop(x) for x in due}
            taken = wakes.take_due(at_s)
            assert sorted(taken) == sorted(due)
            assert [times[x] for x in taken] == sorted(times.values())
        assert wakes.next_time_s == min(latest.values(), default=None)
