"""What the fault simulator has found of queues, as short lists of events."""

from __future__ import annotations

from dataclasses import replace

from hrm.core.messages import events as e
from hrm.core.tenancy.queue_rules import QueueRule
from hrm.core.tenancy.queue_spec import QueueSpec, spec_from
from hrm.core.vocabulary.bounds import Bounds
from hrm.core.vocabulary.model import (
    ApplicationId,
    ContainerRequest,
    EndCause,
    FirstExecutors,
    Gpu,
    NodeName,
    Resources,
    ResourceUnit,
    ResourceUnitId,
    WorkloadClass,
)
from hrm.testing.virtual import VirtualCluster, unit

HALVES = (spec_from("root.a", {"guaranteed": "50%"}), spec_from("root.b", {"guaranteed": "50%"}))
FAST = Bounds(queue_reclaim_wait_s=1.0, queue_preemption_grace_s=1.0, queue_preemption_part=1.0)


def cluster(*queues: QueueSpec, nodes: int = 4, bounds: Bounds = FAST) -> VirtualCluster:
    return VirtualCluster([unit(f"n{x}", 4) for x in range(nodes)], queues=queues, bounds=bounds)


def running(virtual: VirtualCluster, app: ApplicationId) -> int:
    return virtual.states(app).get("running", 0)


def kept(virtual: VirtualCluster, app: ApplicationId) -> int:
    return sum(x.withheld for x in virtual.app(app).containers.values())


def test_what_an_ended_application_still_holds_counts_when_the_tree_changes() -> None:
    virtual = cluster(*HALVES)
    app = virtual.submit(4, queue="a")
    virtual.advance(2)
    virtual.finish(app)

    virtual.change_queues(spec_from("root.b", {"guaranteed": "40%"}))

    assert virtual.app(app).containers
    virtual.advance(60)
    assert virtual.running() == 0


def test_what_has_passed_comes_back_when_the_maximum_falls() -> None:
    virtual = cluster(spec_from("root.a", {}), spec_from("root.b", {}), nodes=1)
    app = virtual.submit(12, queue="a")
    virtual.advance(1)

    virtual.change_queues(spec_from("root.a", {"maximum": {"cores": 4}}))
    virtual.advance(3)

    assert running(virtual, app) == 4
    assert virtual.master.master_state.queues.accounts is not None
    assert virtual.master.master_state.queues.accounts.of[HALVES[0].name].held[0] == 4


def test_what_shrinks_with_the_cluster_is_kept_again() -> None:
    virtual = cluster(spec_from("root.a", {"maximum": "50%"}), spec_from("root.b", {}), nodes=2)
    wide = Resources(3, 1024)
    app = virtual.submit(1, queue="a", resources=wide)
    virtual.advance(2)
    assert running(virtual, app) == 1
    virtual.request(app, [2], Resources(1, 1024))
    virtual.disconnect(virtual.nodes["n1"])
    virtual.advance(40)

    assert kept(virtual, app) <= 1  # and the invariants held meanwhile


def test_a_container_larger_than_a_users_part_passes_as_the_first() -> None:
    virtual = cluster(spec_from("root.a", {"minimum_user_limit": 0.25}), nodes=1)
    wide = Resources(3, 1024)
    first = virtual.submit(1, queue="a", user="eve", resources=wide)
    virtual.advance(1)
    ana, bob = (virtual.submit(1, queue="a", user=x, resources=wide) for x in ("ana", "bob"))
    virtual.advance(2)

    virtual.finish(first)
    virtual.advance(60)

    assert running(virtual, ana) + running(virtual, bob) == 1


def test_what_no_node_will_ever_serve_is_refused_in_its_queue_too() -> None:
    virtual = VirtualCluster(queues=[spec_from("root.a", {"maximum": {"cores": 8}}), HALVES[1]])
    app = virtual.submit(1, queue="a", resources=Resources(64, 1024))
    virtual.add_node(unit("n0", 4))

    virtual.advance(20)

    assert not virtual.app(app).containers
    assert any("64 vcores" in str(x) for x in virtual.notices[app])


def test_each_size_of_an_application_is_lent_what_fits_it() -> None:
    virtual = cluster(spec_from("root.a", {"guaranteed": "100%", "order": "fair"}), nodes=1)
    holder = virtual.submit(2, queue="a")
    virtual.advance(1)
    app = virtual.submit(1, queue="a", resources=Resources(3, 1024))
    virtual.request(app, [2], Resources(2, 1024))

    virtual.advance(5)

    assert running(virtual, holder) == 2
    assert running(virtual, app) == 1


