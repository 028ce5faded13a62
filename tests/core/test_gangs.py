"""Gangs: the first containers of an application start together, or none of them holds anything."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hrm import policies
from hrm.core.master.explain import explain
from hrm.core.master.packing import left_over, times
from hrm.core.messages import commands as c
from hrm.core.messages import events as e
from hrm.core.messages.claims import Claim, Decision, Proposal
from hrm.core.scheduling.negotiator import Negotiator
from hrm.core.vocabulary.event_table import Move
from hrm.core.vocabulary.feasibility import capacity_vector, demand_vector
from hrm.core.vocabulary.history import RequestRecord
from hrm.core.vocabulary.model import (
    ApplicationId,
    ContainerRequest,
    Gpu,
    NodeName,
    Resources,
    WorkloadClass,
)
from hrm.core.vocabulary.partitioning import Core, Hardware, Partitioning, partition
from hrm.testing.virtual import VirtualCluster, unit
from tests.core.test_negotiator import NOW, claim, decisions, negotiator, propose


def commit(subject: Negotiator, gang: int, *claims: Claim) -> list[Decision]:
    proposal = Proposal(
        "s1", ApplicationId("app"), WorkloadClass.BATCH, claims, lease_token=0, gang=gang
    )
    return decisions(subject.commit(proposal, NOW))


def why(cluster: VirtualCluster, app: ApplicationId) -> str:
    return explain(cluster.master.master_state, cluster.app(app), cluster.now)[0]


def request_both(cluster: VirtualCluster, app: ApplicationId, small: int, large: int) -> None:
    """One request for executors of one vcore, and for others of four."""
    requests = tuple(
        ContainerRequest(
            executor_id=str(number),
            resource_profile_id=int(number > small),
            resources=Resources(4 if number > small else 1, 512),
        )
        for number in range(1, small + large + 1)
    )
    cluster.submit_to_master(
        e.ContainersRequested(now=cluster.now, application_id=app, requests=requests)
    )


def request_sizes(cluster: VirtualCluster, app: ApplicationId, *vcores: int) -> None:
    """One request for executors of these sizes."""
    requests = tuple(
        ContainerRequest(
            executor_id=str(number), resource_profile_id=size, resources=Resources(size, 512)
        )
        for number, size in enumerate(vcores, 1)
    )
    cluster.submit_to_master(
        e.ContainersRequested(now=cluster.now, application_id=app, requests=requests)
    )


def refusals(cluster: VirtualCluster, app: ApplicationId) -> list[str]:
    return [x.message for x in cluster.notices.get(app, []) if isinstance(x, c.RequestRefused)]


def test_two_gangs_of_which_one_fits_run_one_after_the_other() -> None:
    cluster = VirtualCluster([unit("n1", vcores=4), unit("n2", vcores=4)])
    first = cluster.submit(6, gang_min=6)
    second = cluster.submit(6, gang_min=6)
    cluster.settle()
    assert cluster.states(first) == {"running": 6}
    assert cluster.states(second) == {"pending": 6}
    assert "there is capacity for 2 of the 6 now" in why(cluster, second)
    assert "spark.hrm.gang.min" in why(cluster, second)
    cluster.finish(first)
    cluster.advance(5)
    assert cluster.states(second) == {"running": 6}


def test_what_comes_after_the_gang_is_placed_one_by_one() -> None:
    cluster = VirtualCluster([unit("n1", vcores=4)])
    app = cluster.submit(6, gang_min=3)
    cluster.settle()
    assert cluster.states(app) == {"running": 4, "waiting": 2}


def test_a_gang_does_not_wait_in_a_queue() -> None:
    subject = negotiator(vcores=4)
    propose(subject, claim("other", 2))
    gang = [claim("a"), claim("b"), claim("c")]
    assert commit(subject, 3, *gang) == [Decision.ABORT] * 3
    queue = subject.state.queue(0)
    assert list(queue.running) == ["other"]
    assert queue.waiting_count == 0
    assert commit(subject, 2, *gang) == [Decision.RUN, Decision.RUN, Decision.QUEUE]
    assert commit(subject, 2, claim("d")) == [Decision.ABORT], "half a gang is no gang"


def test_a_gang_stays_where_its_node_has_yet_to_end_what_the_store_has_lost() -> None:
    """What seems free does so wherever it may be placed next."""
    cluster = VirtualCluster([unit("n1", vcores=4)])
    cluster.submit(4)
    cluster.settle()
    cluster.durable.clear()
    cluster.durable_nodes.clear()
    cluster.restart_master()
    cluster.register(cluster.nodes["n1"])
    gang = cluster.submit(3, gang_min=3)
    cluster.advance(cluster.bounds.application_grace_s - 3)
    assert cluster.states(gang) == {"waiting": 3}
    assert cluster.app(gang).ended_ids == set(), "none was returned"
    cluster.advance(10)
    assert cluster.states(gang) == {"running": 3}


def test_a_gang_larger_than_the_cluster_is_refused_with_the_reason() -> None:
    cluster = VirtualCluster([unit("n1", vcores=4), unit("n2", vcores=4)])
    app = cluster.submit(9, gang_min=9)
    (notice,) = cluster.notices[app]
    assert isinstance(notice, c.RequestRefused)
    assert len(notice.executor_ids) == 9
    assert "holds 8 of them when it is empty (2 nodes)" in notice.message
    assert "spark.hrm.gang.min" in notice.message
    assert cluster.states(app) == {}
    memory = cluster.submit(3, Resources(1, 8192), gang_min=3)
    assert isinstance(cluster.notices[memory][0], c.RequestRefused)


def test_a_gang_waits_until_all_of_it_is_asked_for() -> None:
    cluster = VirtualCluster([unit("n1", vcores=4)])
    app = cluster.submit(2, gang_min=3)
    cluster.settle()
    assert cluster.states(app) == {"pending": 2}
    assert "it has not requested 1 of them yet" in why(cluster, app)
    cluster.request(app, [3])
    cluster.advance(5)
    assert cluster.states(app) == {"running": 3}


def test_one_that_takes_requests_back_has_a_smaller_gang() -> None:
    cluster = VirtualCluster([unit("n1", vcores=4)])
    other = cluster.submit(2)
    app = cluster.submit(4, gang_min=4)
    cluster.settle()
    assert cluster.states(app) == {"pending": 4}
    cluster.release(app, 3, 4)
    cluster.advance(5)
    assert cluster.states(app) == {"running": 2}
    assert cluster.states(other) == {"running": 2}


def test_an_admitted_gang_is_over_also_for_the_next_master() -> None:
    cluster = VirtualCluster([unit("n1", vcores=4)])
    app = cluster.submit(3, gang_min=3)
    cluster.settle()
    cluster.restart_master()
    cluster.attach(app)
    for node in cluster.nodes.values():
        cluster.register(node)
    cluster.end_process(app, 1, exit_code=1)
    cluster.request(app, [4])
    cluster.advance(5)
    assert cluster.states(app) == {"running": 3}


def test_a_stream_with_a_gang_queues_where_batch_is_preempted_and_nowhere_else() -> None:
    cluster = VirtualCluster([unit("n1", vcores=4)])
    other = cluster.submit(3, workload_class=WorkloadClass.STREAM)
    cluster.settle()
    gang = cluster.submit(2, workload_class=WorkloadClass.STREAM, gang_min=2)
    cluster.settle()
    assert cluster.states(gang) == {"pending": 2}
    batch = cluster.submit(4)
    cluster.finish(other)
    cluster.advance(5)
    assert cluster.states(gang) == {"running": 2}
    assert cluster.states(batch)["running"] == 2


@pytest.mark.parametrize("name", policies.known())
def test_every_policy_can_start_a_gang(name: str) -> None:
    nodes = [unit(f"n{number}", vcores=4) for number in range(4)]
    cluster = VirtualCluster(nodes, schedulers=1, policy=lambda index: policies.load(name, index))
    app = cluster.submit(16, gang_min=16)
    cluster.settle()
    assert cluster.states(app) == {"running": 16}


@pytest.mark.parametrize("name", policies.known())
def test_every_policy_can_start_a_gang_of_two_sizes(name: str) -> None:
    nodes = [unit("n1"), unit("n2")]
    cluster = VirtualCluster(nodes, schedulers=1, policy=lambda index: policies.load(name, index))
    app = cluster.submit(0, gang_min=5)
    request_both(cluster, app, small=4, large=1)
    cluster.advance(30)
    assert cluster.states(app) == {"running": 5}


gangs = st.lists(
    st.tuples(st.integers(1, 8), st.integers(0, 8), st.sampled_from(list(WorkloadClass))),
    min_size=2,
    max_size=6,
)


@settings(max_examples=60, deadline=None)
@given(gangs, st.integers(1, 3), st.floats(0, 3))
def test_gangs_never_block_each_other(
    requests: list[tuple[int, int, WorkloadClass]], schedulers: int, pause_s: float
) -> None:
    """Each fits alone; together they may not. No application ever holds a part of a gang, and one
    that has its gang can finish, so in the end all have run. A gang protects the start only:
    streams that preempt containers of a running batch gang are left out."""
    cluster = VirtualCluster(
        [unit("n1", vcores=4), unit("n2", vcores=4)], schedulers=schedulers, preemption_grace_s=None
    )
    left: dict[ApplicationId, int] = {}
    for executors, extra, workload_class in requests:
        gang = min(executors, max(2, extra))
        app = cluster.submit(executors, workload_class=workload_class, gang_min=gang)
        left[app] = gang
        cluster.advance(pause_s)
    for _ in range(len(requests)):
        cluster.advance(10)
        for app, gang in left.items():
            held = [x for x in cluster.app(app).containers.values() if x.state.value != "pending"]
            assert not held or len(held) >= gang
        ready = [x for x, gang in left.items() if cluster.states(x).get("running", 0) >= gang]
        assert ready, "everybody waits for everybody"
        for app in ready:
            cluster.finish(app)
            del left[app]
        if not left:
            break
    assert not left


EACH = pytest.mark.parametrize("schedulers", [1, 2, 6])


@EACH
def test_a_stream_of_two_sizes_starts_whole_if_all_of_it_fits(schedulers: int) -> None:
    cluster = VirtualCluster([unit("n1"), unit("n2")], schedulers=schedulers)
    app = cluster.submit(0, workload_class=WorkloadClass.STREAM)
    request_both(cluster, app, small=3, large=1)
    cluster.settle()
    assert not refusals(cluster, app), "of four large ones two fit, and one is requested"
    assert cluster.states(app) == {"running": 4}, "the small ones leave a node to the large one"


@EACH
def test_what_is_requested_while_a_gang_waits_is_none_of_it(schedulers: int) -> None:
    cluster = VirtualCluster([unit("n1"), unit("n2")], schedulers=schedulers)
    other = cluster.submit(7)
    cluster.settle()
    app = cluster.submit(3, gang_min=3)
    cluster.request(app, [4], Resources(4, 512))
    cluster.advance(5)
    assert cluster.states(app) == {"pending": 4}
    cluster.finish(other)
    cluster.advance(30)
    assert not refusals(cluster, app), "the gang is of small ones, and fits"
    assert cluster.states(app) == {"running": 3, "waiting": 1}


@EACH
def test_a_gang_of_two_sizes_that_no_cluster_holds_is_refused(schedulers: int) -> None:
    cluster = VirtualCluster([unit("n1"), unit("n2")], schedulers=schedulers)
    app = cluster.submit(0, gang_min=6)
    request_both(cluster, app, small=5, large=1)
    cluster.settle()
    message, _ = refusals(cluster, app)
    assert "takes 9 vcores, 3072 MiB, but the whole cluster has 8 vcores" in message
    assert "spark.hrm.gang.min" in message


@pytest.mark.parametrize("workload_class", list(WorkloadClass))
def test_a_gang_of_two_sizes_of_which_fewer_may_run_at_once_is_refused(
    workload_class: WorkloadClass,
) -> None:
    gang_min = 3 if workload_class is WorkloadClass.BATCH else 0
    cluster = VirtualCluster([unit("n1", vcores=4, run_limit=2)])
    app = cluster.submit(0, workload_class=workload_class, gang_min=gang_min)
    request_sizes(cluster, app, 2, 1, 1)
    cluster.settle()
    message = refusals(cluster, app)[0]
    assert "takes 3 slots, but the whole cluster has 2 (1 node)" in message
    assert "raise run_limit of the agents" in message
    name = "spark.hrm.gang.min" if gang_min else "spark.hrm.stream.min"
    assert name in message


def test_a_gang_of_two_parts_of_a_gpu_that_are_more_than_all_of_it_is_refused() -> None:
    gpu = Gpu(index=0, memory_mib=1000, numa=0)
    cluster = VirtualCluster([replace(unit("n1"), capacity=Resources(4, 8192, 1000), gpu=gpu)])
    app = cluster.submit(0, gang_min=2)
    cluster.request_all(app, {1: Resources(1, 512, 600), 2: Resources(1, 512, 500)})
    cluster.settle()
    message = refusals(cluster, app)[0]
    assert "takes 2 vcores, 1024 MiB, 1100 MiB device memory, but the whole cluster" in message


@pytest.mark.parametrize("workload_class", list(WorkloadClass))
def test_a_gang_that_cannot_be_packed_waits_and_says_so(workload_class: WorkloadClass) -> None:
    """Three, three and four cores on two nodes of five: each fits, and all in sum."""
    moves: list[Move] = []
    cluster = VirtualCluster([unit("n1", vcores=5), unit("n2", vcores=5)], schedulers=1)
    cluster.master.master_state.watch = moves.append
    gang_min = 3 if workload_class is WorkloadClass.BATCH else 0
    app = cluster.submit(0, workload_class=workload_class, gang_min=gang_min)
    request_sizes(cluster, app, 3, 3, 4)
    cluster.advance(10)
    assert cluster.states(app) == {"pending": 3}
    assert not refusals(cluster, app)
    said = why(cluster, app)
    assert "even on the empty cluster no way was found to place them together" in said
    assert "of 3 executors of several sizes 2 found a place, not 1 of 3 vcores, 512 MiB" in said
    name = "spark.hrm.gang.min" if gang_min else "spark.hrm.stream.min"
    assert name in said and "add nodes" in said
    told = [x for x in moves if x[4] is RequestRecord.UNPACKED]
    assert [(x[0], x[1]) for x in told] == [("application", app)]
    assert told[0][6] in said
    cluster.add_node(unit("n3", vcores=3))
    cluster.settle()
    assert cluster.states(app) == {"running": 3}


def test_a_gang_of_several_sizes_that_waits_for_others_says_how_much_there_is() -> None:
    cluster = VirtualCluster([unit("n1", vcores=5), unit("n2", vcores=5)])
    cluster.submit(1)
    app = cluster.submit(0, gang_min=4)
    request_sizes(cluster, app, 3, 3, 2, 2)
    cluster.advance(5)
    assert "there is capacity for 3 of the 4 now" in why(cluster, app)


@given(
    st.lists(st.tuples(st.integers(1, 6), st.integers(1, 8)), min_size=1, max_size=5),
    st.data(),
)
def test_one_size_is_counted_exactly_and_what_fills_each_node_is_found(
    nodes: list[tuple[int, int]], data: st.DataObject
) -> None:
    units = [unit(f"n{x}", vcores, 100 * memory) for x, (vcores, memory) in enumerate(nodes)]
    demand = (data.draw(st.integers(1, 6)), 100 * data.draw(st.integers(1, 8)), 0, 1)
    most = sum(times(demand, capacity_vector(x)) for x in units)
    many = data.draw(st.integers(1, 40))
    assert left_over({demand: many}, units).total() == max(0, many - most)
    whole = Counter(demand_vector(x.capacity) for x in units)
    assert not left_over(whole, units)
    more = whole + Counter({demand: 1})
    assert left_over(more, units).total() >= 1


def test_units_that_share_cores_are_filled_once() -> None:
    hardware = Hardware(
        cores=tuple(Core(number, numa=0) for number in range(4)),
        memory_mib=8192,
        gpus=(Gpu(index=0, memory_mib=1000, numa=0),),
    )
    units = partition(NodeName("n1"), hardware, Partitioning())
    assert len({x.pool or x.unit_id for x in units}) == 1 < len(units)
    assert not left_over({(3, 512, 0, 1): 1, (1, 512, 500, 1): 1}, units)
    assert left_over({(3, 512, 0, 1): 1, (2, 512, 500, 1): 1}, units).total() == 1


def test_what_a_stream_requests_again_one_by_one_is_not_taken_for_all_of_its_gang() -> None:
    """It was of two sizes, and did not come to run: its node was lost."""
    large, small = Resources(3, 1024), Resources(1, 512)
    cluster = VirtualCluster([unit("n0", 8)], schedulers=1)
    node = cluster.nodes["n0"]
    app = cluster.submit(0, workload_class=WorkloadClass.STREAM)
    cluster.request_all(app, {1: large, 2: large, 3: small})
    cluster.disconnect(node)
    cluster.advance(cluster.bounds.node_timeout_s + 5)
    assert cluster.app(app).ended_ids and not cluster.states(app)

    cluster.request(app, [4], large)
    cluster.settle()

    refused = [x for x in cluster.notices.get(app, []) if isinstance(x, c.RequestRefused)]
    assert refused == []
    cluster.request_all(app, {5: large, 6: small})
    cluster.register(node)
    cluster.advance(5)
    assert cluster.states(app) == {"running": 3}
