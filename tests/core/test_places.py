"""What was preempted keeps its place: its replacement stands first where it ran."""

from __future__ import annotations

import pytest

from hrm.core.master.explain import explain
from hrm.core.messages import events as e
from hrm.core.messages.claims import Entry
from hrm.core.queue.resource_unit import UnitQueue
from hrm.core.vocabulary.bounds import PASSES_MAX, Bounds
from hrm.core.vocabulary.model import (
    NO_UNIT,
    ApplicationId,
    ContainerId,
    ContainerRequest,
    Resources,
    ResourceUnit,
    ResourceUnitId,
    WorkloadClass,
)
from hrm.testing.virtual import VirtualCluster, unit
from tests.core.labelled_nodes import SSD, cluster_of, properties
from tests.virtual_scheduler import VirtualScheduler

STREAM, BATCH = WorkloadClass.STREAM, WorkloadClass.BATCH
EACH = pytest.mark.parametrize("schedulers", [1, 2, 6])


def cores(many: int) -> Resources:
    return Resources(many, 64 * many)


def waiting(cluster: VirtualCluster, node: str = "n0") -> list[str]:
    """Batch waiters at a node, in order; the master has the same."""
    unit_id = ResourceUnitId(f"{node}/cpu")
    line = list(cluster.nodes[node].core.units[unit_id].batch_waiting)
    queue = cluster.master.master_state.state.find(unit_id)
    assert queue is not None and list(queue.batch_waiting) == line
    return [x[x.rindex("-") :] for x in line]


def preempted(cluster: VirtualCluster, *, vcores: int = 4) -> tuple[ApplicationId, ApplicationId]:
    """Two applications, one that runs ``vcores`` executors at n0 and one that waits with as many;
    of the first, executor 1 is preempted for a stream and ends."""
    first = cluster.submit(vcores, cores(1), BATCH)
    cluster.settle()
    second = cluster.submit(vcores, cores(1), BATCH)
    cluster.settle()
    assert cluster.states(second) == {"waiting": vcores}
    cluster.submit(1, cores(1), STREAM)
    cluster.settle()
    return first, second


@EACH
def test_a_preempted_executors_replacement_goes_before_batch_that_waits(schedulers: int) -> None:
    cluster = VirtualCluster([unit("n0", 4, 4096)], schedulers=schedulers)
    first, _ = preempted(cluster)
    cluster.request(first, [5], cores(1))
    cluster.settle()
    assert waiting(cluster) == ["-x5", "-x1", "-x2", "-x3", "-x4"]
    _, details = explain(cluster.master.master_state, cluster.app(first), cluster.now)
    why = "executor 5 waits at n0/cpu with 0 before it, in the place of one that was preempted"
    assert any(why in line for line in details)
    cluster.end_process(first, 2)
    cluster.settle()
    assert cluster.container(first, 5).state.value == "running"
    assert waiting(cluster) == ["-x1", "-x2", "-x3", "-x4"]
    cluster.request(first, [6], cores(1))
    cluster.settle()
    assert waiting(cluster)[-1] == "-x6", "there was one place to keep"


@EACH
def test_it_starts_elsewhere_where_there_is_capacity(schedulers: int) -> None:
    cluster = VirtualCluster([unit("n0", 4, 4096)], schedulers=schedulers)
    first, _ = preempted(cluster)
    cluster.add_node(unit("n1", 8, 8192))
    cluster.request(first, [5], cores(1))
    cluster.settle()
    replacement = cluster.container(first, 5)
    assert (replacement.state.value, replacement.node) == ("running", "n1")


@EACH
def test_a_full_queue_costs_it_no_place(schedulers: int) -> None:
    bounds = Bounds(waiting_limit=5)
    cluster = VirtualCluster([unit("n0", 4, 4096)], schedulers=schedulers, bounds=bounds)
    first, second = preempted(cluster)
    cluster.request(second, [5], cores(1))
    cluster.settle()
    cluster.request(first, [5, 6], cores(1))
    cluster.settle()
    assert waiting(cluster) == ["-x5", "-x1", "-x2", "-x3", "-x4", "-x5"]
    assert cluster.container(first, 5).state.value == "waiting"
    assert cluster.container(first, 6).state.value == "pending"


