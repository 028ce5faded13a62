"""Streams that find no capacity: what they wait for, and who may use it meanwhile."""

from __future__ import annotations

import pytest

from hrm.core.master.explain import explain
from hrm.core.messages import commands as c
from hrm.core.messages import events as e
from hrm.core.messages.claims import Proposal
from hrm.core.vocabulary.model import ApplicationId, Resources, WorkloadClass
from hrm.testing.virtual import VirtualCluster, unit

STREAM, BATCH = WorkloadClass.STREAM, WorkloadClass.BATCH
EACH = pytest.mark.parametrize("schedulers", [1, 2, 6])


def cores(many: int) -> Resources:
    return Resources(many, 64 * many)


def cluster_of(nodes: int, vcores: int, schedulers: int) -> VirtualCluster:
    return VirtualCluster(
        [unit(f"n{x}", vcores, 1024 * vcores) for x in range(nodes)], schedulers=schedulers
    )


def states(cluster: VirtualCluster, *apps: ApplicationId) -> list[dict[str, int]]:
    return [cluster.states(app) for app in apps]


@EACH
def test_batch_takes_what_streams_that_wait_for_streams_cannot_use(schedulers: int) -> None:
    cluster = cluster_of(2, 10, schedulers)
    first = cluster.submit(2, cores(7), STREAM)
    cluster.settle()
    second = cluster.submit(2, cores(4), STREAM)
    cluster.settle()
    batch = cluster.submit(6, cores(1), BATCH)
    cluster.advance(5)
    assert states(cluster, first, second, batch) == [
        {"running": 2}, {"pending": 2}, {"running": 6},
    ]  # fmt: skip
    cluster.finish(first)
    cluster.advance(30)
    assert states(cluster, second)[0] == {"running": 2}, "for it batch is preempted, where needed"


@EACH
def test_a_batch_application_that_turns_out_to_be_a_stream_stops_no_batch(schedulers: int) -> None:
    cluster = cluster_of(1, 10, schedulers)
    stream = cluster.submit(1, cores(7), STREAM)
    cluster.settle()
    late = cluster.submit(0, name="late")
    cluster.request(late, [1], cores(3))
    cluster.settle()
    cluster.request(late, [2], cores(3))
    other = cluster.submit(3, cores(1), BATCH)
    cluster.settle()
    seen = e.WorkloadClassObserved(
        now=cluster.now, application_id=late, workload_class=STREAM, evidence="a query"
    )
    cluster.submit_to_master(seen)
    cluster.advance(10)
    cluster.end_process(late, 1)
    cluster.advance(10)
    assert states(cluster, stream) == [{"running": 1}]
    assert states(cluster, other) == [{"running": 3}]


