"""A drain holds until it is undone, across the end of the master, the agent or the node."""

from __future__ import annotations

from hrm.core.messages import commands as c
from hrm.core.messages import events as e
from hrm.core.vocabulary.bounds import Bounds
from hrm.core.vocabulary.model import ApplicationId, ContainerState, EndCause, NodeName, NodeState
from hrm.errors import NotFound
from hrm.testing.virtual import VirtualCluster, unit

N1 = NodeName("n1")


def drain(cluster: VirtualCluster, name: str = N1, *, undo: bool = False) -> c.Reply | c.Refuse:
    call_id = cluster.next_call()
    cluster.submit_to_master(
        e.DrainRequested(now=cluster.now, call_id=call_id, nodes=(NodeName(name),), undo=undo)
    )
    result = cluster.replies[call_id]
    assert isinstance(result, c.Reply | c.Refuse)
    return result


def state(cluster: VirtualCluster, name: str = N1) -> NodeState:
    return cluster.master.master_state.nodes[NodeName(name)].state


def test_a_drained_node_is_drained_for_the_next_master_too() -> None:
    cluster = VirtualCluster([unit("n1", vcores=1), unit("n2", vcores=1)])
    app = cluster.submit(2)
    cluster.settle()
    drain(cluster)
    cluster.restart_master()
    cluster.attach(app)
    cluster.request(app, [1, 2, 3, 4])
    for node in cluster.nodes.values():
        cluster.register(node)
    cluster.settle()
    assert (state(cluster, "n1"), state(cluster, "n2")) == (NodeState.DRAINING, NodeState.ALIVE)
    assert cluster.states(app) == {"running": 2, "waiting": 2}, "what runs there runs on"
    new = [cluster.container(app, executor).node for executor in (3, 4)]
    assert new == ["n2", "n2"]
    drain(cluster, undo=True)
    cluster.restart_master()
    for node in cluster.nodes.values():
        cluster.register(node)
    assert state(cluster) is NodeState.ALIVE, "also the undoing is durable"


def test_a_waiter_at_a_drained_node_is_returned_by_the_next_master() -> None:
    """The last master died before its orders to stop had left."""
    cluster = VirtualCluster([unit("n1", vcores=1)])
    app = cluster.submit(2)
    cluster.settle()
    assert cluster.states(app) == {"running": 1, "waiting": 1}
    cluster.durable_drains[N1] = None
    cluster.restart_master()
    cluster.attach(app)
    cluster.request(app, [1, 2])
    cluster.register(cluster.nodes[N1])
    cluster.settle()
    assert cluster.states(app) == {"running": 1}
    end = cluster.container(app, 2).end
    assert end is not None
    assert (end.cause, end.message) == (EndCause.PREEMPTED, "n1 is drained")


def test_a_node_that_was_lost_comes_back_drained() -> None:
    cluster = VirtualCluster([unit("n1", vcores=1)])
    drain(cluster)
    cluster.disconnect(cluster.nodes[N1])
    cluster.advance(20)
    assert state(cluster) is NodeState.LOST
    again = drain(cluster)
    assert isinstance(again, c.Refuse)
    assert "that node is lost: n1" in again.error.message
    cluster.restart_master()
    cluster.register(cluster.nodes[N1])
    assert state(cluster) is NodeState.DRAINING


def test_a_drain_can_be_undone_while_the_node_is_away() -> None:
    cluster = VirtualCluster([unit("n1", vcores=1)])
    drain(cluster)
    cluster.disconnect(cluster.nodes[N1])
    cluster.advance(20)
    assert isinstance(drain(cluster, undo=True), c.Reply)
    cluster.register(cluster.nodes[N1])
    assert state(cluster) is NodeState.ALIVE
    drain(cluster)
    cluster.restart_master()
    assert isinstance(drain(cluster, undo=True), c.Reply), "this master has not met it yet"
    assert not cluster.durable_drains
    twice = drain(cluster, undo=True)
    assert isinstance(twice, c.Refuse)
    assert isinstance(twice.error, NotFound)


def test_drains_of_nodes_that_never_come_back_are_bounded() -> None:
    bounds = Bounds(lost_nodes_kept=1)
    cluster = VirtualCluster([unit(name) for name in ("n1", "n2", "n3")], bounds=bounds)
    for name in ("n1", "n2", "n3"):
        drain(cluster, name)
        cluster.disconnect(cluster.nodes[name])
    cluster.advance(20)
    assert list(cluster.durable_drains) == ["n2", "n3"], "one is listed as lost, one is not"
    cluster.restart_master()
    cluster.advance(20)
    assert list(cluster.durable_drains) == ["n3"]


def move(cluster: VirtualCluster, name: str = N1, within_s: float = 30.0) -> None:
    cluster.submit_to_master(
        e.DrainRequested(
            now=cluster.now,
            call_id=cluster.next_call(),
            nodes=(NodeName(name),),
            move_within_s=within_s,
        )
    )


def test_what_runs_on_a_node_that_is_to_be_emptied_hands_over_its_data_and_ends() -> None:
    cluster = VirtualCluster([unit("n1", vcores=2), unit("n2", vcores=4)], drain_s=4.0)
    app = cluster.submit(4)
    cluster.settle()
    there = [x for x in cluster.app(app).containers.values() if x.node == N1]
    assert len(there) == 2
    move(cluster)
    cluster.settle()
    assert [x.state for x in there] == [ContainerState.STOPPING] * 2
    assert cluster.running() == 4, "each has time for it"
    cluster.advance(4)
    assert [x.end.cause for x in there if x.end] == [EndCause.PREEMPTED] * 2
    assert cluster.running() == 2
    assert state(cluster) is NodeState.DRAINING


def test_a_driver_runs_on_where_executors_move_away() -> None:
    cluster = VirtualCluster([unit("n1", vcores=2)], drain_s=1.0)
    driver = cluster.submit(1, new_id=ApplicationId("driver-20260101000000-0001"))
    cluster.submit(1)
    cluster.settle()
    move(cluster)
    cluster.advance(5)
    (left,) = cluster.app(driver).containers.values()
    assert left.state is ContainerState.RUNNING and cluster.running() == 1


def test_one_that_has_not_acknowledged_it_is_notified_again() -> None:
    cluster = VirtualCluster([unit("n1", vcores=2)], drain_s=1.0)
    cluster.submit(2)
    cluster.settle()
    cluster.network_delay_s = 1e9  # the order is lost
    move(cluster)
    cluster.network_delay_s = 0.001
    cluster.advance(cluster.bounds.resend_delay_s + 3.0)
    assert cluster.running() == 0


def test_an_order_that_comes_twice_shortens_no_grace_period_and_a_release_does() -> None:
    cluster = VirtualCluster([unit("n1", vcores=2)], drain_s=20.0)
    app = cluster.submit(2)
    cluster.settle()
    move(cluster)
    cluster.settle()
    move(cluster)
    cluster.advance(10)
    assert cluster.running() == 2
    cluster.release(app, 1)
    cluster.settle()
    assert cluster.running() == 1