def test_a_gang_that_does_not_fit_keeps_no_other_from_being_lent_what_does() -> None:
    none = {"guaranteed": {"cores": 0, "memory": 0}}
    virtual = cluster(spec_from("root.a", none), spec_from("root.b", none), nodes=1)
    holder = virtual.submit(3, queue="b")
    virtual.advance(1)
    gang = virtual.submit(2, queue="a", gang_min=2)
    virtual.request(holder, [4])

    virtual.advance(10)

    assert running(virtual, gang) == 0
    assert running(virtual, holder) == 4


def test_a_driver_that_its_queue_keeps_takes_no_place_among_drivers() -> None:
    queues = (spec_from("root.a", {"max_running": 1}), spec_from("root.b", {}))
    bounds = Bounds(driver_share=0.5)
    virtual = VirtualCluster(
        [unit("n0", 4)],
        queues=queues,
        queue_rules=[QueueRule("name", "third", "root.b"), QueueRule("name", "*", "root.a")],
        bounds=bounds,
    )
    need = FirstExecutors(count=1, resources=Resources(1, 256), stated=False)
    first, second, third = (
        virtual.submit(1, name=x, new_id=ApplicationId(f"driver-{x}"), first_executors=need)
        for x in ("first", "second", "third")
    )

    virtual.advance(5)

    assert [running(virtual, x) for x in (first, second, third)] == [1, 0, 1]


def test_a_driver_whose_turn_comes_late_keeps_below_the_maximum_of_its_queue() -> None:
    """While it waited for its turn, others of its queue got what it may have."""
    virtual = VirtualCluster(
        [unit("n0", 8)],
        queues=(spec_from("root.a", {"maximum": {"cores": 4}}), spec_from("root.b", {})),
        bounds=Bounds(driver_share=0.25),
    )
    need = FirstExecutors(count=1, resources=Resources(1, 256), stated=False)
    before = virtual.submit(
        1, Resources(2, 512), new_id=ApplicationId("driver-b"), first_executors=need, queue="b"
    )
    late = virtual.submit(
        1, Resources(2, 512), new_id=ApplicationId("driver-a"), first_executors=need, queue="a"
    )
    virtual.advance(1)
    assert (running(virtual, before), running(virtual, late)) == (1, 0)
    batch = virtual.submit(4, queue="a")
    virtual.advance(1)
    assert running(virtual, batch) == 4

    virtual.finish(before)
    virtual.advance(5)

    assert running(virtual, late) == 0
    assert kept(virtual, late) == 1
    virtual.finish(batch)
    virtual.advance(5)
    assert running(virtual, late) == 1


def test_what_is_found_to_hold_something_counts_with_all_that_it_requests() -> None:
    queues = (spec_from("root", {"max_running": 1}), *HALVES)
    virtual = cluster(*queues, nodes=2)
    app = virtual.submit(2, queue="a")
    virtual.advance(2)
    virtual.restart_master()
    other = virtual.submit(1, queue="b")
    virtual.attach(app)
    virtual.request(app, [3, 4])
    for node in virtual.nodes.values():
        virtual.register(node)

    virtual.advance(5)  # the invariants hold

    assert running(virtual, app) >= 2
    assert running(virtual, other) <= 1


def test_a_stream_whose_gang_waits_at_units_claims_nothing_that_is_not_there() -> None:
    virtual = cluster(*HALVES, nodes=1)
    virtual.submit(4, queue="b")
    virtual.advance(1)
    stream = virtual.submit(2, queue="a", workload_class=WorkloadClass.STREAM)

    virtual.advance(10)

    assert running(virtual, stream) == 2


def test_what_runs_on_a_drained_node_keeps_nothing_from_being_lent_elsewhere() -> None:
    virtual = cluster(*HALVES, nodes=2)
    holder = virtual.submit(8, queue="a")
    virtual.advance(2)
    virtual.submit_to_master(
        e.DrainRequested(now=virtual.now, call_id=virtual.next_call(), nodes=(NodeName("n0"),))
    )
    on_n1 = [x for x in range(1, 9) if virtual.container(holder, x).node == "n1"]
    virtual.release(holder, *on_n1)
    virtual.request(holder, range(21, 29))
    other = virtual.submit(8, queue="b")

    virtual.advance(10)

    assert running(virtual, holder) + running(virtual, other) == 8


