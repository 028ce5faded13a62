"""A cluster in virtual time as an operator sees it, with invariants checked at every event."""

from __future__ import annotations

import pytest

from hrm.core.master.explain import explain
from hrm.core.messages import commands as c
from hrm.core.messages import events as e
from hrm.core.vocabulary.bounds import Bounds
from hrm.core.vocabulary.model import (
    ApplicationId,
    ApplicationState,
    EndCause,
    NodeName,
    NodeState,
    Resources,
    WorkloadClass,
)
from hrm.errors import AlreadyExists, LimitReached, NotFound, StaleEpoch
from hrm.testing.virtual import VirtualCluster, VirtualNode, unit

SMALL = Resources(1, 1024)


def test_executors_start_and_spread_over_the_nodes() -> None:
    cluster = VirtualCluster([unit("n1"), unit("n2")])
    app = cluster.submit(4)
    cluster.settle()
    assert cluster.states(app) == {"running": 4}
    assert [len(node.processes) for node in cluster.nodes.values()] == [2, 2]
    assert cluster.app(app).life.state is ApplicationState.RUNNING


def test_what_does_not_fit_waits_at_a_node_and_starts_without_the_master() -> None:
    cluster = VirtualCluster([unit("n1", vcores=2)])
    app = cluster.submit(3)
    cluster.settle()
    assert cluster.states(app) == {"running": 2, "waiting": 1}
    node = cluster.nodes["n1"]
    cluster.disconnect(node)
    cluster.end_process(app, 1)
    assert len(node.processes) == 2, "the waiter starts at the node while the master is away"


def test_a_stream_passes_batch_that_waits() -> None:
    cluster = VirtualCluster([unit("n1", vcores=2)])
    batch = cluster.submit(4)
    cluster.settle()
    stream = cluster.submit(1, workload_class=WorkloadClass.STREAM)
    cluster.settle()
    assert cluster.states(stream) == {"waiting": 1}
    cluster.end_process(batch, 1)
    cluster.settle()
    assert cluster.states(stream) == {"running": 1}
    assert cluster.states(batch) == {"running": 1, "waiting": 2}


def test_small_batch_does_not_starve_a_large_stream() -> None:
    cluster = VirtualCluster([unit("n1", vcores=2)], preemption_grace_s=None)
    batch = cluster.submit(6)
    cluster.settle()
    stream = cluster.submit(1, Resources(2, 1024), WorkloadClass.STREAM)
    cluster.settle()
    for executor in (1, 2):
        cluster.end_process(batch, executor)
        cluster.settle()
    assert cluster.states(stream) == {"running": 1}
    assert cluster.states(batch) == {"waiting": 4}


def test_a_running_query_makes_the_application_a_stream_at_the_node_too() -> None:
    cluster = VirtualCluster([unit("n1", vcores=1)])
    first = cluster.submit(2)
    second = cluster.submit(1)
    cluster.settle()
    cluster.submit_to_master(
        e.WorkloadClassObserved(
            now=cluster.now,
            application_id=second,
            workload_class=WorkloadClass.STREAM,
            evidence="query q, ProcessingTime",
        )
    )
    cluster.settle()
    queue = next(iter(cluster.nodes["n1"].core.units.values()))
    assert len(queue.stream_waiting) == 1
    cluster.end_process(first, 1)
    cluster.settle()
    assert cluster.states(second) == {"running": 1}
    assert cluster.durable[second].workload_class is WorkloadClass.STREAM


def test_a_declared_class_is_not_overruled_by_what_is_seen() -> None:
    cluster = VirtualCluster([unit("n1")])
    app = cluster.submit(1, workload_class=WorkloadClass.BATCH)
    cluster.submit_to_master(
        e.WorkloadClassObserved(
            now=cluster.now, application_id=app, workload_class=WorkloadClass.STREAM
        )
    )
    assert cluster.app(app).record.workload_class is WorkloadClass.BATCH


def test_an_impossible_request_is_refused_at_once_naming_the_largest_node() -> None:
    cluster = VirtualCluster([unit("n1", vcores=4), unit("big", vcores=8)])
    app = cluster.submit(2, Resources(64, 1024))
    (notice,) = cluster.notices[app]
    assert isinstance(notice, c.RequestRefused)
    assert notice.executor_ids == ("1", "2")
    assert "64 vcores" in notice.message
    assert "big" in notice.message
    assert not cluster.app(app).containers


DRIVER = ApplicationId("driver-20260101000000-0001")


def test_a_driver_that_is_too_large_is_refused_in_the_words_of_drivers() -> None:
    cluster = VirtualCluster([unit("n1", vcores=4), unit("big", vcores=8)])
    app = cluster.submit(1, Resources(64, 1024), new_id=DRIVER)
    (notice,) = cluster.notices[app]
    assert isinstance(notice, c.RequestRefused)
    assert "the driver requests 64 vcores" in notice.message
    assert "spark.driver.cores or spark.driver.memory" in notice.message
    assert "hrm nodes" in notice.message
    assert "executor" not in notice.message


