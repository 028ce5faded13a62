"""The table of conflicts, row by row, and the lease."""

from __future__ import annotations

import math
from copy import deepcopy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hrm.core.invariants import unit_violations
from hrm.core.messages.claims import Claim, Decision, Entry, Outcome, Proposal
from hrm.core.queue.resource_unit import UnitQueue
from hrm.core.scheduling.negotiator import Negotiator
from hrm.core.scheduling.shared_state import SharedState
from hrm.core.vocabulary.bounds import Bounds
from hrm.core.vocabulary.feasibility import Vector, leaves
from hrm.core.vocabulary.model import (
    ApplicationId,
    ContainerId,
    NodeName,
    ResourceUnitId,
    WorkloadClass,
)
from hrm.testing.virtual import unit

BATCH, STREAM = WorkloadClass.BATCH, WorkloadClass.STREAM
NOW = 100.0
UNIT = ResourceUnitId("n1/cpu")
CLASSES = st.sampled_from(list(WorkloadClass))
DURATIONS = st.floats(1.0, 100.0)


def negotiator(vcores: int = 2, bounds: Bounds | None = None) -> Negotiator:
    state = SharedState()
    state.add(NodeName("n1"), UnitQueue(unit("n1", vcores=vcores)))
    return Negotiator(state, bounds or Bounds())


def claim(name: str, vcores: int = 1, workload_class: WorkloadClass = BATCH) -> Claim:
    demand: Vector = (vcores, 1, 0, 1)
    return Claim(Entry(ContainerId(name), workload_class, demand, 60.0), UNIT, 0)


def propose(
    subject: Negotiator, *claims: Claim, token: int = 0, scheduler: str = "s1", gang: int = 0
) -> list[Outcome] | None:
    workload_class = claims[0].entry.workload_class
    proposal = Proposal(scheduler, ApplicationId("app"), workload_class, claims, token, gang)
    return subject.commit(proposal, NOW)


def decisions(outcomes: list[Outcome] | None) -> list[Decision]:
    assert outcomes is not None
    return [outcome.decision for outcome in outcomes]


def test_a_claim_that_fits_runs_and_one_that_lost_the_race_queues() -> None:
    subject = negotiator(vcores=2)
    assert decisions(propose(subject, claim("a", 2))) == [Decision.RUN]
    assert decisions(propose(subject, claim("b", 1))) == [Decision.QUEUE]
    queue = subject.state.find(UNIT)
    assert queue is not None
    assert list(queue.batch_waiting) == ["b"]


def test_batch_claims_are_committed_one_by_one() -> None:
    subject = negotiator(vcores=2, bounds=Bounds(waiting_limit=1))
    outcomes = propose(subject, claim("a", 2), claim("b"), claim("c"), claim("d", 64))
    assert decisions(outcomes) == [
        Decision.RUN,
        Decision.QUEUE,
        Decision.ABORT,
        Decision.ABORT,
    ]
    assert outcomes is not None
    assert "waiting_limit" in outcomes[2].reason
    assert "too small" in outcomes[3].reason


def test_a_queue_whose_wait_is_too_long_aborts() -> None:
    subject = negotiator(vcores=1, bounds=Bounds(wait_max_s=100.0))
    claims = [claim("a"), claim("b"), claim("c")]
    outcomes = propose(subject, *claims)
    assert decisions(outcomes) == [Decision.RUN, Decision.QUEUE, Decision.ABORT]


def test_a_unit_that_is_gone_or_closed_aborts() -> None:
    subject = negotiator()
    subject.state.set_open(UNIT, False)
    assert decisions(propose(subject, claim("a"))) == [Decision.ABORT]
    subject.state.remove(UNIT)
    outcomes = propose(subject, claim("a"))
    assert decisions(outcomes) == [Decision.ABORT]
    assert outcomes is not None
    assert "no longer exists" in outcomes[0].reason


def test_the_same_container_is_not_granted_twice() -> None:
    subject = negotiator()
    propose(subject, claim("a"))
    assert decisions(propose(subject, claim("a"))) == [Decision.ABORT]


def test_the_gang_of_a_stream_is_all_or_nothing() -> None:
    subject = negotiator(vcores=2, bounds=Bounds(waiting_limit=0))
    token = subject.lease.acquire("s1", NOW)
    assert token is not None
    claims = [claim("a", 2, STREAM), claim("b", 1, STREAM)]
    assert decisions(propose(subject, *claims, token=token, gang=2)) == [Decision.ABORT] * 2
    queue = subject.state.find(UNIT)
    assert queue is not None
    assert queue.free == queue.capacity
    outcomes = propose(subject, *claims, token=token)
    assert decisions(outcomes) == [Decision.RUN, Decision.ABORT], "later ones are each by itself"


def test_batch_parks_while_a_stream_holds_the_lease() -> None:
    subject = negotiator()
    token = subject.lease.acquire("s1", NOW)
    assert token is not None
    assert propose(subject, claim("a"), scheduler="s2") is None
    assert subject.unpark() == []
    assert subject.lease.release("s1", token)
    (parked,) = subject.unpark()
    assert decisions(subject.commit(parked, NOW)) == [Decision.RUN]


