"""A timer that is set after every event: only the latest setting counts, once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hrm.core.vocabulary.latest_timer import MIN_DELAY_S, LatestTimer, Ring

NOW = 100.0


def test_a_ring_counts_once_and_not_before_its_time() -> None:
    timer = LatestTimer()
    ring = timer.set(NOW + 5.0, NOW)

    assert ring is not None
    assert ring.at_s == NOW + 5.0
    assert timer.rings(ring)
    assert not timer.rings(ring)


def test_what_is_due_rings_a_little_later() -> None:
    ring = LatestTimer().set(NOW - 5.0, NOW)

    assert ring is not None
    assert ring.at_s == NOW + MIN_DELAY_S


def test_a_ring_that_was_taken_back_is_none() -> None:
    timer = LatestTimer()
    ring = timer.set(NOW, NOW)
    assert ring is not None

    assert timer.set(None, NOW) is None
    assert not timer.rings(ring)


@given(st.lists(st.sampled_from(["set", "unset", "ring"]), max_size=30), st.data())
def test_of_all_rings_only_the_latest_counts(steps: list[str], data: st.DataObject) -> None:
    timer, planned = LatestTimer(), list[Ring]()
    latest: Ring | None = None
    for step in steps:
        if step == "ring" and planned:
            ring = data.draw(st.sampled_from(planned))
            assert timer.rings(ring) is (ring is latest)
            latest = None if ring is latest else latest
        elif step != "ring":
            latest = timer.set(NOW if step == "set" else None, NOW)
            planned += [] if latest is None else [latest]
