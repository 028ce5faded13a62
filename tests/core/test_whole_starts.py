"""What starts together runs whole or not at all, also where it loses some before all have started,
and where batch is not preempted for it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hrm.core.master.explain import explain
from hrm.core.messages import events as e
from hrm.core.vocabulary.bounds import Bounds
from hrm.core.vocabulary.model import (
    ApplicationId,
    ContainerState,
    EndCause,
    NodeName,
    Resources,
    ResourceUnitId,
    WorkloadClass,
)
from hrm.testing.virtual import VirtualCluster, unit

STREAM, BATCH = WorkloadClass.STREAM, WorkloadClass.BATCH
EACH = pytest.mark.parametrize("schedulers", [1, 2, 6])
ALL = Resources(10, 10_240)
WAIT_S = Bounds().gang_wait_s


def cluster_of(schedulers: int, *nodes: str, grace_s: float | None = 15.0) -> VirtualCluster:
    """Batch that is preempted takes 14 s to end."""
    cluster = VirtualCluster(schedulers=schedulers, preemption_grace_s=grace_s, drain_s=14.0)
    for name in nodes:
        cluster.add_node(unit(name, 10, 10_240))
    cluster.settle()
    return cluster


def half_started(
    schedulers: int,
) -> tuple[VirtualCluster, ApplicationId, ApplicationId, NodeName]:
    """A stream that has one of its two nodes and waits at the other, where batch is preempted for
    it: the cluster, the batch, the stream, the node of the batch."""
    cluster = cluster_of(schedulers, "n1", "n2")
    batch = cluster.submit(1, ALL, BATCH)
    cluster.settle()
    stream = cluster.submit(2, ALL, STREAM)
    cluster.settle()
    assert cluster.states(stream) == {"running": 1, "waiting": 1}
    busy = cluster.container(batch, 1).node
    assert busy is not None
    return cluster, batch, stream, busy


def add_keeping_node(cluster: VirtualCluster, name: str) -> None:
    """A node that preempts no batch."""
    cluster.preemption_grace_s, before = None, cluster.preemption_grace_s
    cluster.add_node(unit(name, 10, 10_240))
    cluster.preemption_grace_s = before
    cluster.settle()


def requests_again(cluster: VirtualCluster, app: ApplicationId, seconds: float, many: int) -> int:
    """As an AppMaster does: whatever ends is replaced. Returns for how long, at most, some of it
    ran, and not all."""
    partly = longest = 0
    for _ in range(int(seconds)):
        live = cluster.app(app).containers.values()
        lacks = many - sum(x.state is not ContainerState.STOPPING for x in live)
        first = cluster.app(app).last_executor_number + 1
        cluster.request(app, range(first, first + lacks), ALL)
        cluster.advance(1)
        running = cluster.states(app).get("running", 0)
        partly = partly + 1 if 0 < running < many else 0
        longest = max(longest, partly)
    return longest


def why(cluster: VirtualCluster, app: ApplicationId) -> str:
    return explain(cluster.master.master_state, cluster.app(app), cluster.now)[0]


def leave(cluster: VirtualCluster, node: str, how: str) -> None:
    if how == "lost":
        cluster.disconnect(cluster.nodes[node])
    else:
        cluster.submit_to_master(
            e.DrainRequested(now=cluster.now, call_id=9_999, nodes=(NodeName(node),))
        )


@EACH
def test_a_stream_does_not_start_behind_batch_that_is_not_preempted(schedulers: int) -> None:
    cluster = cluster_of(schedulers, "n1", "n2", grace_s=None)
    batch = cluster.submit(1, ALL, BATCH)
    cluster.settle()
    stream = cluster.submit(2, ALL, STREAM)
    cluster.advance(60)
    assert cluster.states(stream) == {"pending": 2}
    assert "batch is not preempted on n1, n2 (preemption = false" in why(cluster, stream)
    late = cluster.submit(5, Resources(1, 1_024), BATCH)
    cluster.advance(5)
    assert cluster.states(late) == {"running": 5}, "it holds nothing that others could use"
    cluster.finish(late)
    cluster.finish(batch)
    cluster.advance(5)
    assert cluster.states(stream) == {"running": 2}


@EACH
def test_it_waits_where_batch_is_preempted_and_nowhere_else(schedulers: int) -> None:
    cluster = cluster_of(schedulers, "n1", "n2")
    add_keeping_node(cluster, "n3")
    add_keeping_node(cluster, "n4")
    batch = cluster.submit(4, ALL, BATCH)
    cluster.settle()
    stream = cluster.submit(2, ALL, STREAM)
    cluster.advance(20)
    assert cluster.states(stream) == {"running": 2}
    assert {x.node for x in cluster.app(stream).containers.values()} == {"n1", "n2"}
    assert cluster.states(batch)["running"] == 2
    another = cluster.submit(2, ALL, STREAM)
    cluster.advance(60)
    assert cluster.states(another) == {"pending": 2}, "batch on n3 and n4 runs to its end"
    one = cluster.submit(1, ALL, STREAM)
    cluster.settle()
    assert cluster.states(one) == {"waiting": 1}, "alone it has nothing to lose, and is next there"


@EACH
def test_one_executor_waits_where_batch_is_preempted_for_it(schedulers: int) -> None:
    cluster = cluster_of(schedulers)
    add_keeping_node(cluster, "n1")
    cluster.add_node(unit("n2", 10, 10_240))
    add_keeping_node(cluster, "n3")
    cluster.submit(3, ALL, BATCH)
    cluster.settle()
    stream = cluster.submit(1, ALL, STREAM)
    cluster.advance(20)
    assert cluster.states(stream) == {"running": 1}
    assert cluster.container(stream, 1).node == "n2"


@EACH
@pytest.mark.parametrize("how", ["lost", "drained"])
def test_what_runs_is_given_back_if_the_rest_finds_no_place(schedulers: int, how: str) -> None:
    cluster, batch, stream, busy = half_started(schedulers)
    leave(cluster, busy, how)
    bounds = Bounds()
    requests_again(cluster, stream, bounds.node_timeout_s + 3, 2)
    assert "1 of them has lost its place" in why(cluster, stream)
    longest = requests_again(cluster, stream, 60, 2)
    assert longest <= WAIT_S + bounds.node_timeout_s
    assert cluster.states(stream) == {"pending": 2}
    ended = [x.end.cause for x in cluster.app(stream).ended if x.end]
    lost = EndCause.NODE_LOST if how == "lost" else EndCause.PREEMPTED
    assert ended == [lost, EndCause.PREEMPTED]
    other = cluster.submit(1, ALL, STREAM)
    cluster.settle()
    assert cluster.states(other) == {"running": 1}, "nobody waits for half a stream"
    cluster.finish(other)
    cluster.finish(batch)
    cluster.add_node(unit("n3", 10, 10_240))
    assert requests_again(cluster, stream, 20, 2) <= 1
    assert cluster.states(stream) == {"running": 2}, "it starts whole when there is capacity"


@EACH
def test_what_runs_goes_on_if_the_rest_finds_a_place_in_time(schedulers: int) -> None:
    cluster, _, stream, busy = half_started(schedulers)
    leave(cluster, busy, "drained")
    requests_again(cluster, stream, WAIT_S - 5, 2)
    cluster.add_node(unit("n3", 10, 10_240))
    requests_again(cluster, stream, 60, 2)
    assert cluster.states(stream) == {"running": 2}
    assert len(cluster.app(stream).ended) == 1, "the one that had not started"


@EACH
def test_once_all_have_started_what_is_lost_is_replaced_alone(schedulers: int) -> None:
    cluster = cluster_of(schedulers, "n1", "n2")
    stream = cluster.submit(2, ALL, STREAM)
    cluster.settle()
    assert cluster.states(stream) == {"running": 2}
    leave(cluster, "n2", "lost")
    requests_again(cluster, stream, 120, 2)
    assert cluster.states(stream) == {"running": 1, "pending": 1}, "half of it keeps what it knows"


@EACH
@pytest.mark.parametrize("after_s", [1, 15, 25])
def test_a_slow_application_starts_whole_too(after_s: int, schedulers: int) -> None:
    cluster, _, stream, busy = half_started(schedulers)
    leave(cluster, busy, "drained")
    while not cluster.app(stream).ended:
        cluster.advance(1)
    cluster.advance(after_s)
    left = f"the others go on alone if no more is requested in {30 - after_s} s"
    assert left in why(cluster, stream)
    cluster.request(stream, [3], ALL)
    cluster.advance(WAIT_S - 2)
    assert cluster.states(stream) == {"running": 1, "pending": 1}
    cluster.advance(4)
    assert "so the others give theirs back and wait for the whole" in why(cluster, stream)
    requests_again(cluster, stream, 20, 2)
    assert cluster.states(stream) == {"pending": 2}
    late = cluster.submit(1, ALL, BATCH)
    cluster.advance(2)
    assert cluster.states(late) == {"running": 1}


@EACH
def test_an_application_that_is_away_requests_nothing_meanwhile(schedulers: int) -> None:
    cluster, _, stream, busy = half_started(schedulers)
    leave(cluster, busy, "drained")
    for _ in range(2):
        cluster.advance(12)
        session = cluster.app(stream).session
        assert session is not None
        lost = e.ApplicationDetached(now=cluster.now, application_id=stream, session=session)
        cluster.submit_to_master(lost)
        cluster.advance(25)
        assert cluster.app(stream).gang_min == 2
        cluster.attach(stream)
    assert cluster.app(stream).gang_min == 2
    requests_again(cluster, stream, 60, 2)
    assert cluster.states(stream) == {"pending": 2}


@EACH
def test_a_batch_gang_that_loses_one_before_its_start_is_given_back(schedulers: int) -> None:
    cluster = cluster_of(schedulers, "n1", "n2")
    cluster.disconnect(cluster.nodes["n2"])  # what is granted there never arrives
    gang = cluster.submit(2, ALL, BATCH, gang_min=2)
    cluster.settle()
    assert cluster.states(gang) == {"running": 1, "assigned": 1}
    assert requests_again(cluster, gang, 90, 2) <= WAIT_S + Bounds().node_timeout_s + 5
    assert cluster.states(gang) == {"pending": 2}


@pytest.mark.parametrize("remembers", [True, False])
def test_what_the_next_master_finds_of_a_batch_gang_is_given_back_too(remembers: bool) -> None:
    """The one before it died before it was stored that some of the gang ran. Where the lost node is
    not remembered either, the rest is refused, again and again."""
    cluster = cluster_of(1, "n1", "n2")
    cluster.disconnect(cluster.nodes["n2"])
    gang = cluster.submit(2, ALL, BATCH, gang_min=2)
    cluster.settle()
    assert cluster.states(gang) == {"running": 1, "assigned": 1}
    cluster.durable[gang] = replace(cluster.durable[gang], first_running_at_s=0.0)
    if not remembers:
        del cluster.durable_nodes[NodeName("n2")]
    cluster.restart_master()
    cluster.register(cluster.nodes["n1"])
    cluster.attach(gang)
    limit_s = WAIT_S + Bounds().recovery_window_s + Bounds().node_timeout_s + 5
    assert 0 < requests_again(cluster, gang, 90, 2) <= limit_s
    assert cluster.states(gang).get("running", 0) == 0


@EACH
def test_an_application_that_needs_fewer_keeps_them(schedulers: int) -> None:
    cluster, _, stream, busy = half_started(schedulers)
    leave(cluster, busy, "drained")
    cluster.advance(WAIT_S + 60)
    assert cluster.states(stream) == {"running": 1}, "it has requested no other"


@EACH
def test_what_waits_at_a_node_that_preempts_no_more_is_returned(schedulers: int) -> None:
    cluster, _, stream, busy = half_started(schedulers)
    node = cluster.nodes[busy]
    node.core.preemption_grace_s = None  # its agent has restarted with another setting
    cluster.register(node)
    cluster.advance(6)
    (ended,) = cluster.app(stream).ended
    assert ended.end is not None and ended.end.cause is EndCause.PREEMPTED
    assert "nothing makes capacity for it" in ended.end.message
    state = cluster.master.master_state.state
    row = state.rows[ResourceUnitId(f"{node.core.name}/cpu")]
    assert not state.preempts[row]
