"""Containers go to nodes that meet what their application requires, and wait for these.

A node that does not meet it gets none of them, by whichever scheduler, and though nothing else is
free.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hrm.core.master import admission
from hrm.core.master.explain import explain
from hrm.core.messages import commands as c
from hrm.core.messages import events as e
from hrm.core.vocabulary.advice import DRIVER
from hrm.core.vocabulary.bounds import Bounds
from hrm.core.vocabulary.model import (
    ApplicationId,
    ContainerRequest,
    EndCause,
    FirstExecutors,
    Gpu,
    Resources,
    ResourceUnit,
    ResourceUnitId,
    WorkloadClass,
)
from hrm.core.vocabulary.node_requirement import NodeRequirement, Runtime, excluding
from hrm.testing.virtual import SMALL, VirtualCluster, unit
from tests.core.labelled_nodes import (
    BATCH,
    LABELS,
    NEW,
    OLD,
    SCHEDULERS,
    SSD,
    STREAM,
    cluster_of,
    nodes_of,
    properties,
)
from tests.virtual_scheduler import VirtualScheduler


def why(cluster: VirtualCluster, app: ApplicationId) -> str:
    summary, details = explain(cluster.master.master_state, cluster.app(app), cluster.now)
    return "\n".join([summary, *details])


@pytest.mark.parametrize(("inside", "outside"), SCHEDULERS)
@pytest.mark.parametrize("workload_class", [BATCH, STREAM])
def test_containers_go_to_nodes_that_suit_and_wait_for_these(
    inside: int, outside: int, workload_class: WorkloadClass
) -> None:
    some = {"inside": inside, "outside": outside}
    cluster = cluster_of(("n1", properties("ssd")), ("n2", properties()), vcores=2, **some)
    apps = [
        cluster.submit(2, requires=SSD, workload_class=workload_class) for _ in range(inside + 2)
    ]
    cluster.advance(5)
    places = set().union(*(nodes_of(cluster, app) for app in apps))
    assert places == {"n1", ""} if workload_class is STREAM else places <= {"n1", ""}
    assert not cluster.nodes["n2"].processes
    free = cluster.submit(2)
    cluster.advance(5)
    assert nodes_of(cluster, free) == {"n2"}
    assert cluster.states(free) == {"running": 2}
    for app in apps:
        cluster.finish(app)
        cluster.advance(2)
    assert cluster.running() == 2


@pytest.mark.parametrize(("inside", "outside"), SCHEDULERS)
def test_a_node_that_joins_later_serves_who_waits_for_it(inside: int, outside: int) -> None:
    bounds = Bounds(waiting_limit=0)
    cluster = cluster_of(("n1", properties()), inside=inside, outside=outside, bounds=bounds)
    cluster.add_node(unit("n2", vcores=1), properties=properties("ssd"))
    apps = [cluster.submit(1, requires=SSD) for _ in range(4)]
    cluster.advance(5)
    assert cluster.running() == 1
    cluster.add_node(unit("n3", vcores=8), properties=properties("ssd", "zone=a"))
    cluster.advance(40)
    assert cluster.running() == 4
    assert all(cluster.states(app) == {"running": 1} for app in apps)


@pytest.mark.parametrize(("inside", "outside"), [(1, 0), (2, 1)])
def test_a_job_in_vain_holds_up_none_that_may_go_elsewhere(inside: int, outside: int) -> None:
    """Cohorts, and what is known of full units, are of one requirement."""
    bounds = Bounds(waiting_limit=0)
    nodes = ("n1", properties("ssd")), ("n2", properties())
    cluster = cluster_of(*nodes, vcores=1, inside=inside, outside=outside, bounds=bounds)
    held = cluster.submit(1, requires=SSD)
    other = cluster.submit(1)
    cluster.settle()
    waiting = [cluster.submit(1, requires=SSD) for _ in range(6)]
    free = [cluster.submit(1) for _ in range(6)]
    cluster.advance(30)
    cluster.finish(other)
    cluster.settle()
    assert sum(cluster.states(app) == {"running": 1} for app in free) == 1
    assert all(cluster.states(app) == {"pending": 1} for app in waiting)
    cluster.finish(held)
    cluster.settle()
    running = [app for app in (*waiting, *free) if cluster.states(app) == {"running": 1}]
    assert len(running) == 2


@settings(max_examples=30)
@given(
    st.lists(st.tuples(LABELS, st.integers(1, 4)), min_size=1, max_size=4),
    st.lists(st.tuples(LABELS, st.integers(1, 4), st.booleans()), max_size=6),
    st.sampled_from(SCHEDULERS),
)
def test_no_container_is_where_it_may_not_be(
    nodes: list[tuple[frozenset[str], int]],
    applications: list[tuple[frozenset[str], int, bool]],
    schedulers: tuple[int, int],
) -> None:
    cluster = VirtualCluster(schedulers=schedulers[0])
    for number, (labels, vcores) in enumerate(nodes, 1):
        cluster.add_node(unit(f"n{number}", vcores=vcores), properties=properties(*labels))
    for number in range(schedulers[1]):
        VirtualScheduler(cluster, f"outside-{number}")
    wanted = {}
    for labels, executors, is_stream in applications:
        requires = excluding(NodeRequirement(labels=labels), frozenset())
        kind = STREAM if is_stream else BATCH
        wanted[cluster.submit(executors, requires=requires, workload_class=kind)] = labels
        cluster.advance(0.1)
    cluster.advance(20)
    for app, labels in wanted.items():
        for container in cluster.app(app).containers.values():
            if container.node is not None:
                assert labels <= cluster.nodes[container.node].properties.labels


def refusals(cluster: VirtualCluster, app: ApplicationId) -> list[str]:
    notices = cluster.notices.get(app, [])
    return [x.message for x in notices if isinstance(x, c.RequestRefused)]


def test_what_no_node_meets_is_refused_with_what_there_is() -> None:
    cluster = cluster_of(("n1", properties("hdd", runtimes=(OLD,))), ("n2", properties()))
    labels = cluster.submit(1, requires=SSD)
    versions = cluster.submit(1, requires=NodeRequirement(spark="9.9.9"))
    (of_labels,), of_versions = refusals(cluster, labels), refusals(cluster, versions)
    assert "no node has the label ssd: n1 has not the label ssd (its labels: hdd)" in of_labels
    assert "hrm agent --labels" in of_labels
    assert not of_versions, "n2 reports no versions, and may have this one"


def test_no_version_of_any_node() -> None:
    cluster = cluster_of(("n1", properties(runtimes=(OLD,))), ("n2", properties(runtimes=(NEW,))))
    app = cluster.submit(1, requires=NodeRequirement(spark="4.0.1", scala="2.13"))
    (refusal,) = refusals(cluster, app)
    assert "no node has Spark 4.0.1, Scala 2.13: n1 has Spark 3.5.5" in refusal
    assert "spark_homes" in refusal


@pytest.mark.parametrize(
    ("requires", "advice"),
    [
        ({"labels": frozenset({"gone"})}, ["node.label"]),
        ({"java": "99"}, ["node.java"]),
        ({"python": "3.99"}, ["node.python"]),
        ({"spark": "9.9.9"}, ["spark_homes"]),
        ({"labels": frozenset({"gone"}), "java": "99"}, ["node.label", "node.java"]),
        # A node has this label and another this Java, but none both.
        ({"labels": frozenset({"a"}), "java": "21"}, ["node.label", "spark_homes", "node.java"]),
    ],
)
def test_only_what_no_node_has_is_to_be_changed(
    requires: dict[str, Any], advice: list[str]
) -> None:
    """Every executor requires its driver's Spark, which is no reason where nodes have it."""
    older = Runtime(spark=NEW.spark, scala=NEW.scala, java="17", python="3.11")
    cluster = cluster_of(
        ("n1", properties("a", runtimes=(older,))), ("n2", properties(runtimes=(NEW,)))
    )
    versions = {"spark": NEW.spark, "scala": NEW.scala}
    app = cluster.submit(1, requires=NodeRequirement(**(versions | requires)))
    (refusal,) = refusals(cluster, app)
    remedies = ("node.label", "spark_homes", "node.java", "node.python")
    assert [x for x in remedies if x in refusal] == advice


