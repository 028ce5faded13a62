"""Volumes from events, and what a journal does to them that is not as it should be."""

from __future__ import annotations

import json

import numpy as np
import pytest

from hrm.forecast.history import DemandHistory
from hrm.forecast.steps import FIVE_MINUTES, HOUR
from tests.forecast.events import Events

HOUR_S = 3600.0
T0 = 1_700_000_000 // 3600 * HOUR_S
"""The beginning of an hour."""


def hours(history: DemandHistory, queue: str = "") -> list[float | None]:
    values = history.volumes(HOUR, queue).values
    return [None if np.isnan(each) else float(each) for each in values]


def read(events: Events, now: float, queues: dict[str, str] | None = None) -> DemandHistory:
    history = DemandHistory()
    history.add(events.taken(), now, lambda name: (queues or {}).get(name, ""))
    history.reached(now)
    return history


def test_tasks_are_containers_that_started_by_hour_and_queue() -> None:
    events = Events()
    events.started(T0, "a", app="one")
    events.started(T0 + 10, "b", app="two")
    events.ended(T0 + 20, "a")
    events.started(T0 + HOUR_S + 1, "c", app="one")
    history = read(events, T0 + 2 * HOUR_S, {"one": "root.etl", "two": "root.etl.night"})
    assert hours(history) == [2, 1]
    assert hours(history, "root.etl.night") == [1, 0]
    assert hours(history, "root.etl") == [2, 1]  # with what is below it
    assert hours(history, "root.et") == [0, 0]
    assert history.queues == ["root.etl", "root.etl.night"]


def test_a_node_is_busy_while_it_has_a_container() -> None:
    events = Events()
    events.started(T0, "a", node="n1")
    events.started(T0, "b", node="n1")
    events.started(T0, "c", node="n2")
    events.ended(T0 + HOUR_S / 2, "c", node="n2")
    events.ended(T0 + HOUR_S, "a", node="n1")
    events.ended(T0 + 1.5 * HOUR_S, "b", node="n1")
    history = read(events, T0 + 3 * HOUR_S)
    assert history.busy_nodes(HOUR).values == pytest.approx([1.5, 0.5, 0.0])


def test_silence_of_a_master_is_nothing_and_not_unknown() -> None:
    events = Events()
    events.started(T0, "a")
    events.ended(T0 + 5, "a")
    assert hours(read(events, T0 + 4 * HOUR_S)) == [1, 0, 0, 0]


def test_what_was_dropped_is_unknown() -> None:
    events = Events()
    events.started(T0, "a")
    events.started(T0 + HOUR_S, "b")
    events.journal(T0 + 2.5 * HOUR_S, "dropped")
    events.started(T0 + 3 * HOUR_S, "c")
    history = read(events, T0 + 4 * HOUR_S)
    assert hours(history) == [1, None, None, 1]
    # The ends of a and b may have been among it: they keep no node busy for ever.
    assert history.busy_nodes(HOUR).values[3] == pytest.approx(1.0)
    assert set(history.running) == {"c"}


def test_pages_that_had_been_removed_are_a_gap() -> None:
    events = Events()
    events.started(T0, "a")
    history = DemandHistory()
    history.add(events.taken(), T0 + 1)
    events.started(T0 + 2 * HOUR_S, "b")
    history.add(events.taken(), T0 + 3 * HOUR_S, gap=True)
    history.reached(T0 + 3 * HOUR_S)
    assert hours(history) == [None, None, 1]


def test_between_two_masters_nothing_is_known_unless_it_was_short() -> None:
    for away_s, wanted in ((60.0, [2, 0]), (2.5 * HOUR_S, [None, None, None])):
        events = Events(epoch=1)
        events.started(T0 + 1, "a")
        events.epoch, events.count = 2, 0
        events.started(T0 + 1 + away_s, "b")
        history = DemandHistory()
        history.add(events.taken(), T0 + 4 * HOUR_S)
        history.begun_s = T0
        history.reached(T0 + (2 if away_s == 60 else 3) * HOUR_S)
        assert hours(history) == wanted


def test_a_container_that_a_new_master_takes_over_is_no_new_task() -> None:
    events = Events(epoch=1)
    events.started(T0, "a")
    events.epoch, events.count = 2, 0
    events.started(T0 + 10, "a", was="")
    events.started(T0 + 10, "older", was="")  # from before the journal began
    history = read(events, T0 + HOUR_S)
    assert hours(history) == [1]
    assert set(history.running) == {"a", "older"}


@pytest.mark.parametrize("jump_s", [30 * 86_400.0, -30 * 86_400.0])
def test_a_clock_that_jumps_and_comes_back_moves_no_task_to_another_hour(jump_s: float) -> None:
    events = Events()
    for number in range(20):
        wrong_s = jump_s if 4 <= number < 7 else 0.0
        events.started(T0 + number * 360 + wrong_s, f"c{number}")
    history = read(events, T0 + 2 * HOUR_S)
    assert hours(history) == [10, 10]
    assert history.wrong_times == 3


