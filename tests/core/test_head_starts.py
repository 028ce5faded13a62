"""What becomes free goes to who came first, at another process, too; and delays nobody for long."""

from __future__ import annotations

import itertools

import pytest

from hrm.core.master.head_starts import HEAD_START_S
from hrm.core.scheduling.remote_scheduler import SEND_INTERVAL_S, RemoteScheduler
from hrm.core.vocabulary.bounds import Bounds
from hrm.core.vocabulary.model import (
    ApplicationId,
    ContainerEnd,
    ContainerId,
    EndCause,
    Resources,
)
from hrm.testing.virtual import SMALL, VirtualCluster, unit
from tests.virtual_scheduler import VirtualScheduler


def cluster_of(vcores: int, *, network_delay_s: float = 0.001) -> VirtualCluster:
    """One scheduler inside; nothing waits at a unit."""
    return VirtualCluster(
        [unit("n1", vcores=vcores)],
        schedulers=1,
        bounds=Bounds(waiting_limit=0),
        network_delay_s=network_delay_s,
    )


def submit_to(
    cluster: VirtualCluster, name: str, many: int, resources: Resources = SMALL
) -> ApplicationId:
    """An application of the scheduler ``name``."""
    while True:
        app = cluster.submit(0)
        if cluster.app(app).scheduler == name:
            cluster.request(app, range(1, many + 1), resources)
            return app
        cluster.finish(app)


def waits_s(cluster: VirtualCluster, app: ApplicationId, state: str, limit_s: float) -> float:
    """How long until all of ``app`` is in ``state``, without a tick."""
    since_s = cluster.now
    while set(cluster.states(app)) != {state}:
        assert cluster.now - since_s < limit_s, cluster.states(app)
        cluster.advance(0.001)
    return cluster.now - since_s


@pytest.mark.parametrize("processes", [1, 2, 6])
@pytest.mark.parametrize("network_delay_s", [0.001, 0.005])
def test_what_came_first_gets_what_becomes_free_inside_and_at_processes(
    processes: int, network_delay_s: float
) -> None:
    """Applications of three containers each on two cores: granted in order of arrival."""
    cluster = cluster_of(2, network_delay_s=network_delay_s)
    for number in range(processes):
        VirtualScheduler(cluster, f"outside-{number}")
    apps = []
    for _ in range(14):
        apps.append(cluster.submit(3))
        cluster.advance(0.5)
    assert len({cluster.app(app).scheduler for app in apps}) == 1 + processes
    granted: dict[ContainerId, None] = {}
    for _ in range(21):
        (node,) = cluster.nodes.values()
        granted |= dict.fromkeys(sorted(node.processes))
        for container_id in sorted(node.processes):
            node.end(container_id, ContainerEnd(cause=EndCause.EXITED, exit_code=0))
            cluster.advance(0.5)
    places = [apps.index(ApplicationId(x.rpartition("-x")[0])) for x in granted]
    assert sorted(places) == sorted(number for number in range(14) for _ in range(3))
    assert all(later >= earlier - 1 for earlier, later in itertools.pairwise(places)), places


def test_one_that_hangs_delays_those_inside_once() -> None:
    cluster = cluster_of(2)
    outside = VirtualScheduler(cluster, "outside")
    holds = submit_to(cluster, "scheduler-1", 2)
    cluster.settle()
    submit_to(cluster, "outside", 1)
    cluster.advance(4.0)
    first = submit_to(cluster, "scheduler-1", 1)
    cluster.advance(4.0)
    outside.hangs = True
    cluster.end_process(holds, 1)
    delayed_s = waits_s(cluster, first, "running", 1.0)
    assert delayed_s <= SEND_INTERVAL_S + HEAD_START_S + 0.01
    second = submit_to(cluster, "scheduler-1", 1)
    cluster.advance(0.9)
    cluster.end_process(holds, 2)
    assert waits_s(cluster, second, "running", 1.0) <= 0.01


def test_what_cannot_use_it_delays_nobody_and_makes_no_round() -> None:
    cluster = cluster_of(4)
    outside = VirtualScheduler(cluster, "outside")
    holds = submit_to(cluster, "scheduler-1", 4)
    cluster.settle()
    submit_to(cluster, "outside", 1, Resources(4, 1024))
    cluster.advance(10.0)
    rounds = outside.scheduler.rounds
    for executor in range(1, 41):
        cluster.end_process(holds, executor)
        cluster.request(holds, [executor + 4])
        cluster.advance(0.1)
        states = cluster.states(holds)
        assert states == {"running": 4}, "what is inside takes it at once"
    assert outside.scheduler.rounds - rounds <= 4, "no more than its back-off leads to"


@pytest.mark.parametrize("moment", range(12))
def test_a_round_under_way_does_not_hide_what_becomes_free(moment: int) -> None:
    """The job of that round used to back off for seconds next to a free place."""
    cluster = cluster_of(2, network_delay_s=0.05)
    VirtualScheduler(cluster, "outside")
    holds = submit_to(cluster, "scheduler-1", 2)
    cluster.settle()
    waiting = submit_to(cluster, "outside", 1)
    cluster.advance(12.0)
    mirrored = cluster.master.placement.schedulers["outside"]
    assert isinstance(mirrored, RemoteScheduler)
    rounds = mirrored.rounds
    while mirrored.rounds == rounds:  # one has just been committed: the next is due in two seconds
        cluster.advance(0.01)
    cluster.advance(1.85 + 0.02 * moment)
    cluster.end_process(holds, 1)
    assert waits_s(cluster, waiting, "running", 3.0) <= 0.5