def test_a_driver_has_a_label_of_its_own_to_change() -> None:
    cluster = cluster_of(("n1", properties()))
    asks = Resources(vcores=1, memory_mib=512)
    refusal = admission.refusal(cluster.master.master_state, asks, advice=DRIVER, requires=SSD)
    assert "change spark.hrm.driver.node.label" in refusal


def test_what_is_too_large_for_the_nodes_that_suit_is_refused() -> None:
    cluster = cluster_of(("n1", properties("ssd")))
    cluster.add_node(unit("n2", vcores=16), properties=properties())
    large = Resources(8, 512)
    (refusal,) = refusals(cluster, cluster.submit(1, large, requires=SSD))
    assert "on a node with the label ssd, but the largest node, n1" in refusal
    (gang,) = refusals(cluster, cluster.submit(6, requires=SSD, gang_min=6))
    assert "holds 4 of them when it is empty (1 node with the label ssd)" in gang
    assert not refusals(cluster, cluster.submit(1, large))


def test_what_spark_excludes_for_now_is_waited_for_and_explained() -> None:
    cluster = cluster_of(("n1", properties(host="h1")), ("n2", properties(host="h2")))
    app = cluster.submit(0)
    cluster.exclude(app, "h1", "h2")
    cluster.request(app, [1])
    cluster.advance(30)
    assert not refusals(cluster, app)
    assert cluster.states(app) == {"pending": 1}
    text = why(cluster, app)
    assert "no node that is large enough and open is for it" in text
    assert "n1 is on h1, which Spark excludes (spark.excludeOnFailure)" in text
    cluster.exclude(app, "h1")
    cluster.settle()
    assert nodes_of(cluster, app) == {"n2"}