@pytest.mark.parametrize(
    ("new_id", "role", "settings"),
    [
        (DRIVER, "the driver", "spark.driver.cores or spark.driver.memory"),
        (None, "1 executor", "spark.executor.cores or spark.executor.memory"),
    ],
)
def test_what_waits_for_a_place_is_notified_what_is_free_and_its_own_settings(
    new_id: ApplicationId | None, role: str, settings: str
) -> None:
    cluster = VirtualCluster(
        [unit("n1", vcores=4), unit("n2", vcores=4)], bounds=Bounds(waiting_limit=0)
    )
    cluster.submit(2, Resources(3, 1024))
    cluster.settle()
    cluster.submit(1, Resources(1, 512))
    cluster.settle()
    app = cluster.submit(1, Resources(2, 1024), new_id=new_id)
    cluster.settle()
    assert cluster.states(app) == {"pending": 1}
    summary, _ = explain(cluster.master.master_state, cluster.app(app), cluster.now)
    assert summary.startswith(f"{role} waits for a place (2 vcores, 1024 MiB")
    assert settings in summary
    assert "has 1 vcore, " in summary
    assert "hrm nodes" in summary


def test_no_smaller_executor_is_suggested_where_no_vcore_is_free() -> None:
    cluster = VirtualCluster([unit("n1", vcores=4)], bounds=Bounds(waiting_limit=0))
    cluster.submit(1, Resources(4, 1024))
    cluster.settle()
    app = cluster.submit(1, Resources(1, 512))
    cluster.settle()
    summary, _ = explain(cluster.master.master_state, cluster.app(app), cluster.now)
    assert summary.endswith("It starts when something ends there")


def test_a_driver_that_waits_at_a_node_is_notified_what_it_asks_for_and_what_is_free() -> None:
    cluster = VirtualCluster([unit("n1", vcores=4)])
    cluster.submit(1, Resources(3, 1024))
    cluster.settle()
    app = cluster.submit(1, Resources(2, 1024), new_id=DRIVER)
    cluster.settle()
    assert cluster.states(app) == {"waiting": 1}
    _, details = explain(cluster.master.master_state, cluster.app(app), cluster.now)
    (line,) = [x for x in details if "waits at" in x]
    assert line.startswith("the driver waits at n1")
    assert "it requests 2 vcores, 1024 MiB, and 1 vcore, " in line
    assert " of 4 vcores, " in line


def test_without_nodes_requests_wait_and_report_it() -> None:
    cluster = VirtualCluster()
    app = cluster.submit(1)
    cluster.settle()
    summary, _ = explain(cluster.master.master_state, cluster.app(app), cluster.now)
    assert "no node is alive" in summary
    cluster.add_node(unit("n1"))
    cluster.settle()
    assert cluster.states(app) == {"running": 1}


def test_the_waiting_limit_sends_containers_back_to_their_scheduler() -> None:
    cluster = VirtualCluster([unit("n1", vcores=1)], bounds=Bounds(waiting_limit=2))
    app = cluster.submit(5)
    cluster.settle()
    assert cluster.states(app) == {"running": 1, "waiting": 2, "pending": 2}
    for executor in range(1, 5):
        cluster.end_process(app, executor)
        cluster.settle()
    assert cluster.states(app) == {"running": 1}


def test_two_schedulers_may_want_the_same_capacity_and_both_get_a_place() -> None:
    cluster = VirtualCluster([unit("n1", vcores=2)], schedulers=2)
    apps = [cluster.submit(2), cluster.submit(2)]
    cluster.settle()
    assert cluster.running() == 2
    assert sum(cluster.states(app).get("waiting", 0) for app in apps) == 2
    assert cluster.master.negotiator.queued == 2


def test_release_frees_the_capacity() -> None:
    cluster = VirtualCluster([unit("n1", vcores=2)])
    app = cluster.submit(3)
    cluster.settle()
    cluster.release(app, 1)
    cluster.settle()
    assert cluster.states(app) == {"running": 2}
    end = cluster.container(app, 1).end
    assert end is not None
    assert end.cause is EndCause.RELEASED


def test_the_end_of_an_application_ends_all_it_has() -> None:
    cluster = VirtualCluster([unit("n1", vcores=1)], bounds=Bounds(waiting_limit=1))
    app = cluster.submit(3)
    cluster.settle()
    cluster.finish(app)
    cluster.settle()
    assert cluster.running() == 0
    assert cluster.states(app) == {}
    assert cluster.durable[app].state is ApplicationState.SUCCEEDED
    queue = next(iter(cluster.nodes["n1"].core.units.values()))
    assert queue.free == queue.capacity
    assert cluster.nodes["n1"].core.containers == {}, "ends are acknowledged and forgotten"


