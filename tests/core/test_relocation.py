"""Containers that wait at one unit while another has capacity for them."""

from __future__ import annotations

import pytest

from hrm.core.master import relocation
from hrm.core.master.explain import explain
from hrm.core.vocabulary.bounds import Bounds
from hrm.core.vocabulary.model import (
    ApplicationId,
    ContainerState,
    EndCause,
    Gpu,
    Resources,
    WorkloadClass,
)
from hrm.core.vocabulary.partitioning import BindingMode, Core, Hardware, Partitioning
from hrm.testing.virtual import VirtualCluster, unit
from tests.core.labelled_nodes import SSD, properties

N1, N2 = "n1", "n2"


class Busy:
    """Two nodes of one core each, and what runs on them. ``waiters`` wait where ``stays`` runs."""

    def __init__(
        self,
        waiters: int = 1,
        bounds: Bounds | None = None,
        workload_class: WorkloadClass = WorkloadClass.BATCH,
        new_id: ApplicationId | None = None,
    ) -> None:
        self.cluster = VirtualCluster(
            [unit(N1, vcores=1), unit(N2, vcores=1)], bounds=bounds, preemption_grace_s=None
        )
        first, second = (self.cluster.submit(1) for _ in range(2))
        self.cluster.settle()
        self.apps = []
        for _ in range(waiters):
            self.apps.append(self.cluster.submit(1, workload_class=workload_class, new_id=new_id))
            self.cluster.settle()
        assert all(self.cluster.states(app) == {"waiting": 1} for app in self.apps)
        self.place = self.cluster.container(self.apps[0], 1).node
        self.others = {self.cluster.container(app, 1).node: app for app in (first, second)}

    def end_elsewhere(self) -> None:
        """End a container that runs where the first waiter does not wait."""
        (app,) = (app for node, app in self.others.items() if node != self.place)
        self.cluster.end_process(app, 1)
        self.cluster.finish(app)
        self.cluster.settle()

    def moved(self) -> list[ApplicationId]:
        """Applications whose container was returned by its node."""
        ends = {app: self.cluster.container(app, 1).end for app in self.apps}
        return [app for app, end in ends.items() if end and end.cause is EndCause.PREEMPTED]


def test_one_that_has_waited_long_goes_where_there_is_capacity() -> None:
    busy = Busy()
    (app,) = busy.apps
    assert busy.cluster.states(app) == {"waiting": 1}
    busy.end_elsewhere()
    busy.cluster.advance(12)
    end = busy.cluster.container(app, 1).end
    assert end is not None and end.cause is EndCause.PREEMPTED
    assert "has capacity now" in end.message
    busy.cluster.request(app, [2])
    busy.cluster.settle()
    again = busy.cluster.container(app, 2)
    assert again.state is ContainerState.RUNNING
    assert again.node not in (None, busy.place)


@pytest.mark.parametrize("schedulers", [1, 2, 6])
@pytest.mark.parametrize("mode", [BindingMode.PARTIAL, BindingMode.EVEN])
def test_one_that_waits_for_a_gpu_goes_to_another_of_its_node(
    mode: BindingMode, schedulers: int
) -> None:
    cluster = VirtualCluster(schedulers=schedulers)
    gpus = tuple(Gpu(index=x, memory_mib=1_024) for x in range(2))
    cores = tuple(Core(x) for x in range(8))
    hardware = Hardware(cores=cores, memory_mib=8_192, gpus=gpus)
    cluster.add_hardware("n1", hardware, Partitioning(mode=mode))
    cluster.settle()
    apps = [cluster.submit(0) for _ in range(3)]
    for app in apps:
        cluster.request(app, [1], Resources(1, 64, 1_024))
        cluster.settle()
    waits = cluster.container(apps[2], 1)
    assert waits.state is ContainerState.WAITING
    other = next(x for x in apps[:2] if cluster.container(x, 1).unit_id != waits.unit_id)
    cluster.finish(other)
    cluster.advance(20)
    assert waits.end is not None
    assert waits.end.cause is EndCause.PREEMPTED
    cluster.request(apps[2], [2], Resources(1, 64, 1_024))
    cluster.settle()
    assert cluster.states(apps[2]) == {"running": 1}


