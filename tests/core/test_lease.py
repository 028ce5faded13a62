"""The scope of a stream's lease: everything, or only the units that the stream considers."""

from __future__ import annotations

from typing import Literal

import pytest

from hrm.core.messages import commands as c
from hrm.core.messages import events as e
from hrm.core.messages.claims import Claim, Decision, Entry, Outcome, Proposal
from hrm.core.queue.resource_unit import UnitQueue
from hrm.core.scheduling.cluster_view import ClusterView
from hrm.core.scheduling.negotiator import Negotiator
from hrm.core.scheduling.shared_state import SharedState
from hrm.core.vocabulary.bounds import Bounds
from hrm.core.vocabulary.feasibility import Vector
from hrm.core.vocabulary.model import (
    ApplicationId,
    ContainerId,
    NodeName,
    ResourceUnitId,
    WorkloadClass,
)
from hrm.testing.virtual import VirtualCluster, unit

BATCH, STREAM = WorkloadClass.BATCH, WorkloadClass.STREAM
NOW = 100.0
N1, N2 = ResourceUnitId("n1/cpu"), ResourceUnitId("n2/cpu")
Scope = Literal["global", "candidates"]
both_scopes = pytest.mark.parametrize("units", [None, frozenset({N1})], ids=["global", "units"])


def negotiator(bounds: Bounds | None = None) -> Negotiator:
    state = SharedState()
    for name in ("n1", "n2"):
        state.add(NodeName(name), UnitQueue(unit(name, vcores=2)))
    return Negotiator(state, bounds or Bounds())


def propose(
    subject: Negotiator,
    unit_id: ResourceUnitId,
    workload_class: WorkloadClass = BATCH,
    token: int = 0,
    scheduler: str = "s2",
    now: float = NOW,
) -> list[Outcome] | None:
    demand: Vector = (1, 1, 0, 1)
    entry = Entry(ContainerId(f"{scheduler}-{now}-{unit_id}"), workload_class, demand, 60.0)
    claims = (Claim(entry, unit_id, 0),)
    proposal = Proposal(scheduler, ApplicationId("app"), workload_class, claims, token)
    return subject.commit(proposal, now)


def decision(outcomes: list[Outcome] | None) -> Decision:
    assert outcomes is not None
    return outcomes[0].decision


def test_batch_passes_at_units_that_the_lease_does_not_lock() -> None:
    subject = negotiator()
    token = subject.lease.acquire("s1", NOW, frozenset({N1}))
    assert token is not None
    assert decision(propose(subject, N2)) is Decision.RUN
    assert propose(subject, N1) is None, "it waits for the lease"
    assert subject.lease.release("s1", token)
    (parked,) = subject.unpark()
    assert decision(subject.commit(parked, NOW)) is Decision.RUN


def test_batch_passes_nowhere_when_the_lease_locks_everything() -> None:
    subject = negotiator()
    assert subject.lease.acquire("s1", NOW) is not None
    assert propose(subject, N1) is None
    assert propose(subject, N2) is None


def test_a_stream_may_not_claim_what_it_has_not_locked() -> None:
    subject = negotiator()
    token = subject.lease.acquire("s1", NOW, frozenset({N1}))
    assert token is not None
    outcomes = propose(subject, N2, STREAM, token, "s1")
    assert decision(outcomes) is Decision.ABORT
    assert outcomes is not None
    assert "outside" in outcomes[0].reason
    assert decision(propose(subject, N1, STREAM, token, "s1")) is Decision.RUN


@both_scopes
def test_a_stale_token_is_never_honoured(units: frozenset[ResourceUnitId] | None) -> None:
    subject = negotiator(Bounds(lease_timeout_s=1.0))
    old = subject.lease.acquire("s1", NOW, units)
    assert old is not None
    late = NOW + 1.0
    assert decision(propose(subject, N1, STREAM, old, "s1", late)) is Decision.ABORT
    assert decision(propose(subject, N1, now=late)) is Decision.RUN, (
        "its time is over for batch too"
    )
    new = subject.lease.acquire("s1", late, units)
    assert new is not None
    assert decision(propose(subject, N1, STREAM, old, "s1", late)) is Decision.ABORT
    assert not subject.lease.release("s1", old)
    assert decision(propose(subject, N1, STREAM, new, "s2", late)) is Decision.ABORT, "not its own"
    assert decision(propose(subject, N1, STREAM, new, "s1", late)) is Decision.RUN


