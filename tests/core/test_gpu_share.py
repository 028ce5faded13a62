"""How schedulers keep to max-min shares of GPUs."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hrm.core.master.explain import explain
from hrm.core.messages import events as e
from hrm.core.vocabulary.bounds import Bounds
from hrm.core.vocabulary.model import (
    ApplicationId,
    ContainerRequest,
    ContainerState,
    EndCause,
    Resources,
    ResourceUnit,
    ResourceUnitId,
)
from hrm.policies.fifo import Fifo
from hrm.testing.virtual import VirtualCluster, unit
from tests.core.test_max_min import gpu_share
from tests.virtual_scheduler import VirtualScheduler

GPU = Resources(1, 10, 1000)


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
    assert cluster.states(apps[1]) == {"running": 7, "pending": 3}, (
        "it has its share, and queues not"
    )
    assert cluster.states(apps[2]) == {"running": 7, "pending": 13}
    summary, _ = explain(cluster.master.master_state, cluster.app(apps[2]), cluster.now)
    assert "GPUs go first to applications that have fewer of them" in summary


def test_a_job_alone_gets_all_of_them() -> None:
    cluster = VirtualCluster([gpu_unit("n1", 8)], schedulers=1)
    (app,) = submit_together(cluster, 8)
    cluster.settle()
    assert cluster.states(app) == {"running": 8}


@pytest.mark.parametrize(("inside", "processes"), [(1, 0), (2, 0), (0, 2), (1, 2)])
def test_one_that_fits_nowhere_holds_no_share(inside: int, processes: int) -> None:
    cluster = VirtualCluster([gpu_unit("n1", 4)], schedulers=inside)
    for number in range(processes):
        VirtualScheduler(cluster, f"process-{number}")
    filler = cluster.submit(0)
    cluster.request(filler, [1], GPU)
    cluster.settle()
    large, small = cluster.submit(0), cluster.submit(0)
    cluster.request(large, [1], Resources(1, 10, 4000))
    cluster.request(small, [1, 2, 3], GPU)
    cluster.settle()
    assert running(cluster, large, small) == [0, 3], "no GPU is idle"
    cluster.advance(20)
    assert running(cluster, large, small) == [0, 3]
    cluster.finish(filler)
    cluster.finish(small)
    cluster.advance(5)
    assert running(cluster, large) == [1]


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


def gpus(many: int, **options: int | Bounds) -> VirtualCluster:
    """A cluster of that many GPUs, two a node, each for one container of ``GPU``."""
    units = [
        ResourceUnit(
            unit_id=ResourceUnitId(f"n{x // 2}/gpu{x % 2}"),
            capacity=Resources(8, 10_000, GPU.gpu_memory_mib),
            run_limit=8,
        )
        for x in range(many)
    ]
    cluster = VirtualCluster(**options)  # type: ignore[arg-type]
    for x in range(0, many, 2):
        cluster.add_node(*units[x : x + 2])
    cluster.settle()
    return cluster


def running(cluster: VirtualCluster, *apps: ApplicationId) -> list[int]:
    return [cluster.states(app).get("running", 0) for app in apps]


def end_one(cluster: VirtualCluster, app: ApplicationId) -> None:
    """One of an application's executors ends; others are requested no more."""
    executor = next(
        x.request.executor_id for x in cluster.app(app).in_state(ContainerState.RUNNING)
    )
    cluster.end_process(app, int(executor))
    cluster.advance(2)


@pytest.mark.parametrize("schedulers", [1, 2, 6])
@pytest.mark.parametrize(("wanted", "shares"), [([20, 20], [8, 8]), ([2, 10, 20], [2, 7, 7])])
def test_gpus_are_shared_over_all_schedulers(
    schedulers: int, wanted: list[int], shares: list[int]
) -> None:
    cluster = gpus(16, schedulers=schedulers)
    apps = submit_together(cluster, *wanted)
    cluster.settle()
    assert running(cluster, *apps) == shares