@EACH
def test_where_streams_hold_all_of_the_unit_it_waits_elsewhere(schedulers: int) -> None:
    cluster = VirtualCluster([unit("n0", 1, 1024), unit("n1", 1, 1024)], schedulers=schedulers)
    batch = cluster.submit(2, cores(1), BATCH)
    cluster.settle()
    cluster.submit(1, cores(1), STREAM)
    cluster.settle()
    (victim,) = (x for x in (1, 2) if cluster.container(batch, x).preempted)
    cluster.request(batch, [3], cores(1))
    cluster.settle()
    replacement = cluster.container(batch, 3)
    assert replacement.state.value == "waiting"
    assert replacement.node != cluster.container(batch, victim).node


def excluded_where_it_was(*others: ResourceUnit, schedulers: int) -> VirtualCluster:
    """Of the first application executor 1 is preempted at n0, and 2 fails: n0 is excluded for it.
    Then executor 5 is requested, where ``others``, all taken, are there, too."""
    bounds = Bounds(node_failures=1)
    cluster = VirtualCluster([unit("n0", 4, 4096)], schedulers=schedulers, bounds=bounds)
    first, _ = preempted(cluster)
    for other in others:
        cluster.add_node(other)
        cluster.submit(other.capacity.vcores, cores(1), BATCH)
        cluster.settle()
    cluster.end_process(first, 2, exit_code=52)
    cluster.settle()
    exclusions = cluster.master.master_state.exclusions
    assert exclusions.avoided(first, cluster.now) == {"n0"}
    cluster.request(first, [5], cores(1))
    cluster.settle()
    assert cluster.container(first, 5).state.value == "waiting"
    return cluster


@EACH
def test_it_stands_first_at_an_excluded_node_that_is_the_last(schedulers: int) -> None:
    cluster = excluded_where_it_was(schedulers=schedulers)
    assert waiting(cluster) == ["-x5", "-x2", "-x3", "-x4"], "and its node puts it there"


@EACH
def test_it_does_not_wait_at_an_excluded_node_while_another_could_hold_it(schedulers: int) -> None:
    cluster = excluded_where_it_was(unit("n1", 1, 1024), schedulers=schedulers)
    assert "-x5" not in waiting(cluster)
    assert "-x5" in waiting(cluster, "n1")


@EACH
def test_a_node_that_it_may_not_use_is_no_other_that_could_hold_it(schedulers: int) -> None:
    """The place is at an excluded node, the only one with the label that it requires."""
    bounds = Bounds(node_failures=1)
    nodes = (("n0", properties("ssd")), ("n1", properties()))
    cluster = cluster_of(*nodes, inside=schedulers, bounds=bounds)
    first = cluster.submit(4, cores(1), BATCH, requires=SSD)
    cluster.settle()
    second = cluster.submit(4, cores(1), BATCH, requires=SSD)
    cluster.settle()
    assert cluster.states(second) == {"waiting": 4}
    cluster.submit(1, cores(1), STREAM, requires=SSD)
    cluster.settle()
    cluster.end_process(first, 2, exit_code=52)
    cluster.settle()
    exclusions = cluster.master.master_state.exclusions
    assert exclusions.avoided(first, cluster.now) == {"n0"}
    cluster.request(first, [5], cores(1))
    cluster.settle()
    assert cluster.container(first, 5).state.value == "waiting"
    assert waiting(cluster) == ["-x5", "-x2", "-x3", "-x4"], "n1 is free, and of no use to it"


