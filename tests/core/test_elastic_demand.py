"""For which of the waiters trainings give up executors: those that would get them."""

from __future__ import annotations

from typing import Any

import pytest

from hrm.core.master import elastic_demand
from hrm.core.master.elastic_demand import ServedWaiters
from hrm.core.tenancy.queue_spec import spec_from
from hrm.core.vocabulary.bounds import Bounds
from hrm.core.vocabulary.model import ApplicationId, Gpu, Resources
from hrm.core.vocabulary.node_requirement import NodeProperties, NodeRequirement
from hrm.core.vocabulary.partitioning import BindingMode, Core, Hardware, Partitioning
from hrm.testing.virtual import VirtualCluster, unit
from tests.core.test_elastic_applications import SIZE, Trainings, converged, learning

AT_THE_MASTER = Bounds(waiting_limit=0)
"""Nothing waits at one unit that could start at another."""
SSD = NodeRequirement(labels=frozenset({"ssd"}))
MACHINE = Hardware(
    cores=tuple(Core(number, numa=0) for number in range(4)),
    memory_mib=4_096,
    gpus=(Gpu(index=0, memory_mib=1_000, numa=0),),
)


def reported(trainings: Trainings, *apps: ApplicationId, epochs: int = 14) -> list[int | None]:
    """The lowest limits of converged trainings within so many epochs; None: there was
    none."""
    lowest: dict[ApplicationId, int] = {}
    for epoch in range(epochs):
        for app in apps:
            trainings.report(app, converged(epoch))
            trainings.keep_to_limit(app)
            if (limit := trainings.limit(app)) is not None:
                lowest[app] = min(limit, lowest.get(app, limit))
    return [lowest.get(app) for app in apps]


def two_nodes(*labels: str) -> Trainings:
    """n0 of 4 cores and 100 MiB, n1 of 1 core and 1,000 MiB, with these labels."""
    cluster = VirtualCluster([unit("n0", 4, 100)], bounds=AT_THE_MASTER)
    properties = NodeProperties(host="127.0.0.1", labels=frozenset(labels), runtimes=None)
    cluster.add_node(unit("n1", 1, 1_000), properties=properties)
    cluster.settle()
    return Trainings(cluster=cluster)


@pytest.mark.parametrize(
    ("size", "more", "is_served"),
    [
        (SIZE, {}, True),
        (Resources(2, 20), {}, True),
        (Resources(1, 500), {}, False),  # more memory than n0 has
        (SIZE, {"requires": SSD}, False),  # n1 is, and a stranger holds it
    ],
    ids=["like", "larger", "memory", "label"],
)
def test_a_waiter_that_no_executor_of_a_training_could_serve_takes_none(
    size: Resources, more: dict[str, Any], is_served: bool
) -> None:
    trainings = two_nodes("ssd")
    stranger = trainings.submit(1, Resources(1, 900))
    flat = trainings.submit(4)
    assert {trainings.cluster.states(x)["running"] for x in (stranger, flat)} == {1, 4}
    waiter = trainings.submit(1, size, **more)
    assert not trainings.cluster.states(waiter).get("running")
    (limit,) = reported(trainings, flat)
    assert (limit is not None) == is_served
    assert bool(trainings.cluster.states(waiter).get("running")) == is_served


def test_a_gang_larger_than_all_that_trainings_could_leave_takes_none() -> None:
    trainings = Trainings(cores=6)
    stranger, flat = trainings.submit(2), trainings.submit(4)
    gang = trainings.submit(4, gang_min=4)
    assert reported(trainings, flat) == [None], "three and none free are no four"
    trainings.cluster.finish(stranger)
    assert reported(trainings, flat)[0] in (2, 3)
    assert trainings.cluster.states(gang) == {"running": 4}


