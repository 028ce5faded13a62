"""What a master reports of itself to operators."""

from __future__ import annotations

from hrm.core.master.core import MasterCore
from hrm.core.vocabulary.bounds import Bounds
from hrm.core.vocabulary.model import NodeName
from hrm.core.vocabulary.run_times import RunTime
from hrm.policies import load
from hrm.testing.virtual import VirtualCluster, unit
from hrm.v1 import admin_pb2
from hrm.wire.admin import from_cluster


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
