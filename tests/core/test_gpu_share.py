"""Max-min shares of GPUs, and how a scheduler keeps to them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hrm.core.scheduling.scheduler import gpu_share
from hrm.core.vocabulary.model import ApplicationId, Resources, ResourceUnit, ResourceUnitId
from hrm.testing.virtual import VirtualCluster

DEMANDS = st.lists(st.integers(0, 20), max_size=8)
GPU = Resources(1, 10, 1000)


@pytest.mark.parametrize(
    ("free", "wanted", "shares"),
    [
        (16, [2, 10, 20], [2, 7, 7]),
        (16, [1, 1, 1, 40], [1, 1, 1, 13]),
        (2, [4, 4, 4], [1, 1, 0]),
        (0, [1, 2], [0, 0]),
        (5, [], []),
        (7, [0, 9], [0, 7]),
    ],
)
def test_check_values(free: int, wanted: list[int], shares: list[int]) -> None:
    assert gpu_share(free, wanted) == shares


@given(st.integers(0, 60), DEMANDS)
def test_none_could_get_more_without_taking_from_what_has_no_more(
    free: int, wanted: list[int]
) -> None:
    shares = gpu_share(free, wanted)
    assert all(0 <= share <= want for share, want in zip(shares, wanted, strict=True))
    assert sum(shares) == min(free, sum(wanted))
    short = [share for share, want in zip(shares, wanted, strict=True) if share < want]
    if short:
        assert max(shares) <= min(short) + 1


@given(st.integers(0, 60), DEMANDS)
def test_with_one_gpu_more_no_job_gets_less(free: int, wanted: list[int]) -> None:
    before, after = gpu_share(free, wanted), gpu_share(free + 1, wanted)
    assert sum(after) >= sum(before)
    assert sorted(after)[:1] >= sorted(before)[:1]


def gpu_unit(node: str, containers: int) -> ResourceUnit:
    return ResourceUnit(
        unit_id=ResourceUnitId(f"{node}/gpu0"),
        capacity=Resources(64, 10_000, containers * GPU.gpu_memory_mib),
        run_limit=64,
    )


def submit_together(cluster: VirtualCluster, *wanted: int) -> list[ApplicationId]:
    apps = [cluster.submit(0, name=f"app-{number}") for number in range(len(wanted))]
    for app, many in zip(apps, wanted, strict=True):
        cluster.request(app, range(1, many + 1), GPU)
    return apps


def test_jobs_that_ask_together_share_the_gpus() -> None:
    cluster = VirtualCluster([gpu_unit(f"n{x}", 2) for x in range(8)], schedulers=1)
    apps = submit_together(cluster, 2, 10, 20)
    cluster.settle()
    assert [cluster.states(app)["running"] for app in apps] == [2, 7, 7]
    assert cluster.states(apps[1]) == {"running": 7, "waiting": 3}, "no GPU is left: it queues"
    assert cluster.states(apps[2]) == {"running": 7, "waiting": 13}


def test_a_job_alone_gets_all_of_them() -> None:
    cluster = VirtualCluster([gpu_unit("n1", 8)], schedulers=1)
    (app,) = submit_together(cluster, 8)
    cluster.settle()
    assert cluster.states(app) == {"running": 8}


def test_one_that_fits_nowhere_holds_no_share() -> None:
    cluster = VirtualCluster([gpu_unit("n1", 4)], schedulers=1)
    filler = cluster.submit(0)
    cluster.request(filler, [1], GPU)
    cluster.settle()
    apps = [cluster.submit(0), cluster.submit(0)]
    cluster.request(apps[0], [1], Resources(1, 10, 4000))
    cluster.request(apps[1], [1, 2, 3], GPU)
    cluster.settle()
    running = cluster.states(apps[1]).get("running", 0)
    waiting = cluster.states(apps[1]).get("waiting", 0)
    assert (running, running + waiting) in ((3, 3), (0, 3)), "either passes or queues, none is lost"
    cluster.finish(filler)
    cluster.finish(apps[0])
    cluster.advance(5)
    assert cluster.states(apps[1]) == {"running": 3}


def test_a_gang_that_does_not_fit_keeps_no_gpu_from_others() -> None:
    cluster = VirtualCluster([gpu_unit("n1", 4)], schedulers=1)
    filler = cluster.submit(0)
    cluster.request(filler, [1, 2], GPU)
    cluster.settle()
    gangs = [cluster.submit(4, GPU, gang_min=4) for _ in range(2)]
    cluster.settle()
    single = cluster.submit(2, GPU)
    cluster.settle()
    assert [cluster.states(gang) for gang in gangs] == [{"pending": 4}] * 2
    assert cluster.states(single) == {"running": 2}, "both that are free, for no gang can use one"


def test_a_gang_that_fits_has_its_share() -> None:
    cluster = VirtualCluster([gpu_unit("n1", 4)], schedulers=1)
    greedy, gang = cluster.submit(0), cluster.submit(0, gang_min=2)
    cluster.request(greedy, range(1, 9), GPU)
    cluster.request(gang, [1, 2], GPU)
    cluster.settle()
    assert cluster.states(gang) == {"running": 2}