def test_a_gang_is_reserved_all_of_its_places_or_none() -> None:
    bounds = replace(FAST, waiting_limit=1)
    virtual = cluster(*HALVES, nodes=1, bounds=bounds)
    virtual.submit(4, queue="b")
    virtual.advance(2)
    gang = virtual.submit(2, queue="a", gang_min=2)

    virtual.advance(10)

    assert virtual.states(gang) in ({"pending": 2}, {"running": 2})


def test_no_part_of_a_gang_claims_a_place_before_the_rest_that_has_passed() -> None:
    queues = (
        spec_from("root.a", {"guaranteed": {"cores": "50%", "memory": "60%"}}),
        spec_from("root.b", {"guaranteed": {"cores": "50%", "memory": "40%"}}),
        spec_from("root.c", {}),
    )
    units = [unit("n0", 4, 16384), unit("n1", 4, 3072)]
    virtual = VirtualCluster(units, queues=queues, bounds=FAST)
    virtual.submit(4, queue="a", resources=Resources(1, 2900))  # where alone the gang could be
    virtual.submit(4, queue="c", resources=Resources(1, 512))
    virtual.advance(2)
    virtual.submit(4, queue="c", resources=Resources(1, 512))
    wide = Resources(1, 3600)
    stream = virtual.submit(
        2, queue="b", workload_class=WorkloadClass.STREAM, stream_min=2, resources=wide
    )
    small = dict.fromkeys(range(3, 8), Resources(1, 64))
    virtual.request_all(stream, {1: wide, 2: wide, **small})

    virtual.advance(10)

    assert virtual.states(stream) == {"pending": 7}
    assert kept(virtual, stream) == 1


def test_one_that_passed_behind_its_gang_joins_it_again_when_that_has_lost_its_places() -> None:
    virtual = cluster(*HALVES, nodes=1)
    virtual.submit(2, queue="a")
    virtual.submit(2, queue="b")
    virtual.advance(2)
    virtual.submit(2, queue="a")
    app = virtual.submit(3, queue="b", gang_min=2)
    virtual.advance(1)
    assert kept(virtual, app) == 3
    placement = virtual.master.placement
    one = virtual.container(app, 1)

    placement.queues.let_go(virtual.app(app), [one], virtual.now, on_loan=True)
    assert kept(virtual, app) == 2
    virtual.advance(2)

    assert kept(virtual, app) == 3


def test_of_a_gang_none_is_reserved_what_is_free_while_another_waits_for_victims() -> None:
    queues = (spec_from("root.a", {}), spec_from("root.b", {"maximum": {"cores": 4}}))
    virtual = VirtualCluster([unit("n1", 8)], queues=queues, bounds=FAST, drain_s=4.0)
    virtual.submit(4, queue="a")
    batch = virtual.submit(4, queue="b")
    virtual.advance(2)
    first = virtual.container(batch, 1)
    assert first.node is not None
    virtual.master.master_state.send_stop(
        virtual.master.master_state.nodes[first.node], first, EndCause.PREEMPTED, "it ends",
        virtual.now, grace_s=5.0, decommission=True,
    )  # fmt: skip

    stream = virtual.submit(2, queue="b", workload_class=WorkloadClass.STREAM)

    for _ in range(20):
        virtual.advance(1)
        placed = [x for x in virtual.app(stream).containers.values() if x.node is not None]
        assert len(placed) in (0, 2)
    assert running(virtual, stream) == 2


def test_what_wants_whole_gpus_before_any_is_known_counts_once_they_are() -> None:
    """A new master has no nodes at first, and an application comes that no earlier one had."""
    units = [
        ResourceUnit(
            unit_id=ResourceUnitId(f"n0/gpu{x}"), capacity=Resources(4, 8192, 1000), run_limit=1,
            gpu=Gpu(index=x, memory_mib=1000),
        )
        for x in range(4)
    ]  # fmt: skip
    virtual = VirtualCluster(queues=(spec_from("root.a", {"maximum": "50%"}),))
    node = virtual.add_node(*units)
    virtual.settle()
    virtual.restart_master()
    app = virtual.submit(0, queue="a")
    wanted = tuple(
        ContainerRequest(
            executor_id=str(x), resource_profile_id=0, resources=Resources(1, 512), gpus=1
        )
        for x in range(1, 5)
    )
    virtual.submit_to_master(
        e.ContainersRequested(now=virtual.now, application_id=app, requests=wanted, again=False)
    )
    virtual.register(node)

    virtual.advance(5)

    assert running(virtual, app) == 2
    assert kept(virtual, app) == 2
    assert virtual.master.placement.queues.taken_back == 0, "none passed that had to come back"