def test_why_it_waits_names_the_nodes_that_are_not_for_it() -> None:
    cluster = cluster_of(("n1", properties("ssd")), ("n2", properties()), vcores=1)
    cluster.submit(1, requires=SSD, workload_class=STREAM)
    cluster.settle()
    app = cluster.submit(1, requires=SSD, workload_class=STREAM)
    cluster.settle()
    text = why(cluster, app)
    assert "it runs only on nodes with the label ssd" in text
    assert "1 of 2 nodes are for it" in text
    assert "n2 has not the label ssd" in text
    assert "the most, n1/cpu, has 0 vcores" in text


@pytest.mark.parametrize("outside", [0, 1])
def test_what_waits_at_a_host_that_is_excluded_waits_elsewhere(outside: int) -> None:
    nodes = [(f"n{x}", properties(host=f"h{x}")) for x in (1, 2)]
    cluster = cluster_of(*nodes, vcores=1, inside=1, outside=outside)
    app = cluster.submit(4)
    cluster.settle()
    assert cluster.states(app) == {"running": 2, "waiting": 2}
    cluster.exclude(app, "h1")
    cluster.settle()
    waiting = [x for x in cluster.app(app).containers.values() if x.state.value == "waiting"]
    assert {x.node for x in waiting} <= {"n2"}
    ended = [x.end for x in cluster.app(app).ended if x.end is not None]
    assert [x.cause for x in ended] == [EndCause.PREEMPTED]
    assert "which Spark excludes" in ended[0].message
    cluster.request(app, [5])
    cluster.advance(5)
    assert cluster.container(app, 5).node != "n1"
    running = [x for x in cluster.app(app).containers.values() if x.state.value == "running"]
    assert {x.node for x in running} == {"n1", "n2"}, "what runs is Spark's to end"