def test_none_is_moved_from_where_all_that_is_known_lets_it_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its node runs what the master has given up. It would be placed there again."""
    cluster = VirtualCluster([unit(N1, vcores=1), unit(N2, vcores=1)])
    apps = [cluster.submit(1) for _ in range(2)]
    cluster.settle()
    gone, stays = sorted(apps, key=lambda app: str(cluster.container(app, 1).node))
    node = cluster.nodes[N1]
    monkeypatch.setattr(node, "stop", lambda command: None)  # it takes long to end
    cluster.disconnect(node)
    cluster.finish(gone)
    cluster.advance(cluster.bounds.node_timeout_s + 5)
    cluster.register(node)
    waits = cluster.submit(1)
    cluster.settle()
    assert cluster.container(waits, 1).node == N1
    cluster.end_process(stays, 1)
    cluster.finish(stays)
    cluster.advance(30)
    assert cluster.states(waits) == {"waiting": 1}
    assert not cluster.app(waits).ended_ids, "it was not moved"


def test_none_is_moved_before_a_while() -> None:
    busy = Busy(bounds=Bounds(relocation_wait_s=60.0))
    busy.end_elsewhere()
    busy.cluster.advance(30)
    assert not busy.moved()
    busy.cluster.advance(35)
    assert busy.moved() == busy.apps


def test_where_there_is_no_capacity_a_place_in_a_line_is_kept() -> None:
    busy = Busy(waiters=2)
    busy.cluster.advance(60)
    assert not busy.moved()


def test_no_more_are_moved_than_find_capacity_and_the_oldest_first() -> None:
    busy = Busy(waiters=4, bounds=Bounds(relocation_wait_s=30.0))
    there = [app for app in busy.apps if busy.cluster.container(app, 1).node == busy.place]
    elsewhere = [app for app in busy.apps if app not in there]
    busy.end_elsewhere()
    for app in elsewhere:  # they waited at the unit that is free now, and have started
        busy.cluster.end_process(app, 1)
        busy.cluster.finish(app)
        busy.cluster.settle()
    assert len(there) > 1
    busy.cluster.advance(29)
    assert busy.moved() == there[:1]


def test_what_is_too_small_is_no_capacity() -> None:
    cluster = VirtualCluster([unit(N1, vcores=2), unit(N2, vcores=1)])
    small = cluster.submit(3)
    cluster.settle()
    large = cluster.submit(1, Resources(2, 1024))
    cluster.settle()
    (there,) = (x for x in (1, 2, 3) if cluster.container(small, x).node == N2)
    cluster.end_process(small, there)
    cluster.advance(30)
    assert cluster.states(large) == {"waiting": 1}


def test_a_stream_moves_too() -> None:
    busy = Busy(bounds=Bounds(relocation_wait_s=5.0), workload_class=WorkloadClass.STREAM)
    (app,) = busy.apps
    assert busy.cluster.states(app) == {"waiting": 1}
    busy.end_elsewhere()
    busy.cluster.advance(8)
    assert busy.moved() == [app]


def test_a_driver_waits_where_it_is() -> None:
    busy = Busy(new_id=ApplicationId("driver-20260101000000-0001"))
    busy.end_elsewhere()
    busy.cluster.advance(30)
    assert not busy.moved()


def test_what_fits_nowhere_hides_nothing_and_all_units_have_their_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """More units with waiters, and with some capacity, than are examined at once."""
    monkeypatch.setattr(relocation, "ROWS_MAX", 2)
    nodes = [unit(f"n{number}", vcores=2) for number in range(6)]
    cluster = VirtualCluster(nodes, bounds=Bounds(relocation_wait_s=20.0))
    wide = [cluster.submit(1, Resources(2, 1024)) for _ in nodes]
    cluster.settle()
    behind = [cluster.submit(1, Resources(2, 1024)) for _ in nodes]
    cluster.settle()
    place = {cluster.container(app, 1).node: app for app in behind}
    assert len(place) == len(nodes), "one waits at each"
    cluster.add_node(unit("new", vcores=2))
    cluster.advance(30)
    ends = [cluster.container(app, 1).end for app in behind]
    assert sum(end is not None and end.cause is EndCause.PREEMPTED for end in ends) == 1
    assert [cluster.states(app) for app in wide] == [{"running": 1}] * len(wide)


@pytest.mark.parametrize("late", [False, True], ids=["running", "later"])
@pytest.mark.parametrize("schedulers", [1, 2, 6])
def test_a_stream_moves_from_batch_that_is_kept_to_batch_that_is_preempted(
    schedulers: int, *, late: bool
) -> None:
    cluster = VirtualCluster(schedulers=schedulers, preemption_grace_s=None)
    cluster.add_node(unit(N2, vcores=1))
    cluster.settle()
    kept = cluster.submit(1)
    cluster.settle()
    cluster.preemption_grace_s = 15.0
    cluster.add_node(unit(N1, vcores=1))
    cluster.settle()
    before = cluster.submit(1, workload_class=WorkloadClass.STREAM)
    cluster.settle()
    stream = cluster.submit(1, workload_class=WorkloadClass.STREAM)
    cluster.advance(20)
    assert cluster.states(stream) == {"waiting": 1}, "a last resort: streams hold the other node"
    _, details = explain(cluster.master.master_state, cluster.app(stream), cluster.now)
    assert "batch is not preempted there (preemption = false of the agent)" in details[-1]
    if late:
        rival = cluster.submit(1)
    cluster.finish(before)
    if not late:
        rival = cluster.submit(1)
    cluster.advance(5)
    assert cluster.states(rival) == {"running": 1}
    (moved,) = cluster.app(stream).ended
    assert moved.end is not None and moved.end.cause is EndCause.PREEMPTED
    cluster.request(stream, [2])
    cluster.advance(20)
    assert cluster.container(stream, 2).node == N1
    assert cluster.states(stream) == {"running": 1}
    assert cluster.states(kept) == {"running": 1}
    assert len(cluster.app(stream).ended) == 1


@pytest.mark.parametrize("why_not", ["excluded", "unlabelled"])
def test_a_stream_moves_to_no_node_that_is_not_for_it(why_not: str) -> None:
    """Batch would be preempted for it there."""
    cluster = VirtualCluster(preemption_grace_s=None)
    requires = SSD if why_not == "unlabelled" else None
    cluster.add_node(unit(N2, vcores=1), properties=properties("ssd", host="h2"))
    cluster.settle()
    cluster.submit(1)
    cluster.settle()
    stream = cluster.submit(1, workload_class=WorkloadClass.STREAM, requires=requires)
    cluster.settle()
    assert cluster.states(stream) == {"waiting": 1}
    if why_not == "excluded":
        cluster.exclude(stream, "h1")
    cluster.preemption_grace_s = 15.0
    cluster.add_node(unit(N1, vcores=1), properties=properties(host="h1"))
    cluster.settle()
    rival = cluster.submit(1)
    cluster.advance(60)
    assert cluster.states(rival) == {"running": 1}
    assert cluster.states(stream) == {"waiting": 1}
    assert not cluster.app(stream).ended


@pytest.mark.parametrize("schedulers", [1, 2, 6])
def test_a_stream_stays_where_nothing_would_preempt_batch_for_it(schedulers: int) -> None:
    cluster = VirtualCluster(schedulers=schedulers, preemption_grace_s=None)
    cluster.add_node(unit(N1, vcores=1))
    cluster.add_node(unit(N2, vcores=1))
    cluster.submit(2)
    cluster.settle()
    stream = cluster.submit(1, workload_class=WorkloadClass.STREAM)
    cluster.advance(60)
    assert cluster.states(stream) == {"waiting": 1}
    assert not cluster.app(stream).ended


def test_batch_goes_where_no_stream_has_come_to_stay() -> None:
    """It would wait for an end that may never come, and keep a gang from what is free there."""
    virtual = VirtualCluster([unit(N1, vcores=3)])
    short = virtual.submit(2)
    virtual.settle()
    waits = virtual.submit(1, Resources(3, 1024))
    virtual.settle()
    assert virtual.states(waits) == {"waiting": 1}
    virtual.submit(1, workload_class=WorkloadClass.STREAM)
    virtual.settle()
    gang = virtual.submit(2, gang_min=2)
    for executor in (1, 2):
        virtual.end_process(short, executor)
    virtual.finish(short)
    virtual.settle()
    assert virtual.states(gang) == {"pending": 2}
    virtual.advance(virtual.bounds.relocation_wait_s + 5)
    assert virtual.states(waits) == {}, "it is returned"
    assert virtual.states(gang) == {"running": 2}