def test_parking_is_bounded() -> None:
    subject = negotiator(bounds=Bounds(parked_proposals_limit=1))
    subject.lease.acquire("s1", NOW)
    assert propose(subject, claim("a"), scheduler="s2") is None
    assert decisions(propose(subject, claim("b"), scheduler="s3")) == [Decision.ABORT]


def test_an_expired_lease_commits_nothing() -> None:
    subject = negotiator(bounds=Bounds(lease_timeout_s=1.0))
    token = subject.lease.acquire("s1", NOW - 2.0)
    assert token is not None
    outcomes = propose(subject, claim("a", 1, STREAM), token=token)
    assert decisions(outcomes) == [Decision.ABORT]
    assert outcomes is not None
    assert "lease" in outcomes[0].reason


def test_an_old_token_is_distinguished_from_the_new_one() -> None:
    subject = negotiator(bounds=Bounds(lease_timeout_s=1.0))
    old = subject.lease.acquire("s1", NOW - 2.0)
    new = subject.lease.acquire("s2", NOW)
    assert old is not None
    assert new is not None
    assert new > old
    assert decisions(propose(subject, claim("a", 1, STREAM), token=old)) == [Decision.ABORT]
    assert not subject.lease.release("s1", old)
    assert subject.lease.holds("s2", new, NOW)


def test_the_lease_goes_round_in_order_of_asking() -> None:
    lease = negotiator().lease
    token = lease.acquire("s1", NOW)
    assert token is not None
    assert lease.acquire("s2", NOW) is None
    assert lease.acquire("s3", NOW) is None
    assert lease.release("s1", token)
    assert not lease.release("s1", token), "a lease is given back once"
    assert lease.acquire("s3", NOW) is None, "s2 asked first"
    assert lease.acquire("s2", NOW) is not None


def played(queue: UnitQueue, entry: Entry) -> float:
    """How long ``entry`` waits at the unit, in seconds, if batch runs as long as declared and
    streams without end."""
    queue, now = deepcopy(queue), NOW
    queue.enqueue(entry)
    queue.start_all(now)
    while entry.container_id not in queue.running:
        ends = {
            x: k.started_at_s + k.duration_s
            for x, k in queue.running.items()
            if k.workload_class is BATCH
        }
        if not ends:
            return math.inf
        first = min(ends, key=lambda x: ends[x])
        now = max(now, ends[first])
        queue.remove(first)
        queue.start_all(now)
    return now - NOW


@settings(max_examples=200, deadline=None)
@given(
    running=st.lists(st.tuples(st.integers(1, 3), DURATIONS), max_size=4),
    claims=st.lists(st.tuples(st.integers(1, 3), DURATIONS, CLASSES), min_size=1, max_size=12),
    wait_max_s=st.sampled_from([5.0, 30.0, 90.0]),
    waiting_limit=st.integers(0, 5),
)
def test_none_is_committed_to_a_wait_beyond_the_bound(
    running: list[tuple[int, float]],
    claims: list[tuple[int, float, WorkloadClass]],
    wait_max_s: float,
    waiting_limit: int,
) -> None:
    """Each claim is compared with what would happen at the unit if it were admitted."""
    bounds = Bounds(wait_max_s=wait_max_s, waiting_limit=waiting_limit)
    subject = negotiator(vcores=4, bounds=bounds)
    queue = subject.state.queue(0)
    for number, (vcores, duration_s) in enumerate(running):
        entry = claim(f"r{number}", vcores).entry._replace(duration_s=duration_s)
        if queue.runs_at_once(entry.demand, BATCH):
            queue.run(entry, NOW - 1.0)
    subject.state.refresh(0)
    for number, (vcores, duration_s, workload_class) in enumerate(claims):
        asked = claim(f"c{number}", vcores, workload_class)
        asked = asked._replace(entry=asked.entry._replace(duration_s=duration_s))
        wait_s, waiting = played(queue, asked.entry), queue.waiting_count
        at_once = queue.runs_at_once(asked.entry.demand, workload_class)
        within = wait_s < wait_max_s and waiting < waiting_limit
        if workload_class is STREAM:
            within = leaves(queue.stream_headroom, asked.entry.demand) and waiting_limit > 0
        token = subject.lease.acquire("s1", NOW) if workload_class is STREAM else 0
        assert token is not None
        outcomes = propose(subject, asked, token=token)
        assert outcomes is not None
        (outcome,) = outcomes
        subject.lease.release("s1", token)
        if at_once:
            assert outcome.decision is Decision.RUN
        elif within:
            assert outcome.decision is Decision.QUEUE
        else:
            assert outcome.decision is Decision.ABORT
            whys = ("waiting_limit", "wait_max_s", "streams and drivers hold")
            assert any(why in outcome.reason for why in whys)
            assert asked.entry.container_id not in queue
        assert unit_violations(queue) == []


@pytest.mark.parametrize("workload_class", [BATCH, STREAM])
def test_a_stream_passes_batch_waiters_and_batch_does_not(workload_class: WorkloadClass) -> None:
    subject = negotiator(vcores=4)
    propose(subject, claim("running", 3), claim("waiting", 4))
    token = subject.lease.acquire("s1", NOW) if workload_class is STREAM else 0
    assert token is not None
    outcomes = propose(subject, claim("new", 1, workload_class), token=token)
    expected = Decision.RUN if workload_class is STREAM else Decision.QUEUE
    assert decisions(outcomes) == [expected]