def test_a_waiter_for_a_gpu_takes_executors_of_those_that_hold_some() -> None:
    cluster = VirtualCluster([unit("n0", 4)], bounds=AT_THE_MASTER)
    cluster.add_hardware("n1", MACHINE, Partitioning(mode=BindingMode.EVEN))
    cluster.settle()
    trainings = Trainings(cluster=cluster)
    with_gpu = trainings.submit(2, Resources(1, 10, 500))
    without = trainings.submit(4)
    waiter = trainings.submit(1, Resources(1, 10, 500))
    assert not cluster.states(waiter).get("running")
    assert reported(trainings, without, with_gpu) == [None, 1]
    assert cluster.states(waiter) == {"running": 1}


def test_what_waits_in_a_queue_for_its_share_must_fit_too() -> None:
    trainings = two_nodes()
    halves = [spec_from(name, {"guaranteed": "50%"}) for name in ("root.a", "root.b")]
    trainings.cluster.change_queues(*halves, create=True)
    trainings.submit(1, Resources(1, 900), queue="root.b")
    flat = trainings.submit(4, queue="root.a")
    large = trainings.submit(2, Resources(1, 500), queue="root.b")
    assert not trainings.cluster.states(large).get("running")
    assert reported(trainings, flat) == [None]
    trainings.submit(1, queue="root.b")
    assert reported(trainings, flat)[0] is not None


def test_what_is_free_goes_back_though_something_waits_that_it_would_not_hold() -> None:
    trainings = two_nodes()
    trainings.submit(1, Resources(1, 900))
    flat = trainings.submit(4)
    late = trainings.submit(3)
    assert reported(trainings, flat) == [1]
    trainings.submit(1, Resources(1, 500))
    trainings.cluster.finish(late)
    reported(trainings, flat, epochs=3)
    assert trainings.limit(flat) is None


def test_what_is_free_does_not_go_back_before_a_gang_that_waits_for_it() -> None:
    trainings = Trainings(cores=6)
    trainings.submit(1)
    flat, late = trainings.submit(5), trainings.submit(3)
    assert reported(trainings, flat) == [2]
    gang = trainings.submit(4, gang_min=4)
    reported(trainings, flat)
    assert trainings.limit(flat) == 2, "one is no four"
    trainings.cluster.finish(late)
    assert reported(trainings, flat, epochs=2) == [1]
    assert trainings.cluster.states(gang) == {"running": 4}


def test_a_training_that_waits_is_not_served_by_itself() -> None:
    trainings = Trainings(cores=4)
    flat, learns = trainings.submit(1), trainings.submit(6)
    for epoch in range(10):
        trainings.report(learns, learning(epoch))
        trainings.report(flat, converged(epoch))
    others = trainings.cluster.master.elastic._demand.of_others(
        trainings.cluster.app(flat), trainings.cluster.master.elastic.core.jobs
    )
    assert others == ServedWaiters(0, frozenset(), has_use=False)


def test_an_application_that_waits_at_units_is_one_however_much_it_wants() -> None:
    trainings = Trainings(cores=4)
    flat, _, late = trainings.submit(2), trainings.submit(2), trainings.submit(9)
    assert trainings.cluster.states(late)["waiting"] == 9
    trainings.report(flat, converged(0))
    assert trainings.cluster.master.elastic.core.waiting == 1


def test_of_a_long_backlog_a_bounded_part_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elastic_demand, "LOOKED_MAX", 5)
    monkeypatch.setattr(elastic_demand, "KINDS_MAX", 2)
    trainings = Trainings(cores=4)
    flat = trainings.submit(4)
    for cores in (1, 1, 2, 3, 3, 3):
        trainings.submit(1, Resources(cores, 10))
    elastic = trainings.cluster.master.elastic
    trainings.report(flat, 0.5)
    looked: list[Any] = []
    rows = elastic._demand._rows

    def counted(kind: Any, offers: Any) -> Any:
        looked.append(kind)
        return rows(kind, offers)

    monkeypatch.setattr(elastic._demand, "_rows", counted)
    others = elastic._demand.of_others(trainings.cluster.app(flat), elastic.core.jobs)
    assert others.waiting == 3, "of five that are looked at two are of a third size"
    assert len(looked) == 2