@pytest.mark.parametrize("inside", [0, 1, 2])
def test_schedulers_in_other_processes_share_them_too(inside: int) -> None:
    cluster = gpus(16, schedulers=inside)
    for name in ("a", "b"):
        VirtualScheduler(cluster, name)
    cluster.settle()
    apps = submit_together(cluster, 20, 20, 20, 20)
    cluster.settle()
    assert len({cluster.app(app).scheduler for app in apps}) == min(2 + inside, 4)
    assert running(cluster, *apps) == [4, 4, 4, 4]


@pytest.mark.parametrize("schedulers", [1, 2, 6])
def test_the_share_of_a_newcomer_grows_as_containers_end(schedulers: int) -> None:
    cluster = gpus(16, schedulers=schedulers)
    (first,) = submit_together(cluster, 20)
    cluster.settle()
    assert cluster.states(first) == {"running": 16, "waiting": 4}, "alone: it queues at units"
    (second,) = submit_together(cluster, 20)
    cluster.request(first, range(21, 41), GPU)
    cluster.advance(5)
    assert cluster.states(first) == {"running": 16, "pending": 20}, "what it had queued is back"
    assert cluster.states(second) == {"waiting": 8, "pending": 12}, "up to its share"
    for ended in range(1, 9):
        end_one(cluster, first)
        assert running(cluster, first, second) == [16 - ended, ended]
    end_one(cluster, first)
    assert running(cluster, first, second) == [8, 8], "at its share it goes on by itself"
    end_one(cluster, second)
    assert running(cluster, first, second) == [8, 8]


@pytest.mark.parametrize("schedulers", [1, 2, 6])
def test_a_newcomer_need_not_wait_where_preemption_is_on(schedulers: int) -> None:
    cluster = gpus(16, schedulers=schedulers, bounds=Bounds(gpu_preemption=True))
    (first,) = submit_together(cluster, 20)
    cluster.advance(10)
    assert running(cluster, first) == [16]
    (second,) = submit_together(cluster, 20)
    cluster.advance(10)
    assert running(cluster, first, second) == [8, 8]
    ended = list(cluster.app(first).ended)
    preempted = [x for x in ended if x.started_at_s]
    assert len(preempted) == 8, "no more than are above its share"
    assert {x.end.cause for x in preempted if x.end} == {EndCause.PREEMPTED}
    third = submit_together(cluster, 1)
    cluster.advance(10)
    assert running(cluster, *third) == [1]
    assert sorted(running(cluster, first, second)) == [7, 8]
    cluster.advance(60)
    assert sorted(running(cluster, first, second, *third)) == [1, 7, 8], "and there it rests"


def test_one_that_wants_no_more_than_it_has_gives_what_is_above_its_share() -> None:
    cluster = gpus(16, bounds=Bounds(gpu_preemption=True))
    first, second = submit_together(cluster, 16, 0)
    cluster.settle()
    cluster.request(second, range(1, 4), GPU)
    cluster.advance(10)
    assert running(cluster, first, second) == [13, 3]


@pytest.mark.parametrize(("gang", "shares"), [(2, [4, 4]), (6, [6, 2])])
def test_of_a_gang_that_has_started_the_rest_is_preempted(gang: int, shares: list[int]) -> None:
    """It holds all GPUs, most of them beyond the gang that it needs to run."""
    cluster = gpus(8, bounds=Bounds(gpu_preemption=True))
    first = cluster.submit(0, gang_min=gang)
    cluster.request(first, range(1, 9), GPU)
    cluster.advance(10)
    oldest = [str(x) for x in range(1, gang + 1)]
    (second,) = submit_together(cluster, 8)
    cluster.advance(20)
    assert running(cluster, first, second) == shares
    kept = [x.request.executor_id for x in cluster.app(first).in_state(ContainerState.RUNNING)]
    assert set(oldest) <= set(kept), "what has run for longest loses most"