def test_an_application_whose_appmaster_stays_away_fails_after_its_grace() -> None:
    cluster = VirtualCluster([unit("n1")], bounds=Bounds(application_grace_s=5.0))
    app = cluster.submit(1)
    session = cluster.app(app).session
    assert session is not None
    cluster.settle()
    cluster.submit_to_master(
        e.ApplicationDetached(now=cluster.now, application_id=app, session=session)
    )
    cluster.advance(4)
    assert cluster.app(app).life.state is ApplicationState.DETACHED
    assert cluster.running() == 1
    cluster.advance(4)
    assert cluster.app(app).life.state is ApplicationState.FAILED
    assert cluster.running() == 0


def test_a_lost_node_takes_its_containers_and_comes_back_empty() -> None:
    cluster = VirtualCluster([unit("n1"), unit("n2")])
    app = cluster.submit(2)
    cluster.settle()
    node = cluster.nodes["n1"]
    cluster.disconnect(node)
    cluster.advance(20)
    lost = [x for x in cluster.app(app).ended if x.end and x.end.cause is EndCause.NODE_LOST]
    assert len(lost) == 1
    assert cluster.master.master_state.nodes[NodeName("n1")].state is NodeState.LOST
    cluster.register(node)
    cluster.settle()
    assert node.processes == {}, "what ended for the application is stopped when the node returns"
    assert cluster.master.master_state.nodes[NodeName("n1")].state is NodeState.ALIVE


@pytest.mark.parametrize(
    ("silent", "lost_hosts"),
    [
        (["n1"], [""]),
        (["n3"], ["h2"]),
        (["n1", "n2"], ["h1", "h1"]),
        (["n1", "n3"], ["", "h2"]),
    ],
)
def test_a_host_is_lost_with_the_last_node_on_it(silent: list[str], lost_hosts: list[str]) -> None:
    """Spark drops all that executors of the host have left there, so none of them may live."""
    cluster = VirtualCluster([unit("n1"), unit("n2"), unit("n3")])
    for name, host in (("n1", "h1"), ("n2", "h1"), ("n3", "h2")):
        cluster.master.master_state.nodes[NodeName(name)].host = host
    app = cluster.submit(3)
    cluster.settle()
    for name in silent:
        cluster.disconnect(cluster.nodes[name])
    cluster.advance(20)
    notices = [x for x in cluster.notices[app] if isinstance(x, c.ContainerChanged)]
    ends = {x.status.node: x.status.end for x in notices if x.status.end is not None}
    assert [ends[NodeName(name)].lost_host for name in silent] == lost_hosts


def test_while_a_master_awaits_other_nodes_it_says_of_no_host_that_it_is_lost() -> None:
    """The awaited may be on that host, and run."""
    cluster = VirtualCluster([unit("n1"), unit("n2")], bounds=Bounds(recovery_window_s=60.0))
    app = cluster.submit(2)
    cluster.settle()
    cluster.restart_master()
    cluster.register(cluster.nodes["n1"])
    cluster.attach(app)
    cluster.advance(1)
    cluster.disconnect(cluster.nodes["n1"])
    cluster.advance(20)
    (ended,) = cluster.app(app).ended
    assert ended.end is not None
    assert (ended.end.cause, ended.end.lost_host) == (EndCause.NODE_LOST, "")


def test_a_short_break_costs_nothing() -> None:
    cluster = VirtualCluster([unit("n1")])
    app = cluster.submit(2)
    cluster.settle()
    node = cluster.nodes["n1"]
    cluster.disconnect(node)
    cluster.advance(3)
    cluster.register(node)
    cluster.settle()
    assert cluster.states(app) == {"running": 2}


def test_an_assignment_that_was_lost_is_sent_again() -> None:
    cluster = VirtualCluster([unit("n1")])
    node = cluster.nodes["n1"]
    node.connected = False
    app = cluster.submit(1)
    cluster.advance(2)
    assert cluster.states(app) == {"assigned": 1}
    node.connected = True
    cluster.advance(6)
    assert cluster.states(app) == {"running": 1}


def test_two_agents_of_one_name_are_distinguished() -> None:
    cluster = VirtualCluster([unit("n1")])
    other = cluster.nodes["n1"]
    call = e.NodeRegistered(
        now=cluster.now,
        call_id=900,
        node=other.name,
        identity="somebody-else",
        incarnation="9",
        sequence=1,
        host="127.0.0.1",
        endpoint="127.0.0.1:2",
        units=(unit("n1"),),
    )
    cluster.submit_to_master(call)
    result = cluster.replies[900]
    assert isinstance(result, c.Refuse)
    assert isinstance(result.error, AlreadyExists)
    assert "--name" in result.error.message