def test_a_clock_that_is_ahead_of_the_present_does_not_stop_the_history() -> None:
    events = Events()
    events.started(T0, "a")
    events.started(T0 + 90 * 86_400.0, "b")
    history = read(events, T0 + 1800)
    assert history.until_s <= T0 + 1860 + 1
    events.started(T0 + 1900, "c")
    history.add(events.taken(), T0 + HOUR_S)
    history.reached(T0 + HOUR_S)
    assert hours(history) == [3]


def test_an_interval_of_which_little_is_unknown_stands_for_all_of_it() -> None:
    events = Events()
    for number in range(19):
        events.started(T0 + number * 180, f"c{number}")
    events.journal(T0 + 18 * 180 + 180, "dropped")  # 180 s of 3600
    history = read(events, T0 + HOUR_S)
    assert history.volumes(HOUR).values == pytest.approx([19 / 0.95])
    assert np.isnan(history.volumes(FIVE_MINUTES).values[-1])


def test_events_that_are_read_twice_count_once() -> None:
    events = Events()
    events.started(T0, "a")
    made = events.taken()
    history = DemandHistory()
    history.add(made, T0 + 1)
    history.add(made, T0 + 2)
    history.reached(T0 + HOUR_S)
    assert hours(history) == [1]


def test_the_document_has_all_of_it_and_goes_on() -> None:
    events = Events()
    events.started(T0, "a", app="one")
    events.journal(T0 + HOUR_S, "dropped")
    events.started(T0 + HOUR_S, "b", app="one")
    history = read(events, T0 + 1.5 * HOUR_S, {"one": "root.etl"})
    copy = DemandHistory.from_json(json.loads(json.dumps(history.as_json())))
    for each in (history, copy):
        each.reached(T0 + 2 * HOUR_S)
    assert copy == history
    assert copy.busy_nodes(HOUR).values == pytest.approx(
        history.busy_nodes(HOUR).values, nan_ok=True
    )


@pytest.mark.parametrize("document", [{}, {"format": 1}, {"format": 2}, {"format": 1, "tasks": 3}])
def test_what_is_no_history_is_refused(document: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"format|cannot be read"):
        DemandHistory.from_json(document)


def test_what_is_older_than_kept_is_forgotten() -> None:
    events = Events()
    events.started(T0, "a")
    history = read(events, T0 + 402 * 86_400.0)
    assert len(history.volumes(HOUR)) <= 401 * 24  # silence
    events.started(T0 + 402 * 86_400.0, "b")
    history.add(events.taken(), T0 + 403 * 86_400.0)
    history.reached(T0 + 403 * 86_400.0)
    assert [sum(each.values()) for each in history.tasks.values()] == [1]
    assert len(history.volumes(HOUR)) <= 401 * 24


@pytest.mark.parametrize("ahead_s", [30 * 86_400.0, 2 * 365 * 86_400.0])
def test_a_clock_of_the_reader_that_is_ahead_for_a_while_ruins_nothing(ahead_s: float) -> None:
    events = Events()
    for number in range(60):
        events.started(T0 + number * 360, f"c{number}")
        events.ended(T0 + number * 360 + 300, f"c{number}")
    events.started(T0 + 6 * HOUR_S, "long")
    made, right, wrong = events.taken(), DemandHistory(), DemandHistory()
    for history, now in ((right, T0 + 7 * HOUR_S), (wrong, T0 + ahead_s)):
        history.add(made, now)
        history.reached(now)
    assert len(wrong.volumes(HOUR)) <= 401 * 24
    events.started(T0 + 8 * HOUR_S, "c")
    events.ended(T0 + 8 * HOUR_S + 60, "long")
    new = events.taken()
    wrong.add(new[:1], T0 + ahead_s + 60)  # still ahead
    wrong.reached(T0 + ahead_s + 60)
    for history in (right, wrong):
        history.add(new, T0 + 9 * HOUR_S)
        history.reached(T0 + 9 * HOUR_S)
    assert hours(wrong) == hours(right)
    assert wrong.until_s == right.until_s and wrong.wrong_times == 0
    assert wrong.busy_nodes(HOUR).values == pytest.approx(right.busy_nodes(HOUR).values)


def test_silence_by_a_clock_that_was_ahead_is_taken_back_without_any_event() -> None:
    events = Events()
    events.started(T0, "a")
    history = read(events, T0 + 30 * 86_400.0)
    history.reached(T0 + HOUR_S)
    assert (history.until_s, hours(history)) == (T0 + HOUR_S, [1])
    assert sum(history.busy_s.values()) == HOUR_S


def test_a_document_of_before_has_no_time_of_its_last_event() -> None:
    document = read(_one(), T0 + HOUR_S).as_json()
    del document["event_s"]
    assert DemandHistory.from_json(document).event_s == T0 + HOUR_S


@pytest.mark.parametrize(
    "change",
    [{"until_s": float("nan")}, {"until_s": 1e300}, {"begun_s": -1.0}, {"last_id": float("inf")},
     {"gaps": [[0.0, float("inf")]]}, {"busy_s": {str(10**30): 1.0}}, {"busy_s": {"1": 1e999}}],
)  # fmt: skip
def test_numbers_that_no_history_has_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"no calendar|no number|cannot be read"):
        DemandHistory.from_json(read(_one(), T0 + HOUR_S).as_json() | change)


def _one() -> Events:
    events = Events()
    events.started(T0, "a")
    return events
