"""What is read of the master's lists: needs, guarantees, and which nodes must stay."""

from __future__ import annotations

from hrm.autoscale.feed import pool_application, pool_node, pool_queue
from hrm.core.pool.sample import pool_sample
from hrm.core.pool.scaler import NodeSample, PoolSample
from hrm.v1 import admin_pb2, common_pb2, node_pb2, queues_pb2

BATCH, STREAM = common_pb2.WORKLOAD_CLASS_BATCH, common_pb2.WORKLOAD_CLASS_STREAM
RUNNING = common_pb2.CONTAINER_STATE_RUNNING


def node(name: str, running: int = 0, state: int = common_pb2.NODE_STATE_ALIVE) -> admin_pb2.Node:
    unit = node_pb2.ResourceUnit(capacity=common_pb2.Resources(vcores=4, memory_mib=8192))
    status = admin_pb2.ResourceUnitStatus(unit=unit, running=running)
    return admin_pb2.Node(name=name, state=state, resource_units=[status])  # type: ignore[arg-type]


def application(name: str, places: list[str], workload_class: int = BATCH) -> admin_pb2.Application:
    containers = [
        common_pb2.ContainerStatus(container_id=f"{name}/{n}", node=place, state=RUNNING)
        for n, place in enumerate(places)
    ]
    return admin_pb2.Application(
        application_id=name, workload_class=workload_class, containers=containers  # type: ignore[arg-type]
    )  # fmt: skip


def leaf(
    used: float = 0, pending: float = 0, stated_maximum: str = "", maximum: float = 100,
    stated_guaranteed: str = "", guaranteed: float = 0, name: str = "", is_leaf: bool = True,
) -> queues_pb2.Queue:  # fmt: skip
    amounts = queues_pb2.QueueAmounts
    return queues_pb2.Queue(
        name=name,
        is_leaf=is_leaf,
        used=amounts(cores=used),
        pending=amounts(cores=pending),
        maximum=amounts(cores=maximum),
        guaranteed=amounts(cores=guaranteed),
        stated=queues_pb2.QueueStated(
            maximum=queues_pb2.QueueQuota(cores=stated_maximum),
            guaranteed=queues_pb2.QueueQuota(cores=stated_guaranteed),
        ),
    )


def sample_of(
    nodes: list[admin_pb2.Node],
    applications: list[admin_pb2.Application],
    leaves: list[queues_pb2.Queue],
) -> PoolSample:
    given = map(pool_node, nodes), map(pool_application, applications), map(pool_queue, leaves)
    return pool_sample(1.0, *given, None)


def nodes_of(
    nodes: list[admin_pb2.Node], applications: list[admin_pb2.Application]
) -> dict[str, NodeSample]:
    sample = sample_of(nodes, applications, [])
    return {each.name: each for each in sample.nodes}


def test_batch_may_be_drained_and_nodes_of_streams_are_known() -> None:
    nodes = [node("n1", 1), node("n2", 1), node("n3", 1), node("n4")]
    found = nodes_of(nodes, [application("b", ["n1"]), application("s", ["n2", "n3"], STREAM)])
    assert not any(each.is_protected for each in found.values())
    assert [sorted(each.streams) for each in found.values()] == [[], ["s"], ["s"], []]


def test_a_driver_and_whatever_is_not_understood_stays() -> None:
    """A driver is listed like an application, whose container it is."""
    listed = [application("b", ["n1", "n2"]), application("driver-20260101000000-0001", ["n1"])]
    found = nodes_of([node("n1", 2), node("n2", 1), node("n3", 1)], listed)
    assert [name for name, each in found.items() if each.is_protected] == ["n1", "n3"]


def test_a_driver_protects_its_node_whatever_starts_there_after_nodes_were_listed() -> None:
    listed = [application("b", ["n1"]), application("driver-20260101000000-0001", ["n1"])]
    found = nodes_of([node("n1", 1), node("n2", 0)], listed)  # 2 by now
    assert [each.is_protected for each in found.values()] == [True, False]


def test_nodes_that_are_drained_are_not_in_service() -> None:
    found = nodes_of([node("n1"), node("n2", state=common_pb2.NODE_STATE_DRAINING)], [])
    assert (found["n1"].is_open, found["n2"].is_open) == (True, False)


def test_needed_is_what_is_held_and_what_waits_within_maxima_in_numbers() -> None:
    nodes = [node("n1"), node("n2")]

    def needed(*leaves: queues_pb2.Queue) -> int:
        return sample_of(nodes, [], list(leaves)).needed_nodes

    assert needed() == 0
    assert needed(leaf(used=5)) == 2
    assert needed(leaf(used=4, pending=13)) == 5
    assert needed(leaf(used=4, pending=13, stated_maximum="8", maximum=8)) == 2
    # A part of the cluster grows with it.
    assert needed(leaf(used=4, pending=13, stated_maximum="50%", maximum=4)) == 5
    assert needed(leaf(used=4), leaf(pending=4)) == 2


