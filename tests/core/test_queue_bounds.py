"""What is larger than a queue may ever have is refused when it is requested."""

from __future__ import annotations

import pytest

from hrm.core.messages import commands as c
from hrm.core.tenancy.queue_spec import spec_from
from hrm.core.vocabulary.model import ApplicationId, NodeState, Resources, WorkloadClass
from hrm.testing.virtual import VirtualCluster, unit


def cluster(**maximum: object) -> VirtualCluster:
    queues = [spec_from("root.team", {"maximum": maximum}), spec_from("root.team.job", {})]
    return VirtualCluster([unit(f"n{x}", 4) for x in range(2)], queues=queues)


def refusals(virtual: VirtualCluster, app: ApplicationId) -> list[str]:
    return [x.message for x in virtual.notices.get(app, []) if isinstance(x, c.RequestRefused)]


@pytest.mark.parametrize(
    ("maximum", "resources", "why"),
    [
        ({"cores": 2}, Resources(3, 512), "is more cores than the queue root.team may ever have"),
        ({"cores": 2}, Resources(3, 512), "(maximum cores = 2)"),
        ({"memory": "1g"}, Resources(1, 1_025), "is more memory than the queue root.team"),
        ({"cores": "25%"}, Resources(3, 512), "(maximum cores = 25%)"),
        ({"cores": 2}, Resources(3, 512), "raise it: hrm queue set root.team --maximum"),
    ],
)
def test_one_container_larger_than_a_maximum_above_it_is_refused(
    maximum: dict[str, object], resources: Resources, why: str
) -> None:
    virtual = cluster(**maximum)
    virtual.advance(virtual.bounds.application_grace_s)
    app = virtual.submit(1, resources, queue="root.team.job")
    (message,) = refusals(virtual, app)
    assert why in message
    assert virtual.states(app) == {}


def test_as_much_as_the_maximum_is_let_in_and_so_is_everything_elsewhere() -> None:
    virtual = cluster(cores=3)
    here = virtual.submit(1, Resources(3, 512), queue="root.team.job")
    other = virtual.submit(1, Resources(4, 512))
    virtual.advance(3)
    assert virtual.states(here) == virtual.states(other) == {"running": 1}


@pytest.mark.parametrize("kind", [WorkloadClass.BATCH, WorkloadClass.STREAM])
def test_a_gang_larger_than_a_maximum_is_refused(kind: WorkloadClass) -> None:
    virtual = cluster(cores=3)
    many = {"gang_min": 4} if kind is WorkloadClass.BATCH else {"stream_min": 4}
    app = virtual.submit(4, Resources(1, 512), kind, queue="root.team.job", **many)  # type: ignore[arg-type]
    (message,) = refusals(virtual, app)
    assert "4 executors are to start together" in message
    assert "more cores than the queue root.team may ever have (maximum cores = 3)" in message
    fits = virtual.submit(3, Resources(1, 512), kind, queue="root.team.job", gang_min=3)
    virtual.advance(3)
    assert virtual.states(fits) == {"running": 3}


def test_a_part_of_a_cluster_refuses_nothing_while_a_node_is_away() -> None:
    virtual = cluster(cores="50%")
    virtual.disconnect(virtual.nodes.pop("n1"))
    virtual.advance(120)
    states = {x.state for x in virtual.master.master_state.nodes.values()}
    assert NodeState.LOST in states
    app = virtual.submit(1, Resources(4, 512), queue="root.team.job")
    assert not refusals(virtual, app)


def test_a_part_of_a_cluster_whose_nodes_may_yet_come_refuses_nothing_before_they_have() -> None:
    virtual = cluster(cores="25%")
    app = virtual.submit(1, Resources(3, 512), queue="root.team.job")
    virtual.advance(virtual.bounds.application_grace_s / 2)
    assert not refusals(virtual, app)

    virtual.advance(virtual.bounds.application_grace_s)

    assert len(refusals(virtual, app)) == 1
    assert virtual.states(app) == {}