@pytest.mark.parametrize("waits_s", [1.0, 7.0])
def test_what_was_chosen_as_batch_for_a_stream_is_chosen_again_at_once(
    waits_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its proposal was on its way, and may come so late that a later round has begun."""
    cluster = cluster_of(1, 10, schedulers=1)
    late = cluster.submit(0, name="late")
    proposals = list[Proposal]()
    with monkeypatch.context() as patch:
        patch.setattr(cluster.runtime, "propose", proposals.append)
        cluster.request(late, [1], cores(3))
        cluster.settle()
        seen = e.WorkloadClassObserved(
            now=cluster.now, application_id=late, workload_class=STREAM, evidence="a query"
        )
        cluster.submit_to_master(seen)
        cluster.advance(waits_s)
        assert len(proposals) == 1 + (waits_s > cluster.bounds.proposal_timeout_s)
        assert proposals[0].claims and proposals[0].workload_class is BATCH
        cluster.submit_to_master(e.ClaimsProposed(now=cluster.now, proposal=proposals[0]))
        assert states(cluster, late) == [{"pending": 1}]
        (scheduler,) = cluster.master.placement.schedulers.values()
        next_s = scheduler.next_time_s()
        assert next_s is not None and next_s <= cluster.now
    cluster.advance(cluster.bounds.proposal_timeout_s + cluster.bounds.lease_timeout_s + 1)
    assert states(cluster, late) == [{"running": 1}]


@EACH
def test_a_stream_starts_whole_or_waits_whole(schedulers: int) -> None:
    cluster = cluster_of(10, 10, schedulers)
    first = cluster.submit(60, cores(1), STREAM)
    cluster.settle()
    second = cluster.submit(60, cores(1), STREAM)
    cluster.advance(60)
    assert states(cluster, first, second) == [{"running": 60}, {"pending": 60}]
    batch = cluster.submit(40, cores(1), BATCH)
    cluster.advance(5)
    assert states(cluster, batch) == [{"running": 40}], "others use the capacity meanwhile"
    small = cluster.submit(30, cores(1), STREAM)
    cluster.advance(30)
    assert states(cluster, small) == [{"running": 30}], "batch is preempted for a stream that fits"
    cluster.finish(small)
    cluster.finish(first)
    cluster.advance(30)
    assert states(cluster, second) == [{"running": 60}]


@EACH
def test_what_a_stream_requests_later_is_granted_one_by_one(schedulers: int) -> None:
    cluster = cluster_of(1, 10, schedulers)
    stream = cluster.submit(6, cores(1), STREAM)
    cluster.settle()
    cluster.request(stream, range(7, 17), cores(1))
    cluster.advance(5)
    assert states(cluster, stream) == [{"running": 10, "pending": 6}]


def test_a_stream_larger_than_the_cluster_is_refused_and_told_what_to_change() -> None:
    cluster = cluster_of(2, 4, 2)
    stream = cluster.submit(9, cores(1), STREAM)
    cluster.settle()
    refused = [x for x in cluster.notices[stream] if isinstance(x, c.RequestRefused)]
    assert len(refused) == 1 and len(refused[0].executor_ids) == 9
    assert "(a stream starts whole)" in refused[0].message
    assert "set spark.hrm.stream.min to at most 8, lower the size" in refused[0].message
    assert "the whole cluster holds 8 of them" in refused[0].message
    stated = cluster.submit(10, cores(1), STREAM, stream_min=9)
    cluster.settle()
    refused = [x for x in cluster.notices[stated] if isinstance(x, c.RequestRefused)]
    assert "(spark.hrm.stream.min)" in refused[0].message
    assert "lower spark.hrm.stream.min or the size" in refused[0].message


def test_a_stream_begins_with_as_many_as_it_says() -> None:
    cluster = cluster_of(2, 4, 2)
    stream = cluster.submit(9, cores(1), STREAM, stream_min=5)
    cluster.settle()
    assert states(cluster, stream) == [{"running": 8, "pending": 1}]
    other = cluster.submit(3, cores(1), STREAM, stream_min=1)
    cluster.advance(5)
    assert states(cluster, other) == [{"pending": 3}]
    cluster.release(stream, 1, 9)
    cluster.advance(5)
    assert states(cluster, other) == [{"running": 1, "pending": 2}]


def test_a_stream_that_needs_the_place_of_a_driver_begins_with_the_rest() -> None:
    cluster = cluster_of(1, 4, 2)
    driver = cluster.submit(1, cores(1), new_id=ApplicationId("driver-20260101000000-0001"))
    cluster.settle()
    stream = cluster.submit(4, cores(1), STREAM)
    cluster.advance(5)
    assert states(cluster, driver, stream) == [{"running": 1}, {"running": 3, "pending": 1}]


def test_a_waiting_stream_says_what_it_waits_for() -> None:
    cluster = cluster_of(2, 4, 2)
    cluster.submit(6, cores(1), STREAM)
    cluster.settle()
    stream = cluster.submit(4, cores(1), STREAM)
    cluster.advance(5)
    summary, _ = explain(cluster.master.master_state, cluster.app(stream), cluster.now)
    assert "its first 4 start together (a stream starts whole)" in summary
    assert "there is capacity for 2 of the 4" in summary