def test_it_keeps_its_place_when_the_master_restarts() -> None:
    cluster = VirtualCluster([unit("n0", 4, 4096)], drain_s=8.0)
    first, second = preempted(cluster)
    cluster.restart_master()
    for app in (first, second):
        cluster.attach(app)
    cluster.register(cluster.nodes["n0"])
    cluster.settle()
    cluster.request(first, [5], cores(1))
    cluster.settle()
    order = ["-x5", "-x1", "-x2", "-x3", "-x4"]
    assert waiting(cluster) == order, "the victim still ends, and its node reports why"
    cluster.restart_master()
    for app in (first, second):
        cluster.attach(app)
    cluster.register(cluster.nodes["n0"])
    cluster.settle()
    assert waiting(cluster) == order, "the node reports which of those that wait stands first"
    cluster.request(first, [6], cores(1))
    cluster.settle()
    assert waiting(cluster) == [*order, "-x6"], "one victim, one place"


def test_it_takes_its_place_along_when_it_is_moved_before_it_has_run() -> None:
    cluster = VirtualCluster([unit("n0", 4, 4096)])
    first, _ = preempted(cluster)
    cluster.request(first, [5], cores(1))
    cluster.settle()
    node = cluster.nodes["n0"]
    container = cluster.container(first, 5)
    master_state = cluster.master.master_state
    cluster.master.nodes.drains.return_waiters(master_state.nodes[node.name], cluster.now, first)
    cluster.settle()
    assert container.end is not None and waiting(cluster)[0] == "-x1"
    cluster.request(first, [6], cores(1))
    cluster.settle()
    assert waiting(cluster)[0] == "-x6"


def test_a_place_that_nobody_takes_lapses() -> None:
    cluster = VirtualCluster([unit("n0", 4, 4096)])
    first, _ = preempted(cluster)
    cluster.advance(cluster.bounds.application_grace_s + 1)
    cluster.request(first, [5], cores(1))
    cluster.settle()
    assert waiting(cluster)[-1] == "-x5"


def test_the_scheduler_may_be_another_process() -> None:
    cluster = VirtualCluster([unit("n0", 4, 4096)], schedulers=1)
    VirtualScheduler(cluster, "outside")
    first, _ = preempted(cluster)
    cluster.app(first).scheduler = "outside"
    cluster.request(first, [5], cores(1))
    cluster.settle()
    assert waiting(cluster) == ["-x5", "-x1", "-x2", "-x3", "-x4"]
    assert not cluster.master.placement.schedulers["outside"].jobs


def entry(name: str, *, first: bool = False, vcores: int = 1) -> Entry:
    demand = (vcores, 64, 0, 1)
    place = ResourceUnitId("n0/cpu") if first else NO_UNIT
    return Entry(ContainerId(name), BATCH, demand, 60.0, place=place)


def test_those_that_stand_first_keep_their_order_and_starve_none() -> None:
    queue = UnitQueue(unit("n0", 1, 1024))
    queue.run(entry("runs"), 0.0)
    queue.enqueue(entry("waits"))
    for number in range(PASSES_MAX + 2):
        queue.enqueue(entry(f"first-{number}", first=True))
    order = list(queue.batch_waiting)
    assert order[:PASSES_MAX] == [f"first-{x}" for x in range(PASSES_MAX)]
    assert order[PASSES_MAX:] == ["waits", f"first-{PASSES_MAX}", f"first-{PASSES_MAX + 1}"]


def test_an_application_cannot_name_a_place_itself() -> None:
    cluster = VirtualCluster([unit("n0", 1, 1024)])
    cluster.submit(2, cores(1), BATCH)
    other = cluster.submit(0)
    cluster.settle()
    place = ResourceUnitId("n0/cpu")
    request = ContainerRequest(
        executor_id="3", resource_profile_id=0, resources=cores(1), place=place
    )
    cluster.submit_to_master(
        e.ContainersRequested(now=cluster.now, application_id=other, requests=(request,))
    )
    cluster.settle()
    assert waiting(cluster) == ["-x2", "-x3"]