def test_guarantees_in_numbers_count_and_parts_of_the_cluster_do_not() -> None:
    nodes = [node("n1"), node("n2"), node("n3")]
    leaves = [
        leaf(stated_guaranteed="9", guaranteed=9),
        leaf(stated_guaranteed="25%", guaranteed=3),
    ]
    assert sample_of(nodes, [], leaves).guaranteed_nodes == 3
    assert sample_of([], [], leaves[1:]).guaranteed_nodes == 0


def test_a_pool_of_no_nodes_begins_with_one_that_tells_what_a_node_has() -> None:
    assert sample_of([], [], [leaf()]).needed_nodes == 0
    assert sample_of([], [], [leaf(pending=90)]).needed_nodes == 1


def test_a_first_node_with_a_gpu_is_needed_though_none_has_any() -> None:
    wanting = leaf()
    wanting.pending.gpu_memory_mib = wanting.maximum.gpu_memory_mib = 4096
    sample = sample_of([node("n1")], [], [wanting])
    assert (sample.needed_nodes, sample.waiting) == (2, (0.0, 0.0, 4096.0))


def test_what_only_some_nodes_have_is_counted_in_those() -> None:
    """Ten nodes without a GPU and one with 16 GiB: a second job needs a twelfth, none needs 22."""
    nodes = [node(f"n{number}") for number in range(11)]
    nodes[0].resource_units[0].unit.capacity.gpu_memory_mib = 16_384
    needed = []
    for used, pending in ((0, 16_384), (16_384, 0), (16_384, 16_384), (16_384, 32_768)):
        of_gpus = leaf()
        of_gpus.used.gpu_memory_mib, of_gpus.pending.gpu_memory_mib = used, pending
        of_gpus.maximum.gpu_memory_mib = 1e6
        needed.append(sample_of(nodes, [], [of_gpus]).needed_nodes)
    assert needed == [1, 1, 12, 13]


def test_of_each_resource_the_most_of_what_is_needed_and_guaranteed_is_to_stay() -> None:
    nodes = [node("n1"), node("n2")]
    nodes[0].resource_units[0].unit.capacity.gpu_memory_mib = 16_384
    of_gpus = leaf(used=3, pending=2, stated_guaranteed="4", guaranteed=4)
    of_gpus.guaranteed.gpu_memory_mib = 8_192
    of_gpus.stated.guaranteed.gpu_memory = "8g"
    sample = sample_of(nodes, [], [of_gpus])
    assert sample.needed == (5.0, 0.0, 8_192.0)
    assert [x.capacity for x in sample.nodes] == [(4.0, 8_192.0, 16_384.0), (4.0, 8_192.0, 0.0)]


def test_maxima_of_parents_count_for_all_below_them_together() -> None:
    nodes = [node("n1"), node("n2")]
    parent = leaf(used=4, stated_maximum="12", maximum=12, name="root.p", is_leaf=False)
    leaves = [leaf(used=4, pending=40, name="root.p.a"), leaf(pending=40, name="root.p.b")]
    root = leaf(name="root", is_leaf=False)
    sample = sample_of(nodes, [], [root, parent, *leaves])
    assert (sample.waiting[0], sample.needed_nodes) == (8.0, 3)


def test_what_limits_of_applications_and_users_hold_back_needs_no_nodes() -> None:
    waiting = leaf(used=4, pending=40)
    waiting.waiting_total = 10
    for number in range(10):
        reason = "max-running" if number < 8 else "no-place"
        waiting.waiting.add(application_id=f"a{number}", reason=reason, containers=2)
    assert sample_of([node("n1")], [], [waiting]).needed_nodes == 3  # 4 and a fifth of 40
    waiting.waiting_total = 26  # of 16 more nothing is said
    assert sample_of([node("n1")], [], [waiting]).needed_nodes == 7  # 4 and 20/36 of 40


def test_what_waits_for_a_place_is_known_from_what_queues_say_of_it() -> None:
    nodes = [node("n1"), node("n2")]
    waiting = leaf(used=6, pending=3, stated_maximum="8", maximum=8)
    assert sample_of(nodes, [], [waiting]).waiting == (2.0, 0.0, 0.0)
    for reason, is_unplaced in (("no-place", True), ("gang", True), ("user-limit", False)):
        del waiting.waiting[:]
        waiting.waiting.add(application_id="a", reason=reason)
        assert sample_of(nodes, [], [waiting]).is_without_place is is_unplaced