def request_again_after(
    cluster: VirtualCluster, app: ApplicationId, want: Callable[[], int], late_s: float
) -> None:
    """Its AppMaster looks for executors that it lacks once in so many seconds."""

    def look() -> None:
        live = cluster.app(app).containers.values()
        kept = sum(x.state is not ContainerState.STOPPING for x in live)
        first = cluster.app(app).last_executor_number + 1
        if kept < want():
            cluster.request(app, range(first, first + want() - kept), GPU)
        cluster.at(cluster.now + late_s, look)

    cluster.at(cluster.now + late_s, look)


@pytest.mark.parametrize("schedulers", [1, 2, 6])
@pytest.mark.parametrize("lates_s", [(1.0, 1.37), (0.1, 0.23), (0.3, 1.0), (2.5, 0.1)])
def test_two_that_lose_places_in_queues_do_not_take_them_in_turn(
    schedulers: int, lates_s: tuple[float, float]
) -> None:
    """While one requests again what was returned, the other is not alone."""
    cluster = gpus(2, schedulers=schedulers)
    apps = submit_together(cluster, 1, 1)
    cluster.settle()
    for app, late_s in zip(apps, lates_s, strict=True):
        request_again_after(cluster, app, lambda: 6, late_s)
    cluster.advance(10)
    last = [cluster.app(app).last_executor_number for app in apps]
    assert sum(last) <= 27, "each lost its places twice at most"
    cluster.advance(60)
    assert [cluster.app(app).last_executor_number for app in apps] == last, "then all is quiet"
    assert [cluster.states(app) for app in apps] == [{"running": 1, "pending": 5}] * 2


def one_freed_elsewhere(cluster: VirtualCluster, late_s: float) -> list[ApplicationId]:
    """Two applications: an executor of the second waits at a unit, and one of the first ends at
    another, which is requested again after ``late_s``."""
    first, second = submit_together(cluster, 8, 0)
    cluster.advance(3)
    cluster.request(second, [1], GPU)
    cluster.advance(3)
    assert cluster.states(second) == {"waiting": 1}
    (queued,) = cluster.app(second).in_state(ContainerState.WAITING)
    request_again_after(cluster, first, lambda: 8, late_s)
    elsewhere = next(
        x
        for x in cluster.app(first).in_state(ContainerState.RUNNING)
        if x.unit_id != queued.unit_id
    )
    cluster.end_process(first, int(elsewhere.request.executor_id))
    return [first, second]


@pytest.mark.parametrize("schedulers", [1, 2, 6])
@pytest.mark.parametrize("late_s", [0.3, 2.0])
def test_what_one_could_start_elsewhere_is_left_to_it_until_it_requests_again(
    schedulers: int, late_s: float
) -> None:
    cluster = gpus(4, schedulers=schedulers)
    first, second = one_freed_elsewhere(cluster, late_s)
    request_again_after(cluster, second, lambda: 1, late_s)
    cluster.advance(2 * late_s + 2)
    assert running(cluster, first, second) == [3, 1]


def test_a_gpu_is_kept_only_for_a_while_for_what_is_not_requested_again() -> None:
    cluster = gpus(4)
    first, second = one_freed_elsewhere(cluster, 0.5)
    cluster.advance(Bounds().resend_delay_s - 1)
    assert running(cluster, first, second) == [3, 0]
    cluster.advance(3)
    assert running(cluster, first, second) == [4, 0]