def test_drain_lets_running_containers_be_and_takes_no_new_ones() -> None:
    cluster = VirtualCluster([unit("n1", vcores=1)])
    app = cluster.submit(2)
    cluster.settle()
    cluster.submit_to_master(
        e.DrainRequested(now=cluster.now, call_id=901, nodes=(NodeName("n1"),))
    )
    cluster.settle()
    assert cluster.states(app) == {"running": 1}
    end = cluster.container(app, 2).end
    assert end is not None
    assert end.cause is EndCause.PREEMPTED
    cluster.request(app, [3])
    cluster.settle()
    assert cluster.states(app) == {"running": 1, "pending": 1}
    undo = e.DrainRequested(now=cluster.now, call_id=902, nodes=(NodeName("n1"),), undo=True)
    cluster.submit_to_master(undo)
    cluster.settle()
    assert cluster.states(app) == {"running": 1, "waiting": 1}


def test_a_restarted_master_finds_everything_running() -> None:
    cluster = VirtualCluster([unit("n1", vcores=2), unit("n2", vcores=2)])
    app = cluster.submit(5)
    cluster.settle()
    before = cluster.states(app)
    cluster.restart_master()
    cluster.attach(app)
    cluster.request(app, range(1, 6))
    cluster.settle()
    assert cluster.states(app) == {"pending": 5}, "nothing new while nodes may be running it"
    nodes: list[VirtualNode] = list(cluster.nodes.values())
    for node in nodes:
        cluster.register(node)
    cluster.settle()
    assert cluster.states(app) == before
    assert cluster.running() == 4
    assert cluster.app(app).life.state is ApplicationState.RUNNING


def test_a_restarted_master_does_not_wait_for_ever_for_a_node() -> None:
    cluster = VirtualCluster([unit("n1", vcores=1), unit("n2", vcores=1)])
    app = cluster.submit(2)
    cluster.settle()
    cluster.restart_master()
    cluster.attach(app)
    cluster.request(app, [1, 2])
    cluster.register(cluster.nodes["n1"])
    cluster.advance(5)
    assert cluster.states(app)["running"] == 1
    assert cluster.master.master_state.recovering
    cluster.advance(10)
    assert cluster.states(app) == {"running": 1}, "n2 may still run the other: that id is used up"
    cluster.request(app, [2, 3])
    cluster.settle()
    assert cluster.states(app) == {"running": 1, "waiting": 1}
    cluster.register(cluster.nodes["n2"])
    cluster.advance(7)
    assert not cluster.nodes["n2"].processes, "what came back too late is stopped"
    assert cluster.states(app) == {"running": 1, "waiting": 1}


def test_a_node_refuses_orders_of_an_older_master() -> None:
    cluster = VirtualCluster([unit("n1")])
    app = cluster.submit(1)
    cluster.settle()
    node = cluster.nodes["n1"]
    cluster.submit_to_node(node, e.MasterConnected(now=cluster.now, epoch=7))
    stop = e.StopReceived(
        now=cluster.now,
        epoch=6,
        container_id=cluster.container(app, 1).container_id,
        cause=EndCause.KILLED,
        reason="an order from the past",
        grace_s=0.0,
    )
    cluster.submit_to_node(node, stop)
    assert len(node.processes) == 1


def test_calls_that_cannot_get_a_reply_are_refused_with_the_reason() -> None:
    cluster = VirtualCluster([unit("n1")], bounds=Bounds(applications_limit=1))
    app = cluster.submit(1)
    registration = e.ApplicationRegistered(
        now=cluster.now,
        call_id=911,
        application_id=ApplicationId(""),
        submission_key="another",
        name="x",
        user="y",
    )
    cluster.submit_to_master(registration)
    assert isinstance(_refusal(cluster, 911), LimitReached)
    missing = ApplicationId("app-none")
    cluster.submit_to_master(e.KillRequested(now=cluster.now, call_id=912, application_id=missing))
    assert isinstance(_refusal(cluster, 912), NotFound)
    attach = e.ApplicationAttached(
        now=cluster.now, call_id=913, application_id=app, session=5, epoch=99
    )
    cluster.submit_to_master(attach)
    assert isinstance(_refusal(cluster, 913), StaleEpoch)
    drain = e.DrainRequested(now=cluster.now, call_id=914, nodes=(NodeName("nowhere"),))
    cluster.submit_to_master(drain)
    assert isinstance(_refusal(cluster, 914), NotFound)


def _refusal(cluster: VirtualCluster, call_id: int) -> Exception:
    result = cluster.replies[call_id]
    assert isinstance(result, c.Refuse)
    return result.error