@both_scopes
def test_a_lease_is_given_back_once(units: frozenset[ResourceUnitId] | None) -> None:
    subject = negotiator()
    token = subject.lease.acquire("s1", NOW, units)
    assert token is not None
    assert subject.lease.release("s1", token)
    assert not subject.lease.release("s1", token)
    assert subject.lease.acquire("s2", NOW, units) is not None
    assert not subject.lease.release("s1", token)
    assert subject.lease.holder == "s2"


def test_candidates_are_those_with_capacity_or_all_that_are_large_enough() -> None:
    state = negotiator().state
    state.add(NodeName("n3"), UnitQueue(unit("n3", vcores=8)))
    queue = state.queue(state.rows[N1])
    queue.run(Entry(ContainerId("x"), BATCH, (2, 1, 0, 1), 60.0), NOW)
    state.refresh(state.rows[N1])
    assert ClusterView(state).candidates({(2, 1, 0, 1): 5}) == {N2, "n3/cpu"}
    assert ClusterView(state).candidates({(2, 1, 0, 1): 6}) == {N1, N2, "n3/cpu"}
    assert ClusterView(state).candidates({(4, 1, 0, 1): 1}) == {"n3/cpu"}


@pytest.mark.parametrize(("scope", "passes"), [("global", False), ("candidates", True)])
def test_batch_runs_next_to_a_stream_that_takes_its_time(
    scope: Scope, passes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stream's proposal is in transit; only the small unit that it does not fit is free."""
    cluster = VirtualCluster(
        [unit("n1", vcores=4), unit("n2", vcores=1)], schedulers=2, bounds=Bounds(lease_scope=scope)
    )
    master = cluster.master
    stream = cluster.submit(0, workload_class=STREAM)
    batch = cluster.submit(0)
    big, small = cluster.app(stream).scheduler, cluster.app(batch).scheduler
    with monkeypatch.context() as patch:
        patch.setattr(cluster.runtime, "wake", lambda scheduler: None)
        cluster.request(stream, [1, 2], resources=unit("x", vcores=2, memory_mib=10).capacity)
        cluster.request(batch, [1])
    held = master.handle(e.SchedulerWoken(now=cluster.now, scheduler=big))
    assert any(isinstance(command, c.ProposeClaims) for command in held)
    master.negotiator.state.open[master.negotiator.state.rows[N1]] = False
    (proposed,) = (
        command
        for command in master.handle(e.SchedulerWoken(now=cluster.now, scheduler=small))
        if isinstance(command, c.ProposeClaims)
    )
    master.negotiator.state.open[master.negotiator.state.rows[N1]] = True
    cluster.submit_to_master(e.ClaimsProposed(now=cluster.now, proposal=proposed.proposal))
    assert (cluster.states(batch) == {"assigned": 1}) is passes
    for command in held:
        if isinstance(command, c.ProposeClaims):
            cluster.submit_to_master(e.ClaimsProposed(now=cluster.now, proposal=command.proposal))
    cluster.settle()
    assert cluster.states(stream) == {"running": 2}
    assert cluster.states(batch) == {"running": 1}


@pytest.mark.parametrize("scope", ["global", "candidates"])
def test_streams_get_all_or_nothing_under_both_scopes(scope: Scope) -> None:
    nodes = [unit("n1", vcores=2), unit("n2", vcores=2)]
    cluster = VirtualCluster(nodes, schedulers=4, bounds=Bounds(lease_scope=scope, waiting_limit=0))
    apps = [cluster.submit(3, workload_class=STREAM) for _ in range(3)]
    cluster.settle()
    assert sorted(cluster.states(app).get("running", 0) for app in apps) == [0, 0, 3]
    for _ in apps:
        (done,) = [app for app in apps if cluster.states(app) == {"running": 3}]
        cluster.finish(done)
        cluster.advance(5)
    assert cluster.running() == 0