@pytest.mark.parametrize("queued", [1, 3, 6])
def test_a_gpu_is_kept_once_for_one_that_requests_nothing_again(queued: int) -> None:
    """However many more of it are queued, that could be returned for the same GPU."""
    cluster = gpus(12)
    first, silent = submit_together(cluster, 12, 0)
    cluster.advance(7)
    cluster.request(silent, range(1, queued + 1), GPU)
    cluster.advance(7)
    assert cluster.states(silent) == {"waiting": queued}
    cluster.request(first, [13], GPU)
    cluster.advance(7)
    waits_at = {x.unit_id for x in cluster.app(silent).in_state(ContainerState.WAITING)}
    live = cluster.app(first).in_state(ContainerState.RUNNING)
    free = next(x for x in live if x.unit_id not in waits_at)
    cluster.end_process(first, int(free.request.executor_id))
    cluster.advance(Bounds().resend_delay_s + 2)
    assert running(cluster, first, silent) == [12, 0]
    # A second one may be ordered back while the first is on its way.
    assert cluster.states(silent).get("waiting", 0) >= queued - 2


def end_away_from(cluster: VirtualCluster, app: ApplicationId, units: set[ResourceUnitId]) -> None:
    live = cluster.app(app).in_state(ContainerState.RUNNING)
    container = next(x for x in live if x.unit_id not in units)
    cluster.end_process(app, int(container.request.executor_id))


def one_that_lets_a_gpu_go_by(
    cluster: VirtualCluster,
) -> tuple[ApplicationId, ApplicationId, set[ResourceUnitId]]:
    """Two applications. The second has two executors queued; one is returned for a GPU that is free
    elsewhere, and not requested again; the other waits where nothing ends, at one of these units.
    """
    first, second = submit_together(cluster, 4, 0)
    cluster.advance(3)
    cluster.request(second, [1, 2], GPU)
    cluster.advance(3)
    assert cluster.states(second) == {"waiting": 2}
    busy = {x.unit_id for x in cluster.app(second).in_state(ContainerState.WAITING)}
    request_again_after(cluster, first, lambda: 8, 0.5)
    end_away_from(cluster, first, busy)
    cluster.advance(Bounds().resend_delay_s + 3)
    assert cluster.states(second) == {"waiting": 1}
    assert running(cluster, first, second) == [4, 0]
    return first, second, busy


@pytest.mark.parametrize("schedulers", [1, 2, 6])
def test_one_that_needed_less_than_was_returned_gets_its_turn_all_the_same(schedulers: int) -> None:
    cluster = gpus(4, schedulers=schedulers)
    first, second, busy = one_that_lets_a_gpu_go_by(cluster)
    request_again_after(cluster, second, lambda: 1, 0.5)
    cluster.advance(Bounds().application_grace_s)
    end_away_from(cluster, first, busy)
    cluster.advance(3)
    assert running(cluster, first, second) == [3, 1]


@pytest.mark.parametrize("schedulers", [1, 2, 6])
def test_one_that_requests_something_after_all_gets_the_next(schedulers: int) -> None:
    cluster = gpus(4, schedulers=schedulers)
    first, second, busy = one_that_lets_a_gpu_go_by(cluster)
    request_again_after(cluster, second, lambda: 2, 0.5)
    cluster.advance(3)
    assert running(cluster, first, second) == [4, 0]
    busy |= {x.unit_id for x in cluster.app(second).in_state(ContainerState.WAITING)}
    end_away_from(cluster, first, busy)
    cluster.advance(3)
    assert running(cluster, first, second) == [3, 1]


def test_nothing_that_runs_ends_for_a_newcomer_by_default() -> None:
    cluster = gpus(16)
    (first,) = submit_together(cluster, 16)
    cluster.settle()
    (second,) = submit_together(cluster, 16)
    cluster.advance(60)
    assert running(cluster, first, second) == [16, 0]


def test_what_one_leaves_the_others_get() -> None:
    cluster = gpus(16)
    apps = submit_together(cluster, 20, 20, 3)
    cluster.settle()
    assert running(cluster, *apps) == [7, 6, 3]
    cluster.finish(apps[0])
    cluster.advance(5)
    assert running(cluster, *apps[1:]) == [13, 3]


