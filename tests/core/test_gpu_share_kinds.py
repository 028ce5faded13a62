"""Shares of GPUs where executors differ: in how many GPUs they use, and in device memory."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hrm.core.messages import events as e
from hrm.core.node.core import NodeCore
from hrm.core.vocabulary.bounds import Bounds
from hrm.core.vocabulary.feasibility import demand_vector, fits, plus
from hrm.core.vocabulary.model import (
    ApplicationId,
    ContainerId,
    ContainerRequest,
    ContainerState,
    EndCause,
    Gpu,
    NodeName,
    Resources,
    ResourceUnit,
    ResourceUnitId,
)
from hrm.sim.oracle.gpu_fairness import even_shares
from hrm.testing.virtual import VirtualCluster, unit
from tests.virtual_scheduler import VirtualScheduler

MIB = 1000
SMALL = Resources(1, 10)
SCHEDULERS = pytest.mark.parametrize(("inside", "processes"), [(1, 0), (2, 0), (0, 2), (1, 2)])


def gpu_node(name: str, gpus: int = 1, *, vcores: int = 8, run_limit: int = 40) -> NodeCore:
    """One unit with so many GPUs of ``MIB`` each."""
    first, *more = (Gpu(index=x, memory_mib=MIB) for x in range(gpus))
    gpu_unit = ResourceUnit(
        unit_id=ResourceUnitId(f"{name}/gpu0"),
        capacity=Resources(vcores, 10_000, gpus * MIB),
        run_limit=run_limit,
        gpu=first,
        more_gpus=tuple(more),
    )
    return NodeCore(NodeName(name), (gpu_unit,))


def cluster_of(
    inside: int,
    processes: int,
    ones: int,
    twos: int = 0,
    *,
    vcores: int = 8,
    preemption: bool = False,
    drain_s: float = 1.0,
) -> VirtualCluster:
    """``ones`` units of one GPU, ``twos`` of two."""
    bounds = Bounds(gpu_preemption=preemption)
    cluster = VirtualCluster(schedulers=inside, bounds=bounds, drain_s=drain_s)
    for x in range(processes):
        VirtualScheduler(cluster, f"process-{x}")
    for x in range(ones):
        cluster.add_core(gpu_node(f"one-{x}", vcores=vcores))
    for x in range(twos):
        cluster.add_core(gpu_node(f"two-{x}", 2, vcores=vcores))
    cluster.settle()
    return cluster


def request(
    cluster: VirtualCluster, app: ApplicationId, many: int, resources: Resources, gpus: int = 0
) -> None:
    """``many`` more executors, of a profile of their own for each number of GPUs and size."""
    first = cluster.app(app).last_executor_number + 1
    requests = tuple(
        ContainerRequest(
            executor_id=str(first + x),
            resource_profile_id=gpus + 10 * resources.gpu_memory_mib,
            resources=resources,
            gpus=gpus,
        )
        for x in range(many)
    )
    event = e.ContainersRequested(now=cluster.now, application_id=app, requests=requests)
    cluster.submit_to_master(event)


def running(cluster: VirtualCluster, *apps: ApplicationId) -> list[int]:
    return [cluster.states(app).get("running", 0) for app in apps]


def held_mib(cluster: VirtualCluster, *apps: ApplicationId) -> list[int]:
    """The device memory of what runs."""
    return [
        sum(
            x.request.resources.gpu_memory_mib
            for x in cluster.app(app).in_state(ContainerState.RUNNING)
        )
        for app in apps
    ]


def advance_and_request_again(
    cluster: VirtualCluster, wants: Sequence[tuple[ApplicationId, int, Resources, int]], for_s: int
) -> None:
    """For so many seconds, what is preempted is requested again as soon as it ends."""
    for _ in range(for_s):
        cluster.advance(1)
        for app, many, resources, gpus in wants:
            live = cluster.app(app).containers.values()
            kept = [x for x in live if x.state is not ContainerState.STOPPING]
            if len(kept) < many:
                request(cluster, app, many - len(kept), resources, gpus)


@SCHEDULERS
def test_who_has_its_share_of_single_gpus_gets_pairs_that_others_do_not_want(
    inside: int, processes: int
) -> None:
    cluster = cluster_of(inside, processes, ones=4, twos=3)
    first, second = (cluster.submit(0, name=name) for name in ("first", "second"))
    for app in (first, second):
        request(cluster, app, 6, SMALL, gpus=1)
    cluster.advance(10)
    assert running(cluster, first, second) == [2, 2]
    request(cluster, first, 3, SMALL, gpus=2)
    cluster.advance(10)
    assert running(cluster, first, second) == [5, 2], "no pair is idle"


@SCHEDULERS
def test_one_size_that_cannot_start_keeps_back_no_other(inside: int, processes: int) -> None:
    cluster = cluster_of(inside, processes, ones=4, vcores=4)
    cpu = cluster.submit(4, Resources(2, 10), name="cpu")
    cluster.settle()
    first, second = (cluster.submit(0, name=name) for name in ("first", "second"))
    request(cluster, first, 4, Resources(4, 10, MIB // 2))
    request(cluster, first, 4, Resources(1, 10, MIB))
    request(cluster, second, 6, Resources(1, 10, MIB))
    cluster.advance(10)
    assert running(cluster, cpu, first, second) == [4, 2, 2]


@SCHEDULERS
def test_what_others_hold_of_another_kind_is_no_part_of_a_newcomers_share(
    inside: int, processes: int
) -> None:
    cluster = cluster_of(inside, processes, ones=8, twos=4, preemption=True)
    apps = [cluster.submit(0, name=name) for name in ("a", "b", "c", "d")]
    *_, pairs, newcomer = apps
    wants = [(app, 8, SMALL, 1) for app in apps[:2]]
    for app, many, resources, gpus in wants:
        request(cluster, app, many, resources, gpus)
    request(cluster, pairs, 6, SMALL, gpus=2)
    cluster.advance(10)
    assert running(cluster, *apps) == [4, 4, 4, 0]
    request(cluster, newcomer, 8, SMALL, gpus=1)
    advance_and_request_again(cluster, wants, 40)
    *singles, of_pairs, last = running(cluster, *apps)
    assert (sorted([*singles, last]), of_pairs) == ([2, 3, 3], 4)


@SCHEDULERS
@pytest.mark.parametrize("preemption", [False, True])
def test_shares_are_equal_in_device_memory_where_sizes_differ(
    inside: int, processes: int, preemption: bool
) -> None:
    cluster = cluster_of(inside, processes, ones=4, vcores=40, preemption=preemption)
    first, second = (cluster.submit(0, name=name) for name in ("first", "second"))
    request(cluster, first, 2, Resources(1, 10, MIB))
    cluster.advance(3)
    for app in (first, second):
        request(cluster, app, 30, Resources(1, 10, MIB // 10))
    cluster.advance(40)
    assert held_mib(cluster, first, second) == [2 * MIB, 2 * MIB]


@SCHEDULERS
@pytest.mark.parametrize(
    ("cores", "hog", "others"), [(8, 8, [4, 4]), (8, 4, [3, 2])], ids=["each", "together"]
)
def test_a_gang_that_lacks_cores_elsewhere_keeps_no_gpu_from_others(
    inside: int, processes: int, cores: int, hog: int, others: list[int]
) -> None:
    """Those of it that use GPUs could start; the others cannot: none of them, or not both."""
    cluster = cluster_of(inside, processes, ones=8, vcores=1)
    cluster.add_node(unit("cores", cores))
    cluster.submit(1, Resources(hog, 10), name="hog")
    cluster.settle()
    gang = cluster.submit(0, name="gang", gang_min=6)
    request(cluster, gang, 4, Resources(1, 10, MIB))
    for vcores in others:
        request(cluster, gang, 1, Resources(vcores, 10))
    other = cluster.submit(0, name="other")
    request(cluster, other, 20, Resources(1, 10, MIB))
    cluster.advance(30)
    assert cluster.states(gang) == {"pending": 6}
    assert running(cluster, other) == [8], "no GPU is idle"


@SCHEDULERS
def test_a_gang_with_gpus_and_cores_has_its_share(inside: int, processes: int) -> None:
    cluster = cluster_of(inside, processes, ones=4, vcores=1)
    cluster.add_node(unit("cores", 8))
    cluster.settle()
    greedy, gang = cluster.submit(0, name="greedy"), cluster.submit(0, name="gang", gang_min=3)
    request(cluster, greedy, 8, Resources(1, 10, MIB))
    request(cluster, gang, 2, Resources(1, 10, MIB))
    request(cluster, gang, 1, Resources(5, 10))
    cluster.advance(10)
    assert running(cluster, greedy, gang) == [2, 3]


@pytest.mark.parametrize(("inside", "processes"), [(1, 0), (2, 0), (6, 0), (0, 2), (1, 2)])
def test_what_is_preempted_for_a_larger_executor_is_not_taken_back_meanwhile(
    inside: int, processes: int
) -> None:
    """It needs what four others give, which end one by one and are requested again at once."""
    cluster = cluster_of(inside, processes, ones=3, vcores=40, preemption=True)
    *others, late = [cluster.submit(0, name=f"app-{x}") for x in range(4)]
    small, large = Resources(1, 10, MIB // 4), Resources(1, 10, MIB)
    wants = [*((app, 9, small, 0) for app in others), (late, 6, large, 0)]
    for app in others:
        request(cluster, app, 9, small)
    cluster.advance(10)
    assert running(cluster, *others) == [4, 4, 4]
    before = preempted_count(cluster, *others)
    request(cluster, late, 6, large)
    advance_and_request_again(cluster, wants, 40)
    assert (sum(running(cluster, *others)), *running(cluster, late)) == (8, 1)
    assert preempted_count(cluster, *others) == before + 4, "no more than it needs"
    assert preempted_count(cluster, late) == 0


@pytest.mark.parametrize(("inside", "processes"), [(1, 0), (2, 0), (6, 0), (0, 2), (1, 2)])
def test_preemption_for_shares_comes_to_rest(inside: int, processes: int) -> None:
    """What one is given it requests again after its node has returned it from another queue; until
    then it is not for the one that gave it."""
    cluster = cluster_of(inside, processes, ones=0, preemption=True)
    for number, vcores in enumerate((8, 4, 4, 2, 2)):
        cluster.add_core(gpu_node(f"n{number}", vcores=vcores))
    cluster.settle()
    small, large = (cluster.submit(0, name=name) for name in ("small", "large"))
    wants = [(small, 8, Resources(2, 10, MIB // 5), 0), (large, 6, Resources(3, 10, MIB), 0)]
    for app, many, resources, _ in wants:
        request(cluster, app, many, resources)
        cluster.advance(5)
    advance_and_request_again(cluster, wants, 20)
    preempted = preempted_count(cluster, small, large)
    assert running(cluster, small, large) == [6, 1]
    assert preempted <= 5
    advance_and_request_again(cluster, wants, 40)
    assert preempted_count(cluster, small, large) == preempted


ALL = pytest.mark.parametrize(("inside", "processes"), [(1, 0), (2, 0), (6, 0), (0, 2), (1, 2)])


@ALL
@pytest.mark.parametrize("of_gpus", [5, 3], ids=["share", "cores"])
def test_nothing_is_preempted_for_a_gang_that_could_not_start(
    inside: int, processes: int, of_gpus: int
) -> None:
    """Its share does not hold all of it; one that uses no GPU has no place."""
    cluster = cluster_of(inside, processes, ones=8, preemption=True)
    cluster.add_node(unit("cores", 20))
    cluster.submit(1, Resources(20 if of_gpus == 3 else 1, 10), name="hog")
    greedy, gang = (
        cluster.submit(0, name="greedy"),
        cluster.submit(0, name="gang", gang_min=of_gpus + 1),
    )
    request(cluster, greedy, 12, SMALL, gpus=1)
    cluster.advance(10)
    request(cluster, gang, of_gpus, SMALL, gpus=1)
    request(cluster, gang, 1, Resources(19, 10))
    advance_and_request_again(cluster, [(greedy, 12, SMALL, 1)], 40)
    assert preempted_count(cluster, greedy) == 0
    assert running(cluster, greedy, gang) == [8, 0]


@ALL
def test_for_a_gang_all_that_it_lacks_is_preempted_at_once(inside: int, processes: int) -> None:
    """Also the cores for one of it that uses no GPU are those that victims free."""
    cluster = cluster_of(inside, processes, ones=6, preemption=True)
    greedy, gang = cluster.submit(0, name="greedy"), cluster.submit(0, name="gang", gang_min=4)
    large = Resources(6, 10)
    request(cluster, greedy, 8, large, gpus=1)
    cluster.advance(10)
    assert running(cluster, greedy) == [6]
    request(cluster, gang, 3, SMALL, gpus=1)
    request(cluster, gang, 1, Resources(6, 10))
    wants = [(greedy, 8, large, 1)]
    advance_and_request_again(cluster, wants, 20)
    assert running(cluster, greedy, gang) == [3, 4]
    assert preempted_count(cluster, greedy) == 3
    advance_and_request_again(cluster, wants, 40)
    assert preempted_count(cluster, greedy) == 3


@ALL
def test_what_is_preempted_for_a_gang_is_held_until_the_last_has_ended(
    inside: int, processes: int
) -> None:
    cluster = cluster_of(inside, processes, ones=8, preemption=True, drain_s=12.0)
    greedy, gang = cluster.submit(0, name="greedy"), cluster.submit(0, name="gang", gang_min=4)
    wants = [(greedy, 12, SMALL, 1)]
    request(cluster, greedy, 12, SMALL, gpus=1)
    cluster.advance(10)
    request(cluster, gang, 4, SMALL, gpus=1)
    cluster.advance(3)
    live = cluster.app(greedy).in_state(ContainerState.RUNNING, ContainerState.STOPPING)
    ending = [x for x in live if x.stop_cause is EndCause.PREEMPTED]
    assert len(ending) == 4
    for container in ending[:2]:
        cluster.end_process(greedy, int(container.request.executor_id))
    advance_and_request_again(cluster, wants, 8)
    assert running(cluster, gang) == [0]
    advance_and_request_again(cluster, wants, 10)
    assert running(cluster, greedy, gang) == [4, 4]
    advance_and_request_again(cluster, wants, 30)
    ended = [x for x in cluster.app(greedy).ended if x.started_at_s]
    assert len(ended) == 4


@ALL
def test_a_gang_gets_several_places_of_one_unit(inside: int, processes: int) -> None:
    cluster = cluster_of(inside, processes, ones=1, preemption=True)
    greedy, gang = cluster.submit(0, name="greedy"), cluster.submit(0, name="gang", gang_min=2)
    small = Resources(1, 10, MIB // 4)
    request(cluster, greedy, 6, small)
    cluster.advance(10)
    assert running(cluster, greedy) == [4]
    request(cluster, gang, 2, small)
    advance_and_request_again(cluster, [(greedy, 6, small, 0)], 40)
    assert running(cluster, greedy, gang) == [2, 2]
    assert preempted_count(cluster, greedy) == 2


@ALL
def test_one_that_gets_nothing_for_its_gang_takes_nothing_from_the_next(
    inside: int, processes: int
) -> None:
    cluster = cluster_of(inside, processes, ones=8, preemption=True)
    cluster.add_node(unit("cores", 9))
    cluster.submit(1, Resources(9, 10), name="hog")
    greedy, gang, other = (
        cluster.submit(0, name="greedy"),
        cluster.submit(0, name="gang", gang_min=3),
        cluster.submit(0, name="other"),
    )
    request(cluster, greedy, 12, SMALL, gpus=1)
    cluster.advance(10)
    request(cluster, gang, 2, SMALL, gpus=1)
    request(cluster, gang, 1, Resources(9, 10))
    request(cluster, other, 3, SMALL, gpus=1)
    advance_and_request_again(cluster, [(greedy, 12, SMALL, 1)], 40)
    assert running(cluster, greedy, gang, other) == [5, 0, 3]
    assert preempted_count(cluster, greedy) == 3


def preempted_count(cluster: VirtualCluster, *apps: ApplicationId) -> int:
    """How many of their executors have been preempted."""
    ended = [x for app in apps for x in cluster.app(app).ended if x.started_at_s and x.end]
    return sum(x.end.cause is EndCause.PREEMPTED for x in ended if x.end)


SIZES = [(1, MIB), (1, MIB // 2), (1, MIB // 4), (2, 2 * MIB), (2, MIB)]
"""How many GPUs an executor uses, and how much device memory of them."""
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("request"), st.integers(0, 3), st.integers(1, 7), st.sampled_from(SIZES)),
        st.tuples(st.just("end"), st.integers(0, 3), st.integers(0, 9), st.just(SIZES[0])),
    ),
    min_size=1,
    max_size=12,
)


def held_of_kind(cluster: VirtualCluster, app: ApplicationId, gpus: int) -> int:
    return sum(
        x.request.resources.gpu_memory_mib
        for x in cluster.app(app).in_state(ContainerState.RUNNING)
        if x.request.resources.gpus == gpus
    )


def sizes_of_kind(
    cluster: VirtualCluster, app: ApplicationId, gpus: int, *states: ContainerState
) -> list[int]:
    containers = [x for x in cluster.app(app).in_state(*states) if x.request.resources.gpus == gpus]
    return [x.request.resources.gpu_memory_mib for x in containers]


def startable_but_pending(cluster: VirtualCluster, app: ApplicationId) -> list[str]:
    """Those that a unit has free at which nothing waits. What is free at the others is kept
    for the first that waits there, see ``core.queue.reservation``."""
    state = cluster.master.master_state.state
    every = (state.queue(row) for row in state.rows.values())
    queues = [queue for queue in every if not queue.waiting_count]
    return [
        x.container_id
        for x in cluster.app(app).in_state(ContainerState.PENDING)
        for demand in [demand_vector(x.request.resources)]
        if any(queue.could_hold(demand) and fits(demand, queue.free) for queue in queues)
    ]


def ids_of(cluster: VirtualCluster, app: ApplicationId, *states: ContainerState) -> set[str]:
    return {x.container_id for x in cluster.app(app).in_state(*states)}


def could_have_served(cluster: VirtualCluster, new: set[str], waiting: set[str]) -> bool:
    """Would any of ``waiting`` fit at a unit without those of ``new`` that run there?"""
    state = cluster.master.master_state
    for queue in (state.state.queue(row) for row in state.state.rows.values()):
        free = queue.free
        for container_id in new & queue.running.keys():
            free = plus(free, queue.running[ContainerId(container_id)].demand)
        for app in state.applications.values():
            for container_id in waiting & app.containers.keys():
                demand = demand_vector(app.containers[ContainerId(container_id)].request.resources)
                if queue.could_hold(demand) and fits(demand, free):
                    return True
    return False


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 4), st.integers(0, 2), st.sampled_from([1, 2, 3]), st.integers(0, 1), STEPS)
def test_none_gets_more_of_a_kind_while_another_has_less_and_waits(
    ones: int,
    twos: int,
    inside: int,
    processes: int,
    steps: list[tuple[str, int, int, tuple[int, int]]],
) -> None:
    """Of each kind by itself, in device memory, where executors differ in size."""
    cluster = cluster_of(inside, processes, ones, twos, vcores=16)
    apps = [cluster.submit(0, name=f"app-{x}") for x in range(4)]
    live = ContainerState.RUNNING, ContainerState.PENDING, ContainerState.WAITING
    for what, index, number, (gpus, mib) in steps:
        before = {x: [held_of_kind(cluster, app, x) for app in apps] for x in (1, 2)}
        ran = {app: ids_of(cluster, app, ContainerState.RUNNING) for app in apps}
        if what == "request":
            request(cluster, apps[index], number, Resources(1, 10, mib, gpus))
        elif some := cluster.app(apps[index]).in_state(ContainerState.RUNNING):
            executor = some[number % len(some)].request.executor_id
            cluster.end_process(apps[index], int(executor))
        cluster.advance(6)
        for kind, total_mib in ((1, ones * MIB), (2, twos * 2 * MIB)):
            after = [held_of_kind(cluster, app, kind) for app in apps]
            sizes = {app: sizes_of_kind(cluster, app, kind, *live) for app in apps}
            one_mib = max((x for some in sizes.values() for x in some), default=0)
            waiting = {app: sizes_of_kind(cluster, app, kind, *live[1:]) for app in apps}
            least = min((x for app, x in zip(apps, after, strict=True) if waiting[app]), default=0)
            shares = even_shares(total_mib, sizes)
            for app, had, has in zip(apps, before[kind], after, strict=True):
                most = max(had, shares[app] + one_mib, least + one_mib)
                # What is free may be too little for all who have less.
                new = ids_of(cluster, app, ContainerState.RUNNING) - ran[app]
                less = [x for x, held in zip(apps, after, strict=True) if held < has]
                wait = set[str]().union(*(ids_of(cluster, x, *live[1:]) for x in less))
                assert has <= most or not could_have_served(cluster, new, wait), (
                    kind, before[kind], after, shares,
                )  # fmt: skip
        idle = [name for app in apps for name in startable_but_pending(cluster, app)]
        assert not idle, "no GPU is idle while one waits that it could serve"
