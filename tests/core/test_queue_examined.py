"""What an examination of queues has found, each as it was found."""

from __future__ import annotations

from hrm.core.messages import events as e
from hrm.core.tenancy.queue_spec import spec_from
from hrm.core.vocabulary.model import (
    ApplicationId,
    ContainerEnd,
    EndCause,
    FirstExecutors,
    NodeName,
    Resources,
    WorkloadClass,
)
from hrm.testing.virtual import VirtualCluster
from tests.core.test_queues import (
    HALVES,
    cluster,
    live,
    preempted,
    request_again,
    running,
    why,
)

STREAM = WorkloadClass.STREAM
ONE = Resources(1, 1024)


def test_a_stream_takes_the_place_of_no_more_batch_than_it_needs() -> None:
    virtual = cluster(spec_from("root.a", {"order": "priority"}))
    batch = virtual.submit(40, queue="a")
    live(virtual, 10, batch)

    stream = virtual.submit(4, queue="a", workload_class=STREAM)
    live(virtual, 60, batch)

    assert (running(virtual, stream), running(virtual, batch)) == (4, 12)
    assert preempted(virtual) == 4


def test_a_stream_beyond_its_users_limit_pushes_nothing_aside() -> None:
    limited = spec_from("root.a", {"guaranteed": "50%", "user_limit_factor": 0.5})
    virtual = cluster(limited, HALVES[1])
    apps = [virtual.submit(40, queue="b")]
    apps += [virtual.submit(40, queue="a", user=user) for user in ("ana", "bo")]
    live(virtual, 40, *apps)
    before = preempted(virtual)

    stream = virtual.submit(8, queue="a", user="cy", workload_class=STREAM)
    live(virtual, 60, *apps)

    assert running(virtual, stream) == 0
    assert preempted(virtual) == before


def test_a_stream_takes_the_place_of_batch_where_its_queue_is_at_its_maximum() -> None:
    virtual = cluster(spec_from("root.a", {"maximum": "50%"}))
    batch = virtual.submit(40, queue="a")
    live(virtual, 20, batch)

    stream = virtual.submit(4, queue="a", workload_class=STREAM)
    live(virtual, 60, batch)

    assert (running(virtual, stream), running(virtual, batch)) == (4, 4)


def test_what_runs_on_cordoned_nodes_keeps_nobody_from_the_others() -> None:
    virtual = cluster(*HALVES)
    apps = [virtual.submit(40, queue=name) for name in "ab"]
    live(virtual, 30, *apps)
    drained = tuple(NodeName(f"n{number}") for number in (0, 1))
    virtual.submit_to_master(e.DrainRequested(now=virtual.now, call_id=9_999, nodes=drained))
    live(virtual, 5, *apps)

    for name in ("n2", "n3"):
        node = virtual.nodes[name]
        for container in list(node.processes):
            node.end(container, ContainerEnd(cause=EndCause.EXITED, exit_code=0))
    live(virtual, 30, *apps)

    assert {name: len(node.processes) for name, node in virtual.nodes.items()} == {
        "n0": 4,
        "n1": 4,
        "n2": 4,
        "n3": 4,
    }


def test_a_gang_beyond_the_guarantee_keeps_nobody_behind_it_from_it() -> None:
    virtual = cluster(*HALVES)
    one = virtual.submit(40, queue="a")
    virtual.advance(10)

    gang = virtual.submit(10, queue="b", gang_min=10)
    small = virtual.submit(4, queue="b")
    for _ in range(60):
        request_again(virtual, one, executors=40)
        virtual.advance(1)

    assert (running(virtual, gang), running(virtual, small), running(virtual, one)) == (0, 4, 12)


def test_many_that_may_not_run_stop_no_loans_to_other_queues() -> None:
    queues = [
        spec_from("root.a", {"guaranteed": {"cores": 1}, "maximum": {"cores": 1}}),
        spec_from("root.b", {"guaranteed": {"cores": 2}}),
        spec_from("root.c", {"guaranteed": {"cores": 13}}),
    ]
    virtual = cluster(*queues)
    virtual.submit(1, queue="a")
    virtual.submit(13, queue="c")
    virtual.advance(3)
    for _ in range(70):
        virtual.submit(1, queue="a")
    virtual.submit(8, Resources(8, 1024), queue="b")

    other = virtual.submit(8, queue="root.default")
    virtual.advance(60)

    assert running(virtual, other) == 2, why(virtual, other)


def test_a_round_takes_a_part_of_what_runs_whatever_waits() -> None:
    virtual = cluster(*HALVES, nodes=25)
    one = virtual.submit(1_000, queue="a")
    virtual.advance(20)
    virtual.submit(1_000, queue="b")

    before, most = preempted(virtual), 0
    for _ in range(14):
        virtual.advance(1)
        most, before = max(most, preempted(virtual) - before), preempted(virtual)

    assert 0 < most <= 10
    assert running(virtual, one) == 50


def driver(virtual: VirtualCluster, number: int) -> ApplicationId:
    return virtual.submit(
        1,
        queue="b",
        new_id=ApplicationId(f"driver-20260101000000-{number:04d}"),
        first_executors=FirstExecutors(count=2, resources=ONE, stated=False),
    )


def test_drivers_leave_their_queue_to_the_executors_they_wait_for() -> None:
    virtual = cluster(*HALVES)
    batch = virtual.submit(40, queue="a")
    virtual.advance(10)
    drivers = [driver(virtual, number) for number in range(6)]
    apps: dict[ApplicationId, ApplicationId] = {}
    ended: set[ApplicationId] = set()

    for _ in range(200):
        request_again(virtual, batch, executors=40)
        for name in drivers:
            if name not in apps and virtual.states(name) == {"running": 1}:
                apps[name] = virtual.submit(2, driver=name)
            elif name in apps and name not in ended and running(virtual, apps[name]) == 2:
                virtual.finish(apps[name])
                virtual.end_process(name, 1)
                virtual.finish(name)
                ended.add(name)
        virtual.advance(1)

    assert ended == set(drivers)
