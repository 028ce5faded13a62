"""What waits for GPUs at units, as shares count it."""

from __future__ import annotations

import pytest

from hrm.core.master.gpu_queues import queued_for
from hrm.core.vocabulary.model import ApplicationId, Resources, ResourceUnit, ResourceUnitId
from hrm.testing.virtual import VirtualCluster

LARGE, EARLY, SMALL = Resources(2, 10, 8_000), Resources(2, 10, 2_000), Resources(1, 10, 4_000)


@pytest.fixture(params=[1, 2], ids=["one scheduler", "two"])
def blocked(request: pytest.FixtureRequest) -> tuple[VirtualCluster, list[ApplicationId]]:
    """A core and half of a GPU are free: too few cores for the one that waits there, and enough for
    those of the one that comes last."""
    unit = ResourceUnit(
        unit_id=ResourceUnitId("n0/gpu0"), capacity=Resources(3, 10_000, 16_000), run_limit=4
    )
    cluster = VirtualCluster([unit], schedulers=request.param)
    apps = [cluster.submit(0, name=f"app-{number}") for number in range(3)]
    for app, size in zip(apps[:2], (LARGE, EARLY), strict=True):
        cluster.request(app, [1], size)
        cluster.settle()
    cluster.request(apps[2], [1, 2, 3], SMALL)
    cluster.settle()
    return cluster, apps


def test_one_that_waits_first_keeps_its_place_while_it_has_the_least(
    blocked: tuple[VirtualCluster, list[ApplicationId]],
) -> None:
    """What is free behind it is shared out as if it did not wait there: else its share would be
    nothing because it waits, it would be taken back, and queue there again at once."""
    cluster, (large, early, small) = blocked

    cluster.advance(5)

    assert cluster.states(early) == {"waiting": 1}
    assert cluster.app(early).ended_ids == set(), "it was not taken back"
    cluster.end_process(large, 1)
    cluster.advance(5)
    assert cluster.states(early) == {"running": 1}
    assert cluster.states(small)["running"] == 1


def test_what_is_free_behind_one_that_waits_is_counted_for_those_that_fit(
    blocked: tuple[VirtualCluster, list[ApplicationId]],
) -> None:
    cluster, (large, early, small) = blocked
    shares = cluster.master.placement.gpu_shares
    (users,) = shares._kinds(cluster.now)

    found = queued_for(
        cluster.master.master_state.state, users, [shares._nodes(x, cluster.now) for x in users]
    )

    assert [user.application_id for user in users] == [large, early, small]
    assert [*found.starting_mib] == [0, 0, 0]
    assert [[*x] for x in found.behind] == [[0], [0], [1]]