def test_a_large_demand_gets_its_turn_among_small_ones() -> None:
    cluster = VirtualCluster([gpu_unit("n1", 4)])
    (small,) = submit_together(cluster, 12)
    cluster.settle()
    large = cluster.submit(0)
    cluster.request(large, [1], Resources(1, 10, 4 * GPU.gpu_memory_mib))
    cluster.advance(5)
    for _ in range(4):
        end_one(cluster, small)
    assert running(cluster, small, large) == [0, 1]


def test_an_application_that_is_excluded_from_what_is_free_leaves_it_to_others() -> None:
    cluster = gpus(4)
    failing, other = submit_together(cluster, 2, 0)
    cluster.settle()
    for _ in range(8):
        nodes = {x.node for x in cluster.app(failing).in_state(ContainerState.RUNNING)}
        cluster.end_process(failing, cluster.app(failing).last_executor_number, exit_code=1)
        next_number = cluster.app(failing).last_executor_number + 1
        cluster.request(failing, [next_number], GPU)
        cluster.settle()
        if len(nodes) > 1:
            break
    cluster.request(other, range(1, 9), GPU)
    cluster.advance(5)
    assert sum(running(cluster, failing, other)) == 4, "no GPU is idle"


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("request"), st.integers(0, 3), st.integers(1, 9)),
        st.tuples(st.just("end"), st.integers(0, 3), st.integers(0, 9)),
    ),
    min_size=1,
    max_size=14,
)


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from([2, 4, 6]),
    st.sampled_from([1, 2, 3]),
    st.integers(0, 1),
    st.sampled_from([0.1, 1.0, 2.5]),
    STEPS,
)
@example(6, 1, 0, 1.0, [("request", 1, 6), ("request", 0, 3), ("request", 1, 1), ("end", 1, 3)])
@example(6, 1, 0, 1.0, [("request", 0, 8), ("request", 3, 2), ("end", 0, 2), ("request", 1, 1),
                        ("request", 2, 3), ("end", 0, 2)])  # fmt: skip
def test_none_gets_a_gpu_while_another_has_two_fewer_and_waits(
    many: int, schedulers: int, processes: int, late_s: float, steps: list[tuple[str, int, int]]
) -> None:
    cluster = gpus(many, schedulers=schedulers)
    for number in range(processes):
        VirtualScheduler(cluster, f"process-{number}")
    apps = [cluster.submit(0, name=f"app-{x}") for x in range(4)]
    wanted = dict.fromkeys(apps, 0)
    for app in apps:
        request_again_after(cluster, app, partial(wanted.__getitem__, app), late_s)
    for what, index, number in steps:
        before, name = running(cluster, *apps), apps[index]
        if what == "request":
            last = cluster.app(name).last_executor_number
            cluster.request(name, range(last + 1, last + 1 + number), GPU)
            wanted[name] += number
        elif live := cluster.app(name).in_state(ContainerState.RUNNING):
            executor = live[number % len(live)].request.executor_id
            cluster.end_process(name, int(executor))
            wanted[name] -= 1
        # What is returned is requested again: for so long a GPU is left to it.
        cluster.advance(4 + cluster.bounds.resend_delay_s)
        after = running(cluster, *apps)
        unserved = [
            count
            for each, count in zip(apps, after, strict=True)
            if cluster.states(each).keys() & {"pending", "waiting"}
        ]
        # Where not all can have the same, those have one more that wanted some first.
        arrived = cluster.master.master_state.gpus.numbers
        there = sorted(apps, key=lambda each: arrived.get(each, math.inf))
        parts = gpu_share(many, [len(cluster.app(each).containers) for each in there])
        shares = dict(zip(there, parts, strict=True))
        for had, has, each in zip(before, after, apps, strict=True):
            least = min(unserved, default=has)
            assert has <= max(had, shares[each], least + 1), (before, after, shares)
        pending = any("pending" in cluster.states(each) for each in apps)
        assert sum(after) == many or not pending, "no GPU is idle while one waits"


