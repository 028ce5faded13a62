"""Which ended tasks are forgotten first."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hrm.pipelines.core.forgetting import ForgettingOrder
from hrm.pipelines.core.model import TaskId


def ids(*numbers: int) -> list[TaskId]:
    return [TaskId(f"t{number}") for number in numbers]


def test_what_owes_nothing_is_forgotten_first() -> None:
    order = ForgettingOrder(1, unfetched_max=3)
    for one in ids(1, 2, 3):
        order.ended(one)
    assert order.forget() == [], "a result that nobody has is not counted among the kept"
    for one in ids(3, 1):
        order.settle(one)
    assert order.forget() == ids(3)
    for one in ids(4, 5, 6):
        order.ended(one)
    assert order.forget() == ids(2), "of those that owe something, the one that ended first"
    order.settle(TaskId("t2"))
    assert order.forget() == [], "what was forgotten does not come back"


def test_ends_of_many_bytes_are_forgotten_oldest_first_and_those_that_owe_last() -> None:
    order = ForgettingOrder(10, bytes_max=100)
    for one in ids(1, 2, 3):
        order.ended(one, 40)
    order.settle(TaskId("t3"))
    assert order.forget() == ids(3)
    assert order.held_bytes == 80
    order.ended(TaskId("t4"), 30)
    assert order.forget() == ids(1)
    order.ended(TaskId("t5"), 1_000)
    assert order.forget() == ids(2, 4, 5), "one alone may be too large"
    assert order.held_bytes == 0


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 30))), st.integers(0, 3), st.integers(0, 5))
def test_each_is_kept_or_forgotten_once(
    happenings: list[tuple[bool, int]], kept_max: int, unfetched_max: int
) -> None:
    order, ended, forgotten = (
        ForgettingOrder(kept_max, unfetched_max),
        set[TaskId](),
        list[TaskId](),
    )
    for ends, number in happenings:
        task_id = TaskId(f"t{number}")
        if ends and task_id not in ended:
            ended.add(task_id)
            order.ended(task_id)
        elif not ends:
            order.settle(task_id)
        forgotten += order.forget()
        assert len(order.settled) <= kept_max and len(order.owing) <= unfetched_max
    assert len(forgotten) == len(set(forgotten))
    assert ended == {*forgotten, *order.settled, *order.owing}
