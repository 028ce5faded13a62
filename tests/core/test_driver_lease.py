"""The lease of a driver, as its runner holds it: when it begins, and what ends it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hrm.core.submission.driver_lease import DriverLease, LeaseLimits, LeaseState, Renewal
from hrm.errors import HrmError, LimitReached, NotFound, StaleEpoch, Unavailable

LIMITS = LeaseLimits()


def held(now: float = 0.0, lease_s: float = 30.0, renew_s: float = 5.0) -> DriverLease:
    lease = DriverLease(now, LIMITS)
    lease.granted(ask(lease, now).number, lease_s=lease_s, renew_s=renew_s, now=now)
    assert lease.state is LeaseState.HELD
    return lease


def ask(lease: DriverLease, now: float) -> Renewal:
    request = lease.step(now)
    assert request is not None
    return request


def test_a_lease_counts_from_when_it_was_asked_for() -> None:
    lease = DriverLease(100.0, LIMITS)
    first = ask(lease, 100.0)
    lease.granted(first.number, lease_s=30.0, renew_s=5.0, now=104.0)
    assert lease.due_s() == 109.0
    assert not lease.has_run_out(129.9)
    assert lease.has_run_out(130.0)


def test_a_first_lease_that_is_over_when_it_arrives_begins_nothing_and_is_requested_again() -> None:
    lease = DriverLease(0.0, LIMITS)
    lease.granted(ask(lease, 0.0).number, lease_s=30.0, renew_s=5.0, now=30.0)
    assert (lease.state, lease.due_s()) == (LeaseState.ASKING, 30.0), "the next attempt may run"
    again = ask(lease, 30.0)
    lease.granted(again.number, lease_s=30.0, renew_s=5.0, now=31.0)
    assert lease.state is LeaseState.HELD
    assert lease.has_run_out(60.0)


def test_a_refusal_ends_it_and_silence_only_when_its_time_is_over() -> None:
    silent = held()
    for now in (5.0, 10.0, 20.0):
        silent.failed(ask(silent, now).number, Unavailable("away"), now)
        assert silent.state is LeaseState.HELD
    last = ask(silent, 28.0)
    assert last.timeout_s == 2.0, "no longer than the lease is good for"
    silent.failed(last.number, Unavailable("away"), 30.0)
    assert silent.step(30.0) is None
    assert silent.state is LeaseState.OVER
    assert silent.error is not None
    assert "no master has renewed" in silent.error.message
    assert "away" in silent.error.message
    for error in (StaleEpoch("another driver runs"), NotFound("no such submission")):
        refused = held()
        refused.failed(ask(refused, 5.0).number, error, 5.0)
        assert refused.error is error
        assert refused.step(6.0) is None
        assert refused.due_s() is None


def test_a_reply_that_comes_after_its_call_was_given_up_counts_for_nothing() -> None:
    lease = held()
    given_up = ask(lease, 5.0)
    lease.failed(given_up.number, Unavailable("no answer"), 10.0)
    later = ask(lease, 10.5)
    lease.granted(given_up.number, lease_s=1_000.0, renew_s=900.0, now=11.0)
    lease.failed(given_up.number, StaleEpoch("late"), 11.0)
    assert lease.awaits(later.number)
    assert lease.state is LeaseState.HELD
    lease.failed(later.number, Unavailable("no answer"), 12.0)
    assert lease.has_run_out(30.0), "the late one would have made it longer"


def test_before_the_first_lease_a_master_may_be_away_for_long_but_not_for_ever() -> None:
    lease, now, error = DriverLease(0.0, LIMITS), 0.0, LimitReached("busy")
    while lease.state is LeaseState.ASKING:
        request = ask(lease, now)
        now += request.timeout_s
        lease.failed(request.number, error, now)
        now = lease.due_s() or now
    assert lease.error is error
    assert LIMITS.start_limit_s < now < LIMITS.start_limit_s + 10.0


def test_the_end_of_the_driver_ends_it_without_a_reason() -> None:
    lease = held()
    lease.end()
    assert (lease.state, lease.error, lease.step(5.0)) == (LeaseState.OVER, None, None)


@given(
    replies=st.lists(
        st.tuples(st.floats(0.0, 6.0), st.sampled_from(["grant", "away", "busy"])), max_size=40
    ),
    lease_s=st.floats(0.5, 60.0),
)
def test_it_is_never_held_longer_than_granted(
    replies: list[tuple[float, str]], lease_s: float
) -> None:
    errors: dict[str, HrmError] = {"away": Unavailable("away"), "busy": LimitReached("busy")}
    lease, now, good_until_s = DriverLease(0.0, LIMITS), 0.0, float("-inf")
    for took_s, result in replies:
        request = lease.step(now)
        if request is None:
            break
        asked_s, now = now, now + min(took_s, request.timeout_s)
        if result == "grant":
            lease.granted(request.number, lease_s=lease_s, renew_s=lease_s / 6, now=now)
            good_until_s = asked_s + lease_s
        else:
            lease.failed(request.number, errors[result], now)
        due_s = lease.due_s()
        now = now if due_s is None else max(now, due_s)
    lease.step(max(now, good_until_s))
    assert lease.state is not LeaseState.HELD or lease.has_run_out(max(now, good_until_s))


def test_a_lease_without_an_end_is_asked_for_again_and_does_not_run_out() -> None:
    lease = held(lease_s=0.0)
    assert not lease.has_run_out(1e9)
    assert lease.due_s() == 5.0