def ask(
    cluster: VirtualCluster,
    app: ApplicationId,
    executor: int,
    resources: Resources,
    *,
    again: bool,
) -> None:
    request = ContainerRequest(
        executor_id=str(executor), resource_profile_id=0, resources=resources
    )
    cluster.submit_to_master(
        e.ContainersRequested(now=cluster.now, application_id=app, requests=(request,), again=again)
    )


def one_held_until_all_are_back() -> tuple[VirtualCluster, ApplicationId]:
    """The master has started again, and only a node without GPUs is back. An application has
    requested a GPU executor from the master before, which is held: it has no job."""
    cluster = gpus(4)
    cluster.add_node(unit("cpu-only", 2))
    app = cluster.submit(0)
    cluster.settle()
    cluster.restart_master()
    cluster.attach(app)
    cluster.register(cluster.nodes["cpu-only"])
    ask(cluster, app, 1, GPU, again=True)
    cluster.settle()
    assert cluster.container(app, 1).held
    return cluster, app


def check_shares(cluster: VirtualCluster) -> None:
    """They are what there is, before the master looks again, and after that."""
    shares = cluster.master.placement.gpu_shares
    assert shares.violations() == []
    cluster.submit_to_master(e.Ticked(now=cluster.now))
    assert shares.violations() == []


def test_shares_see_that_a_job_is_no_more_once_all_of_it_is_granted() -> None:
    cluster, app = one_held_until_all_are_back()
    ask(cluster, app, 2, Resources(1, 10), again=False)
    check_shares(cluster)
    cluster.settle()
    assert cluster.states(app) == {"running": 1, "pending": 1}, "one without a GPU"
    check_shares(cluster)


def test_shares_see_that_a_job_is_no_more_once_all_of_it_is_withdrawn() -> None:
    cluster, app = one_held_until_all_are_back()
    ask(cluster, app, 2, Resources(3, 10), again=False)
    check_shares(cluster)
    cluster.settle()
    assert cluster.states(app) == {"pending": 2}
    cluster.release(app, 2)
    check_shares(cluster)


def test_what_waits_for_containers_that_the_master_gave_up_is_not_taken_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They hold nothing that the master knows of, so it is placed where they still end."""
    cluster = VirtualCluster([gpu_unit("n0", 2)], schedulers=1)
    gone = cluster.submit(2, GPU)
    cluster.settle()
    node = cluster.nodes["n0"]
    monkeypatch.setattr(node, "stop", lambda command: None)  # it takes long to end
    cluster.disconnect(node)
    cluster.finish(gone)
    cluster.advance(cluster.bounds.node_timeout_s + 5)
    one, two = submit_together(cluster, 1, 2)
    cluster.register(node)

    cluster.advance(3)

    assert cluster.states(one) == {"waiting": 1}
    assert cluster.app(one).ended_ids == set(), "it was not taken back"
    assert cluster.states(two).get("running", 0) == 0


def test_in_strict_order_one_to_which_no_gpu_goes_does_not_block_the_one_to_which_it_does() -> None:
    cluster = VirtualCluster([gpu_unit("n0", 2)], schedulers=1, policy=Fifo)
    early = cluster.submit(1, GPU)
    cluster.settle()
    large = cluster.submit(1, Resources(1, 10, 2 * GPU.gpu_memory_mib))
    cluster.request(early, [2], GPU)  # behind the other at its scheduler, before it for GPUs
    cluster.settle()
    assert [cluster.states(x) for x in (early, large)] == [
        {"running": 1, "pending": 1},
        {"pending": 1},
    ]

    cluster.end_process(early, 1)
    cluster.advance(5)

    assert cluster.states(early) == {"running": 1}
    cluster.end_process(early, 2)
    cluster.advance(5)
    assert cluster.states(large) == {"running": 1}
