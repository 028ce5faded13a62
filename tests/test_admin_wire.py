"""What a master reports of itself to operators."""

from __future__ import annotations

import pytest

from hrm.core.master.core import MasterCore
from hrm.core.vocabulary.bounds import Bounds
from hrm.core.vocabulary.model import ApplicationId, NodeName, Resources
from hrm.core.vocabulary.run_times import RunTime
from hrm.identity.roles import CLUSTER, AccessRole, Identity, IdentityKind
from hrm.policies import load
from hrm.testing.virtual import VirtualCluster, unit
from hrm.v1 import admin_pb2
from hrm.wire.admin import from_cluster, to_kill, to_priority_request

FULL_S = 60.0


def status(cluster: VirtualCluster) -> admin_pb2.Cluster:
    return from_cluster(cluster.master, cluster.now)


def test_after_a_restart_it_reports_which_part_of_its_nodes_is_back() -> None:
    cluster = VirtualCluster(
        [unit("n1"), unit("n2"), unit("n3")], bounds=Bounds(recovery_window_s=60.0)
    )
    assert not status(cluster).HasField("recovery")
    cluster.restart_master()
    assert status(cluster).recovery == admin_pb2.Recovery(nodes_known=3, ends_in_s=60.0)
    cluster.register(cluster.nodes["n1"])
    cluster.advance(20)
    seen = status(cluster).recovery
    assert (seen.nodes_known, seen.nodes_back, seen.may_lack_nodes) == (3, 1, False)
    assert 39.0 <= seen.ends_in_s <= 40.0
    cluster.register(cluster.nodes["n2"])
    cluster.register(cluster.nodes["n3"])
    assert not status(cluster).HasField("recovery"), "all are back"


def test_once_its_time_is_over_it_waits_for_none() -> None:
    cluster = VirtualCluster([unit("n1"), unit("n2")])
    cluster.restart_master()
    cluster.register(cluster.nodes["n1"])
    cluster.advance(cluster.bounds.recovery_window_s + 1)
    assert not status(cluster).HasField("recovery")


def test_nodes_that_the_store_lacks_are_not_counted() -> None:
    core = MasterCore(epoch=2, policies=[load("min-wait", 0)], known_nodes={NodeName("n1"): ""})
    core.nodes.forgot()
    seen = from_cluster(core, 0.0).recovery
    assert (seen.nodes_known, seen.nodes_back, seen.may_lack_nodes) == (1, 0, True)


def test_run_times_that_the_store_knows_are_counted_from_the_start() -> None:
    rows = [
        RunTime(name=name, user="ada", resource_profile_id=0, mean_s=9.0, containers=4)
        for name in ("a", "b")
    ]
    core = MasterCore(epoch=2, policies=[load("min-wait", 0)], run_times=rows)
    errors = from_cluster(core, 0.0).run_time_errors
    assert (errors.learned, errors.containers, errors.unknown) == (2, 0, 0)


def full(policy: str = "min-wait") -> tuple[VirtualCluster, ApplicationId]:
    """One node, full of an application's four executors, which were placed at once."""
    cluster = VirtualCluster(
        [unit("n1", vcores=4)],
        bounds=Bounds(waiting_limit=0),
        policy=lambda index: load(policy, index),
        schedulers=1,
    )
    app = cluster.submit(4)
    cluster.settle()
    assert cluster.states(app) == {"running": 4}
    return cluster, app


def scheduler_of(cluster: VirtualCluster) -> admin_pb2.Scheduler:
    (scheduler,) = status(cluster).schedulers
    return scheduler


@pytest.mark.parametrize("policy", ["min-wait", "fifo"])
@pytest.mark.parametrize("gang_min", [0, 4])
def test_waiting_for_capacity_is_no_latency_of_the_scheduler(policy: str, gang_min: int) -> None:
    """Also where its own round has never failed, because one that wants the same was tried."""
    cluster, running = full(policy)
    waiting = [cluster.submit(4, gang_min=gang_min) for _ in range(3)]
    for app in (running, *waiting):
        cluster.advance(FULL_S)
        cluster.finish(app)
    cluster.settle()
    seen = scheduler_of(cluster)
    assert seen.placed == 16
    assert 0.0 <= seen.decision_p99_s < 1.0, "of the first four"
    assert FULL_S - 1 < seen.capacity_wait_p50_s < seen.capacity_wait_p99_s
    assert 3 * FULL_S - 1 < seen.capacity_wait_p99_s < 3 * FULL_S + 5
    assert seen.delay_p99_s == seen.capacity_wait_p99_s, "all of them together"


def test_what_is_granted_at_once_next_to_one_that_waits_was_decided() -> None:
    cluster, running = full()
    too_large = cluster.submit(1, Resources(4, 1024))
    cluster.release(running, 1)
    cluster.advance(FULL_S)
    small = cluster.submit(1)
    cluster.settle()
    assert (cluster.states(too_large), cluster.states(small)) == ({"pending": 1}, {"running": 1})
    seen = scheduler_of(cluster)
    assert (seen.placed, seen.capacity_wait_p99_s) == (5, 0.0)
    assert seen.decision_p99_s < 1.0


def test_the_age_of_the_oldest_waiting_container_counts_by_itself() -> None:
    cluster, running = full()
    assert scheduler_of(cluster).oldest_wait_s == 0.0
    app = cluster.submit(2)
    cluster.advance(FULL_S)
    cluster.submit(1)
    seen = scheduler_of(cluster)
    assert (seen.queued_jobs, seen.capacity_wait_p99_s) == (2, 0.0)
    assert FULL_S <= seen.oldest_wait_s < FULL_S + 1
    cluster.release(running, 1, 2)
    cluster.settle()
    assert cluster.states(app) == {"running": 2}
    assert scheduler_of(cluster).oldest_wait_s < 2.0, "the other one's"


def test_why_an_application_was_killed_names_its_killer_in_words() -> None:
    ada = Identity(name="ada", kind=IdentityKind.USER, role=AccessRole.OPERATOR)
    request = admin_pb2.KillApplicationRequest(application_id="a")
    assert to_kill(request, 1, 0.0, CLUSTER).reason == "killed by the cluster's administrator"
    assert to_kill(request, 1, 0.0, ada).reason == "killed by user ada"


def test_a_request_for_a_priority_is_as_a_user_and_of_operators_as_nobody() -> None:
    request = admin_pb2.ChangePriorityRequest(application_id="app-1", steps=2)
    user = Identity(name="ada", kind=IdentityKind.USER, role=AccessRole.SUBMITTER)
    operator = Identity(name="ada", kind=IdentityKind.USER, role=AccessRole.OPERATOR)
    asked = [to_priority_request(request, 1, 0.0, by) for by in (user, operator, CLUSTER)]
    assert [x.user for x in asked] == ["ada", "", ""]