@pytest.mark.parametrize(("inside", "outside"), SCHEDULERS)
def test_a_host_that_is_excluded_before_it_has_a_node_gets_nothing(
    inside: int, outside: int
) -> None:
    at_h1 = ("n1", properties(host="h1"))
    cluster = cluster_of(at_h1, vcores=1, inside=inside, outside=outside)
    cluster.submit(1, workload_class=STREAM)
    cluster.settle()
    apps = {}
    for number in range(8):
        app = cluster.submit(0)
        apps[app] = {"h3"} if number % 2 else {f"other-{number}"}
        cluster.exclude(app, *apps[app])
        cluster.request(app, [1])
    cluster.advance(10)
    assert all(cluster.states(app) == {"pending": 1} for app in apps)
    cluster.add_node(unit("n3", vcores=6), properties=properties(host="h3"))
    cluster.advance(10)
    for app, hosts in apps.items():
        expected = "pending" if "h3" in hosts else "running"
        assert cluster.states(app) == {expected: 1}
    cluster.add_node(unit("n4", vcores=6), properties=properties(host="h4"))
    cluster.advance(10)
    assert all(cluster.states(app) == {"running": 1} for app in apps)


def test_an_order_to_return_that_was_lost_is_given_again() -> None:
    nodes = [(f"n{x}", properties(host=f"h{x}")) for x in (1, 2)]
    cluster = cluster_of(*nodes, vcores=1, inside=1)
    app = cluster.submit(4)
    cluster.settle()
    node = cluster.nodes["n1"]
    node.connected = False
    cluster.exclude(app, "h1")
    cluster.settle()
    node.connected = True
    cluster.advance(10)
    left = [x for x in cluster.app(app).containers.values() if x.state.value == "waiting"]
    assert {x.node for x in left} <= {"n2"}


def test_a_node_that_registers_otherwise_keeps_what_runs_and_returns_what_waits() -> None:
    cluster = cluster_of(("n1", properties(runtimes=(OLD,))), vcores=1, inside=1)
    cluster.add_node(unit("n2", vcores=1), properties=properties(runtimes=(OLD,)))
    app = cluster.submit(3, requires=NodeRequirement(spark=OLD.spark))
    cluster.settle()
    assert cluster.states(app) == {"running": 2, "waiting": 1}
    waits_at = next(
        x.node for x in cluster.app(app).containers.values() if x.state.value == "waiting"
    )
    node = cluster.nodes[waits_at or ""]
    node.properties = properties(runtimes=(NEW,))
    cluster.register(node)
    cluster.settle()
    assert cluster.states(app) == {"running": 2}, "an upgrade ends nothing that runs"
    assert not any(x.end and x.end.exit_code > 0 for x in cluster.app(app).ended)


def test_containers_move_to_free_units_of_nodes_that_suit_alone() -> None:
    nodes = [("n1", properties("ssd")), ("n2", properties()), ("n3", properties("ssd"))]
    cluster = cluster_of(*nodes, vcores=1, inside=1, bounds=Bounds(relocation_wait_s=2.0))
    stays = cluster.submit(1, requires=SSD)
    ends = cluster.submit(1, requires=SSD)
    other = cluster.submit(1)
    cluster.settle()
    app = cluster.submit(1, requires=SSD)
    cluster.settle()
    assert cluster.states(app) == {"waiting": 1}
    cluster.finish(other)
    cluster.advance(10)
    assert cluster.states(app) == {"waiting": 1}, "n2 is free, and none for it"
    at = cluster.container(app, 1).node
    cluster.finish(stays if cluster.app(ends).containers and _on(cluster, ends, at) else ends)
    cluster.advance(10)
    assert cluster.app(app).ended, "it was returned, to be requested again"


def _on(cluster: VirtualCluster, app: ApplicationId, node: Any) -> bool:
    return node in nodes_of(cluster, app)


def gpu_unit(name: str, memory_mib: int) -> ResourceUnit:
    gpu = Gpu(index=0, memory_mib=memory_mib)
    return ResourceUnit(
        unit_id=ResourceUnitId(f"{name}/gpu"),
        capacity=Resources(4, 65_536, memory_mib),
        run_limit=4,
        gpu=gpu,
    )


def test_a_whole_gpu_is_one_of_a_node_that_suits() -> None:
    cluster = VirtualCluster()
    cluster.add_node(gpu_unit("n1", 16_000), properties=properties("ssd"))
    cluster.add_node(gpu_unit("n2", 80_000), properties=properties())
    app = cluster.submit(0, requires=SSD)
    request = ContainerRequest(
        executor_id="1", resource_profile_id=0, resources=Resources(1, 512), gpus=1
    )
    cluster.submit_to_master(
        e.ContainersRequested(now=cluster.now, application_id=app, requests=(request,))
    )
    cluster.settle()
    assert nodes_of(cluster, app) == {"n1"}
    assert cluster.container(app, 1).request.resources.gpu_memory_mib == 16_000


