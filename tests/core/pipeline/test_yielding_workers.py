"""Workers that use what is idle, and give it back."""

from __future__ import annotations

import pytest

from hrm.core.tenancy.queue_spec import spec_from
from hrm.core.vocabulary.bounds import YIELD_GRACE_S, Bounds
from hrm.pipelines.core.workload import WorkerSize
from hrm.testing.virtual import VirtualCluster, unit
from tests.core.pipeline.pool import Pool


def yielding(here: Pool, app: str) -> int:
    containers = here.virtual.master.master_state.applications[app].containers  # type: ignore[index]
    return sum(x.request.yields for x in containers.values())


def test_workers_beyond_those_that_stay_give_way_to_spark() -> None:
    here = Pool(VirtualCluster([unit("n0", 4), unit("n1", 4)]))
    here.virtual.submit(0)
    here.virtual.settle()
    app = here.submit(*(f"t{x}" for x in range(20)))
    here.advance(5)
    assert here.virtual.states(app)["running"] == 8
    keeps = 8 // 3  # parts of two applications and one that may come
    assert yielding(here, app) == len(here.virtual.app(app).containers) - keeps

    spark = here.virtual.submit(8)
    here.advance(YIELD_GRACE_S + 15)

    assert here.virtual.states(spark)["running"] == 8 - keeps
    assert here.virtual.states(app)["running"] == keeps


@pytest.mark.parametrize(("vcores", "keeps"), [(1, 4), (2, 2), (3, 1), (4, 1)])
def test_half_of_the_cluster_is_its_own_in_workers_of_any_size(vcores: int, keeps: int) -> None:
    here = Pool(VirtualCluster([unit("n0", 4), unit("n1", 4)]))
    app = here.submit(*(f"t{x}" for x in range(20)), size=WorkerSize(vcores, 512))
    here.advance(5)
    assert len(here.virtual.app(app).containers) - yielding(here, app) == keeps


def test_where_queues_divide_none_yields_within_its_share() -> None:
    queues = (spec_from("root.pipelines", {"guaranteed": "50%"}),)
    here = Pool(VirtualCluster([unit("n0", 4), unit("n1", 4)], queues=queues))
    app = here.submit(*(f"t{x}" for x in range(20)), queue="pipelines")
    here.advance(5)
    assert here.virtual.states(app)["running"] == 8 and yielding(here, app) == 0


def test_what_a_queue_is_lent_is_given_back_and_its_share_is_not() -> None:
    queues = (
        spec_from("root.spark", {"guaranteed": "50%"}),
        spec_from("root.pipelines", {"guaranteed": "50%"}),
    )
    bounds = Bounds(queue_reclaim_wait_s=1.0, queue_preemption_grace_s=1.0)
    cluster = VirtualCluster([unit("n0", 4), unit("n1", 4)], queues=queues, bounds=bounds)
    here = Pool(cluster)
    app = here.submit(*(f"t{x}" for x in range(20)), queue="pipelines")
    here.advance(5)
    assert here.virtual.states(app)["running"] == 8

    spark = here.virtual.submit(8, queue="spark")
    here.advance(60)

    assert here.virtual.states(spark)["running"] == 4
    assert here.virtual.states(app)["running"] == 4
