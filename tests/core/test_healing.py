"""How the core recovers from messages that it missed: each was a find of the fault simulator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from hrm.core.messages import commands as c
from hrm.core.messages import events as e
from hrm.core.scheduling.cluster_view import ClusterView
from hrm.core.vocabulary.bounds import Bounds
from hrm.core.vocabulary.model import (
    ApplicationId,
    ContainerEnd,
    ContainerId,
    ContainerState,
    EndCause,
    NodeName,
    Resources,
    WorkloadClass,
    container_id_of,
)
from hrm.testing.virtual import VirtualCluster, unit
from tests.virtual_scheduler import VirtualScheduler


def test_a_node_that_was_silent_for_too_long_is_taken_back_on_its_old_stream() -> None:
    cluster = VirtualCluster([unit("n1", vcores=1)])
    app = cluster.submit(1)
    cluster.settle()
    node = cluster.nodes["n1"]
    node.connected = False
    cluster.advance(20)
    assert cluster.states(app) == {}, "the node is lost, and what it ran with it"
    node.connected = True
    cluster.advance(3)
    assert not node.processes, "what has been given up is stopped"
    cluster.request(app, [2])
    cluster.settle()
    assert cluster.states(app) == {"running": 1}


def test_an_end_that_the_last_master_did_not_get_is_final() -> None:
    cluster = VirtualCluster([unit("n1", vcores=1)])
    app = cluster.submit(1)
    cluster.settle()
    node = cluster.nodes["n1"]
    node.connected = False
    end = ContainerEnd(cause=EndCause.EXITED, exit_code=1)
    ended = container_id_of(app, "1")
    cluster.submit_to_node(node, e.ProcessEnded(now=cluster.now, container_id=ended, end=end))
    cluster.restart_master()
    cluster.register(node)
    cluster.attach(app)
    cluster.request(app, [1, 2])
    cluster.advance(5)
    assert ended not in cluster.app(app).containers
    assert cluster.states(app) == {"running": 1}, "the second one: the first is not started again"


def test_an_orphan_that_stops_is_not_stopped_twice() -> None:
    cluster = VirtualCluster([unit("n1", vcores=1)])
    app = cluster.submit(1)
    cluster.settle()
    cluster.finish(app)
    cluster.settle()
    status = replace(
        cluster.master.master_state.status(cluster.app(app).ended[0]),
        container_id=ContainerId("nobody's"),
        state=ContainerState.STOPPING,
        end=None,
    )
    report = e.ContainerReported(
        now=cluster.now, node=NodeName("n1"), incarnation="1", sequence=10_000, container=status
    )
    assert cluster.master.handle(report) == []


def preempted_by_its_node(cluster: VirtualCluster, app: ApplicationId) -> None:
    report(cluster, app, ContainerState.STOPPING, preempted=True)


def killed(cluster: VirtualCluster, app: ApplicationId) -> None:
    call_id = cluster.next_call()
    cluster.master.handle(e.KillRequested(now=cluster.now, call_id=call_id, application_id=app))


def released(cluster: VirtualCluster, app: ApplicationId) -> None:
    event = e.ContainersReleased(now=cluster.now, application_id=app, executor_ids=("1",))
    cluster.master.handle(event)


def report(
    cluster: VirtualCluster, app: ApplicationId, state: ContainerState, *, preempted: bool = False
) -> list[c.StopContainer]:
    """What its node reports of the first container; returns the orders to stop that follow."""
    node = cluster.nodes["n1"]
    node.sequence += 1
    status = replace(
        cluster.master.master_state.status(cluster.container(app, 1)),
        state=state,
        preempted=preempted,
    )
    event = e.ContainerReported(
        now=cluster.now, node=node.name, incarnation="1", sequence=node.sequence, container=status
    )
    messages = [x.message for x in cluster.master.handle(event) if isinstance(x, c.SendToNode)]
    return [x for x in messages if isinstance(x, c.StopContainer)]


@pytest.mark.parametrize(
    ("order", "cause"),
    [
        (preempted_by_its_node, EndCause.PREEMPTED),
        (killed, EndCause.KILLED),
        (released, EndCause.RELEASED),
    ],
)
def test_a_stop_keeps_its_cause_however_often_it_is_sent_again(
    order: Callable[[VirtualCluster, ApplicationId], None], cause: EndCause
) -> None:
    cluster = VirtualCluster([unit("n1", vcores=1)])
    app = cluster.submit(1)
    cluster.settle()
    order(cluster, app)
    causes = []
    for _ in range(3):
        cluster.now += cluster.bounds.resend_delay_s
        causes += [x.cause for x in report(cluster, app, ContainerState.RUNNING)]
    assert causes == [cause] * 3


def test_a_report_of_a_start_may_overtake_the_end_that_freed_capacity() -> None:
    cluster = VirtualCluster([unit("n1", vcores=1)])
    app = cluster.submit(2)
    cluster.settle()
    node = cluster.nodes["n1"]
    node.connected = False
    end = ContainerEnd(cause=EndCause.EXITED, exit_code=0)
    first, second = container_id_of(app, "1"), container_id_of(app, "2")
    cluster.submit_to_node(node, e.ProcessEnded(now=cluster.now, container_id=first, end=end))
    node.connected = True
    running = next(s for s in node.core.statuses() if s.container_id == second)
    node.sequence += 1
    cluster.submit_to_master(
        e.ContainerReported(
            now=cluster.now, node=node.name, incarnation="1", sequence=node.sequence,
            container=running,
        )
    )  # fmt: skip
    cluster.advance(2)
    assert cluster.states(app) == {"running": 1}
    assert cluster.master.master_state.state.queue(0).running.keys() == {second}


def test_a_restarted_master_may_find_a_container_that_is_being_stopped() -> None:
    cluster = VirtualCluster([unit("n1", vcores=1)])
    app = cluster.submit(1)
    cluster.settle()
    node = cluster.nodes["n1"]
    stopping = replace(node.core.statuses()[0], state=ContainerState.STOPPING)
    cluster.restart_master()
    cluster.submit_to_master(
        e.NodeRegistered(
            now=cluster.now, call_id=77, node=node.name, identity="identity-of-n1",
            incarnation="1", sequence=node.sequence + 1, host="127.0.0.1", endpoint="127.0.0.1:1",
            units=(unit("n1", vcores=1),), containers=(stopping,),
        )
    )  # fmt: skip
    assert cluster.states(app) == {"stopping": 1}


def test_none_is_refused_before_all_nodes_are_back() -> None:
    cluster = VirtualCluster([unit("small", vcores=1), unit("large", vcores=8)])
    app = cluster.submit(0)
    cluster.restart_master()
    cluster.attach(app)
    cluster.register(cluster.nodes["small"])
    cluster.request(app, [1], Resources(8, 1024))
    cluster.settle()
    assert cluster.states(app) == {"pending": 1}
    cluster.register(cluster.nodes["large"])
    cluster.settle()
    assert cluster.states(app) == {"running": 1}


def test_what_was_asked_for_before_any_node_was_known_is_refused_when_it_is_hopeless() -> None:
    cluster = VirtualCluster()
    app = cluster.submit(1, Resources(64, 1024))
    cluster.add_node(unit("n1"))
    cluster.advance(15)
    assert cluster.states(app) == {}
    refused = [n for n in cluster.notices[app] if isinstance(n, c.RequestRefused)]
    assert [n.executor_ids for n in refused] == [("1",)]
    assert "the largest node, n1, has 4 vcores" in refused[0].message


def test_a_lost_node_that_registers_again_is_awaited_by_the_next_master() -> None:
    cluster = VirtualCluster([unit("n1", vcores=1)])
    cluster.disconnect(cluster.nodes["n1"])
    cluster.advance(20)
    assert list(cluster.durable_nodes) == ["n1"], "not all may have heard what was lost with it"
    cluster.advance(cluster.bounds.application_grace_s)
    assert not cluster.durable_nodes
    cluster.register(cluster.nodes["n1"])
    assert list(cluster.durable_nodes) == ["n1"]


def test_a_node_that_is_lost_is_awaited_by_a_master_that_comes_soon() -> None:
    """Its loss was not reported to its AppMaster, which requests its executor from this one."""
    cluster = VirtualCluster([unit("n1", vcores=1), unit("n2", vcores=1)])
    app = cluster.submit(1)
    cluster.settle()
    (name,) = [x.name for x in cluster.nodes.values() if x.processes]
    cluster.disconnect(cluster.nodes[name])
    cluster.advance(cluster.bounds.node_timeout_s + 2)
    cluster.restart_master()
    cluster.attach(app)
    (other,) = [x for x in cluster.nodes.values() if x.name != name]
    cluster.register(other)
    cluster.request(app, [1])
    cluster.settle()
    assert not other.processes, "it may run where it did, and its id runs once"


def test_a_late_registration_of_a_dead_agent_does_not_shut_out_its_successor() -> None:
    cluster = VirtualCluster([unit("n1", vcores=1)])
    node = cluster.nodes["n1"]
    node.incarnation, node.sequence = 2, 0
    cluster.register(node)
    node.incarnation = 1
    cluster.register(node)
    cluster.submit_to_master(e.NodeDisconnected(now=cluster.now, node=node.name, incarnation="1"))
    node.incarnation = 2
    cluster.advance(20)
    app = cluster.submit(1)
    cluster.settle()
    assert cluster.states(app) == {"running": 1}


def test_what_a_dead_agent_reported_late_of_its_units_does_not_stay() -> None:
    """It was about to close, its disk full; its successor has long been open."""
    cluster = VirtualCluster([unit("n1", vcores=1)])
    node = cluster.nodes["n1"]
    node.incarnation, node.sequence = 2, 0
    cluster.register(node)
    late = e.NodeRegistered(
        now=cluster.now, call_id=cluster.next_call(), node=node.name,
        identity=f"identity-of-{node.name}", incarnation="1", sequence=9, host="127.0.0.1",
        endpoint="127.0.0.1:1", units=tuple(replace(x, draining=True) for x in node.core.offers),
    )  # fmt: skip
    cluster.submit_to_master(late)
    cluster.submit_to_master(e.NodeDisconnected(now=cluster.now, node=node.name, incarnation="1"))
    app = cluster.submit(1)
    cluster.advance(5)
    assert cluster.states(app) == {"running": 1}


def test_an_order_that_was_lost_is_not_repeated_to_a_node_that_is_drained() -> None:
    cluster = VirtualCluster([unit("n1")])
    node = cluster.nodes["n1"]
    node.connected = False
    app = cluster.submit(1)
    cluster.settle()
    assert cluster.states(app) == {"assigned": 1}
    drain = e.DrainRequested(now=cluster.now, call_id=77, nodes=(node.name,))
    cluster.submit_to_master(drain)
    node.connected = True
    cluster.advance(5)
    assert cluster.states(app) == {}
    assert not node.processes


@pytest.mark.parametrize("masters", [1, 2])
def test_what_may_run_on_a_node_that_is_away_does_not_run_twice(masters: int) -> None:
    cluster = VirtualCluster([unit("n1", vcores=1)])
    app = cluster.submit(1)
    cluster.settle()
    away = cluster.nodes["n1"]
    assert away.processes
    cluster.add_node(unit("n2", vcores=1))
    for _ in range(masters):
        cluster.restart_master()
        cluster.register(cluster.nodes["n2"])
        cluster.advance(15)
    cluster.attach(app)
    cluster.request(app, [1])
    cluster.settle()
    assert not cluster.nodes["n2"].processes, "its AppMaster has come too late to ask for it"
    cluster.request(app, [2])
    cluster.advance(5)
    assert cluster.states(app) == {"running": 1}
    assert list(cluster.durable_nodes) == ["n2"], "nobody can ask for what runs on n1 any more"


def test_a_gang_is_not_refused_while_a_node_is_away() -> None:
    cluster = VirtualCluster([unit("n1", vcores=1), unit("n2", vcores=1)])
    away = cluster.nodes["n2"]
    cluster.disconnect(away)
    cluster.advance(20)
    app = cluster.submit(2, gang_min=2)
    cluster.advance(10)
    assert cluster.states(app) == {"pending": 2}, "n2 may come back, as it may for one container"
    cluster.register(away)
    cluster.advance(5)
    assert cluster.states(app) == {"running": 2}


def test_a_gang_of_which_fewer_are_wanted_after_all_starts_with_those() -> None:
    cluster = VirtualCluster([unit("n1", vcores=4)])
    app = cluster.submit(1, gang_min=3)
    cluster.settle()
    assert cluster.states(app) == {"pending": 1}, "the others may be asked for in a moment"
    cluster.advance(15)
    assert cluster.states(app) == {"running": 1}


def test_a_gang_that_shrank_before_the_master_restarted_starts_after_it() -> None:
    cluster = VirtualCluster([unit("n1", vcores=3)])
    other = cluster.submit(3)
    cluster.settle()
    app = cluster.submit(3, gang_min=3)
    cluster.release(app, 2, 3)
    cluster.settle()
    cluster.restart_master()
    cluster.register(cluster.nodes["n1"])
    for each in (other, app):
        cluster.attach(each)
    cluster.request(app, [1])
    cluster.finish(other)
    cluster.advance(15)
    assert cluster.states(app) == {"running": 1}


def test_one_that_finds_the_lease_free_but_is_not_first_in_line_does_not_spin() -> None:
    cluster = VirtualCluster([unit("n1", vcores=1)], bounds=Bounds(lease_timeout_s=2.5))
    first, second = VirtualScheduler(cluster, "first"), VirtualScheduler(cluster, "second")
    for scheduler in (first, second):
        scheduler.hangs = True
        app = submit_to(cluster, scheduler.name)
        call_id = {"first": 900, "second": 901}[scheduler.name]
        cluster.submit_to_master(
            e.LeaseRequested(
                now=cluster.now,
                call_id=call_id,
                scheduler=scheduler.name,
                session=scheduler.session,
                application_id=app,
            )
        )
    submit_to(cluster, "scheduler-1")
    cluster.advance(2.6)
    assert cluster.master.negotiator.lease.holder == "second", "served as soon as it was its turn"


def test_claims_that_waited_too_long_behind_a_lease_get_a_reply() -> None:
    bounds = Bounds(lease_timeout_s=8.0, proposal_timeout_s=2.0)
    cluster = VirtualCluster([unit("n1", vcores=2)], bounds=bounds)
    holder, outside = VirtualScheduler(cluster, "holder"), VirtualScheduler(cluster, "outside")
    holder.hangs = outside.hangs = True
    stream = submit_to(cluster, "holder")
    cluster.submit_to_master(
        e.LeaseRequested(
            now=cluster.now,
            call_id=900,
            scheduler="holder",
            session=holder.session,
            application_id=stream,
        )
    )
    batch = submit_to(cluster, "outside", WorkloadClass.BATCH)
    cluster.settle()
    job = outside.scheduler.jobs[batch]
    proposal = outside.scheduler.choose(job, ClusterView(outside.replica.state), 0, cluster.now)
    assert proposal.claims
    cluster.submit_to_master(
        e.ClaimsProposed(now=cluster.now, proposal=proposal, call_id=901, session=outside.session)
    )
    cluster.advance(4.0)
    result = cluster.replies[901]
    assert isinstance(result, c.Refuse)
    assert "lease" in result.error.message
    cluster.advance(8.0)
    assert cluster.states(batch) == {"pending": 1}, "given up is given up"


def submit_to(
    cluster: VirtualCluster, name: str, workload_class: WorkloadClass = WorkloadClass.STREAM
) -> ApplicationId:
    """An application of one container whose scheduler is ``name``."""
    while True:
        app = cluster.submit(0, workload_class=workload_class)
        if cluster.app(app).scheduler == name:
            cluster.request(app, [1])
            return app
        cluster.finish(app)