def test_free_gpus_of_other_nodes_are_no_share() -> None:
    cluster = VirtualCluster()
    cluster.add_node(gpu_unit("n1", 4_000), properties=properties("ssd"))
    cluster.add_node(gpu_unit("n2", 4_000), properties=properties())
    part = Resources(1, 512, 1_000)
    bound = [cluster.submit(3, part, requires=SSD) for _ in range(2)]
    free = cluster.submit(4, part)
    cluster.advance(10)
    for app in bound:
        assert nodes_of(cluster, app) <= {"n1", ""}
    assert cluster.running() == 8
    assert "n2" in nodes_of(cluster, free)


def test_a_driver_and_its_executors_have_requirements_of_their_own() -> None:
    cluster = cluster_of(("n1", properties("edge")), ("n2", properties("ssd")), vcores=2)
    first = FirstExecutors(count=1, resources=Resources(1, 512), requires=SSD)
    driver = cluster.submit(
        1,
        Resources(1, 512),
        new_id=ApplicationId("driver-1"),
        first_executors=first,
        requires=NodeRequirement(labels=frozenset({"edge"})),
    )
    cluster.settle()
    assert nodes_of(cluster, driver) == {"n1"}
    app = cluster.submit(2, driver=driver, requires=SSD)
    cluster.settle()
    assert nodes_of(cluster, app) == {"n2"}


def test_drivers_leave_the_nodes_of_their_executors_to_these() -> None:
    """Two drivers fit n1, next to which no executor of theirs may be; the third must not take the
    only node for executors."""
    cluster = cluster_of(("n1", properties("ssd")), vcores=1, bounds=Bounds(driver_share=1.0))
    cluster.add_node(unit("n2", vcores=2), properties=properties())
    first = FirstExecutors(count=1, resources=Resources(1, 512), requires=SSD, stated=True)
    drivers = [
        cluster.submit(
            1, Resources(1, 512), new_id=ApplicationId(f"driver-{x}"), first_executors=first
        )
        for x in range(3)
    ]
    cluster.advance(5)
    assert cluster.running() == 2
    assert all(nodes_of(cluster, x) <= {"n2", ""} for x in drivers)


def test_a_registration_again_forgets_exclusions_and_takes_the_requirement() -> None:
    cluster = cluster_of(("n1", properties("ssd", host="h1")), ("n2", properties(host="h2")))
    app = cluster.submit(0)
    cluster.exclude(app, "h1")
    state = cluster.master.master_state
    assert set(state.restricted) == {app}
    register_again(cluster, app, None)
    assert cluster.app(app).requires is None
    assert not state.restricted
    register_again(cluster, app, SSD)
    cluster.request(app, range(1, 3), SMALL)
    cluster.settle()
    assert nodes_of(cluster, app) == {"n1"}
    cluster.finish(app)
    assert not state.restricted


def register_again(
    cluster: VirtualCluster, app: ApplicationId, requires: NodeRequirement | None
) -> None:
    record = cluster.app(app).record
    cluster.submit_to_master(
        e.ApplicationRegistered(
            now=cluster.now,
            call_id=cluster.next_call(),
            application_id=app,
            submission_key=record.submission_key,
            name=record.name,
            user=record.user,
            requires=requires,
        )
    )


def test_a_restarted_master_places_as_before() -> None:
    cluster = cluster_of(("n1", properties("ssd")), ("n2", properties()))
    app = cluster.submit(2, requires=SSD)
    cluster.settle()
    cluster.restart_master()
    for node in cluster.nodes.values():
        cluster.register(node)
    register_again(cluster, app, SSD)
    cluster.attach(app)
    cluster.settle()
    cluster.request(app, range(3, 6))
    cluster.advance(5)
    assert nodes_of(cluster, app) == {"n1"}
