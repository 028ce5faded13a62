"""The store is the state: a master that begins with it has all durable knowledge of the last one.

What a crash may forget is reported again by nodes and AppMasters; then everything is as it was.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from hrm.core.messages import events as e
from hrm.core.vocabulary.model import (
    ApplicationId,
    ApplicationState,
    ContainerState,
    NodeName,
    NodeState,
    WorkloadClass,
)
from hrm.core.vocabulary.records import ApplicationRecord
from hrm.testing.virtual import VirtualCluster, unit

STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["submit", "release", "end", "finish", "lose", "return", "drain", "class", "wait"]
        ),
        st.integers(0, 9),
        st.integers(1, 4),
        st.sampled_from([None, *WorkloadClass]),
    ),
    max_size=25,
)


def kept(record: ApplicationRecord) -> dict[str, Any]:
    """All but the numbers of executors that are reserved."""
    return {**asdict(record), "last_executor_number": 0}


def assert_durable(cluster: VirtualCluster) -> None:
    """The store has neither more nor less than the master's intent."""
    master = cluster.master
    applications = master.master_state.applications
    assert {x: kept(r) for x, r in cluster.durable.items()} == {
        x: kept(app.record) for x, app in applications.items()
    }
    for application_id, record in cluster.durable.items():
        assert record.last_executor_number >= applications[application_id].last_executor_number
    live = {n.name for n in master.master_state.nodes.values() if n.state is not NodeState.LOST}
    assert set(cluster.durable_nodes) == live | master.nodes.awaited | set(master.nodes.lost_s)
    assert list(cluster.durable_drains) == list(master.nodes.drains.drained)
    assert cluster.durable_run_times == dict(master.master_state.run_times.rows)


def whereabouts(cluster: VirtualCluster) -> dict[str, tuple[Any, ...]]:
    return {
        container_id: (container.state, container.node, container.unit_id)
        for app in cluster.master.master_state.applications.values()
        for container_id, container in app.containers.items()
    }


def carry_out(cluster: VirtualCluster, apps: dict[ApplicationId, int], step: Any) -> None:
    what, number, count, workload_class = step
    app = list(apps)[number % len(apps)] if apps else None
    node = list(cluster.nodes.values())[number % len(cluster.nodes)]
    if what == "submit":
        apps[cluster.submit(count, workload_class=workload_class, name=f"job-{number % 3}")] = count
    elif what == "drain":
        drain = e.DrainRequested(
            now=cluster.now,
            call_id=cluster.next_call(),
            nodes=(NodeName(node.name),),
            undo=node.name in cluster.master.nodes.drains.drained,
        )
        cluster.submit_to_master(drain)
    elif what == "lose" and node.connected:
        cluster.disconnect(node)
        cluster.advance(cluster.bounds.node_timeout_s + 1)
    elif what == "return" and not node.connected:
        cluster.register(node)
    elif what == "end" and node.processes:
        application_id, _, executor = next(iter(node.processes)).rpartition("-x")
        cluster.end_process(ApplicationId(application_id), int(executor), number % 2)
    elif what == "release" and app is not None:
        cluster.release(app, 1 + number % apps[app])
    elif what == "finish" and app is not None:
        failed = number % 2 == 1
        cluster.finish(app, ApplicationState.FAILED if failed else ApplicationState.SUCCEEDED)
    elif what == "class" and app is not None:
        event = e.WorkloadClassObserved(
            now=cluster.now,
            application_id=app,
            workload_class=workload_class or WorkloadClass.BATCH,
            evidence=f"seen {count} times",
        )
        cluster.submit_to_master(event)
    cluster.advance(count if what == "wait" else 0.0)


@settings(max_examples=150, deadline=None)
@given(STEPS)
def test_the_store_replayed_is_the_state(steps: list[Any]) -> None:
    cluster = VirtualCluster([unit("n1", vcores=3), unit("n2", vcores=2), unit("n3", vcores=1)])
    apps: dict[ApplicationId, int] = {}
    for step in steps:
        carry_out(cluster, apps, step)
        assert_durable(cluster)
    for node in cluster.nodes.values():
        if not node.connected:
            cluster.register(node)
    cluster.settle()
    before, places = cluster.master, whereabouts(cluster)

    cluster.restart_master()
    after = cluster.master
    for application_id, app in before.master_state.applications.items():
        again = after.master_state.applications[application_id]
        assert kept(again.record) == kept(app.record)
        ended = app.life.state.ended
        assert again.life.state is (app.life.state if ended else ApplicationState.DETACHED)
    assert after.nodes.awaited == set(cluster.nodes)
    assert list(after.nodes.drains.drained) == list(before.nodes.drains.drained)
    assert after.master_state.run_times.rows == before.master_state.run_times.rows

    for application_id, app in before.master_state.applications.items():
        if not app.record.state.ended:
            cluster.attach(application_id)
            numbers = [int(x.request.executor_id) for x in app.containers.values()]
            cluster.request(application_id, numbers)
    for node in cluster.nodes.values():
        cluster.register(node)
    cluster.settle()
    again_at = whereabouts(cluster)
    assert set(again_at) == set(places)
    placed = {x: place for x, place in places.items() if place[0] is not ContainerState.PENDING}
    assert {x: again_at[x] for x in placed} == placed
    states = {node.name: node.state for node in before.master_state.nodes.values()}
    assert {node.name: node.state for node in after.master_state.nodes.values()} == states
    assert_durable(cluster)
