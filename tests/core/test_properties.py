"""Invariants of every cluster, whatever happens to it: hypothesis drives the virtual cluster."""

from __future__ import annotations

from typing import Literal

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from hrm.core.invariants import unit_violations
from hrm.core.messages import events as e
from hrm.core.messages.claims import Entry
from hrm.core.queue.resource_unit import UnitQueue
from hrm.core.queue.start_rule import UnitImage
from hrm.core.scheduling.cluster_view import ClusterView
from hrm.core.scheduling.scheduler import Placement
from hrm.core.scheduling.shared_state import SharedState
from hrm.core.vocabulary.bounds import Bounds
from hrm.core.vocabulary.feasibility import Vector, demand_vector, fits, fitting_rows, minus
from hrm.core.vocabulary.model import ApplicationId, ContainerId, NodeName, Resources, WorkloadClass
from hrm.policies.min_wait import MinWait
from hrm.policies.placement_helpers import first_row
from hrm.testing.virtual import VirtualCluster, unit
from tests.core.algorithm_1 import estimate

CLASSES = st.sampled_from(list(WorkloadClass))
SCOPES: st.SearchStrategy[Literal["global", "candidates"]]
SCOPES = st.sampled_from(["global", "candidates"])
VECTORS = st.tuples(st.integers(0, 6), st.integers(0, 6), st.integers(0, 2), st.integers(0, 3))


@given(VECTORS, st.lists(VECTORS, min_size=1, max_size=20))
def test_both_forms_of_feasibility_agree(
    demand: tuple[int, int, int, int], offers: list[tuple[int, int, int, int]]
) -> None:
    rows = fitting_rows(demand, np.array(offers, dtype=np.int64))
    assert rows.tolist() == [fits(demand, offer) for offer in offers]


operations = st.lists(
    st.tuples(
        st.sampled_from(["enqueue", "remove", "start", "reclassify"]),
        st.integers(0, 12),
        st.integers(1, 4),
        CLASSES,
    ),
    max_size=60,
)


@given(operations)
def test_a_unit_never_runs_more_than_it_holds(
    steps: list[tuple[str, int, int, WorkloadClass]],
) -> None:
    queue = UnitQueue(unit("n1", vcores=4))
    for what, number, vcores, workload_class in steps:
        container_id = ContainerId(f"c{number}")
        if what == "enqueue" and container_id not in queue:
            demand = demand_vector(Resources(vcores, 1))
            queue.enqueue(Entry(container_id, workload_class, demand, 10.0))
        elif what == "remove":
            queue.remove(container_id)
        elif what == "reclassify":
            queue.reclassify(container_id, workload_class)
        else:
            streams = dict(queue.stream_waiting)
            started = queue.start_all(1.0)
            batch_started = [x for x in started if x.workload_class is WorkloadClass.BATCH]
            assert not (batch_started and queue.stream_waiting), "batch passed a stream"
            assert all(not fits(x.demand, queue.free) for x in queue.stream_waiting.values())
            assert set(queue.stream_waiting) <= set(streams)
        assert unit_violations(queue) == []


@st.composite
def states(draw: st.DrawFn) -> SharedState:
    state = SharedState()
    for index in range(draw(st.integers(1, 6))):
        queue = UnitQueue(unit(f"n{index}", vcores=draw(st.integers(1, 4)), memory_mib=100))
        for number in range(draw(st.integers(0, 5))):
            demand = demand_vector(Resources(draw(st.integers(1, 3)), draw(st.integers(1, 40))))
            if not fits(demand, queue.capacity):
                continue
            duration_s = float(draw(st.integers(1, 50)))
            name = ContainerId(f"c{index}-{number}")
            queue.enqueue(Entry(name, draw(CLASSES), demand, duration_s))
            queue.start_all(0.0)
        row = state.add(NodeName(f"n{index}"), queue)
        if draw(st.integers(0, 5)) == 0:
            state.open[row] = False
    return state


def _literal(view: ClusterView, placement: Placement, start: int, now: float) -> list[int | None]:
    """Algorithm 1 for one container after another, unit by unit, in the rotating order."""
    cursor, chosen = start, []
    for each in placement.entries:
        rows = [int(x) for x in np.flatnonzero(view.open)]
        order = [r for r in rows if r >= cursor] + [r for r in rows if r < cursor]
        large = [
            r
            for r in order
            if view.image(r).runs_at_once(placement.demand, placement.workload_class)
        ]
        if large:
            row: int | None = large[0]
            cursor = large[0] + 1
        else:
            images = [(r, view.image(r)) for r in order]
            admitting = [x for x in images if x[1].waiting < placement.waiting_limit]
            stream = placement.workload_class is WorkloadClass.STREAM
            yielding = [x for x in images if _batch_could_be_preempted(placement.demand, x[1])]
            candidates = yielding if stream else admitting
            best = estimate(placement.demand, placement.workload_class, candidates, now)
            admitted = stream or best.wait < placement.wait_max_s
            row = best.row if best.row is not None and admitted else None
        if row is not None:
            view.apply(row, each, now)
        chosen.append(row)
    return chosen


def _batch_could_be_preempted(demand: Vector, image: UnitImage) -> bool:
    left = image.capacity
    for entry in (*image.running, *image.stream_waiting):
        if entry.workload_class is WorkloadClass.STREAM:
            left = minus(left, entry.demand)
    return fits(demand, left)


@settings(max_examples=200, deadline=None)
@given(states(), CLASSES, st.integers(1, 3), st.integers(1, 8), st.integers(0, 8))
def test_the_vectorised_placement_is_algorithm_1(
    state: SharedState, workload_class: WorkloadClass, vcores: int, many: int, start: int
) -> None:
    demand = demand_vector(Resources(vcores, 10))
    entries = tuple(
        Entry(ContainerId(f"new-{i}"), workload_class, demand, 20.0) for i in range(many)
    )
    placement = Placement(workload_class, demand, entries, waiting_limit=3, wait_max_s=60.0)
    fast = MinWait(start).place(ClusterView(state), placement, 5.0)
    first = first_row(start, ClusterView(state))
    assert fast == _literal(ClusterView(state), placement, first, 5.0)


WHAT = (
    "submit", "release", "end", "finish", "break", "return", "restart", "wait", "close", "open",
)  # fmt: skip
happenings = st.lists(
    st.tuples(
        st.sampled_from(WHAT),
        st.integers(0, 9),
        st.integers(1, 4),
        CLASSES,
    ),
    max_size=25,
)


@settings(max_examples=60, deadline=None)
@given(happenings, SCOPES)
def test_nothing_is_lost_and_everything_returns(
    steps: list[tuple[str, int, int, WorkloadClass]],
    scope: Literal["global", "candidates"],
) -> None:
    """Invariants are checked after every event; in the end all capacity is free."""
    bounds = Bounds(lease_scope=scope)
    cluster = VirtualCluster([unit("n1", vcores=3), unit("n2", vcores=2)], bounds=bounds)
    apps: list[ApplicationId] = []
    wanted: dict[ApplicationId, int] = {}
    for what, number, count, workload_class in steps:
        app = apps[number % len(apps)] if apps else None
        node = list(cluster.nodes.values())[number % 2]
        live = app is not None and not cluster.app(app).life.state.ended
        if what == "submit":
            new = cluster.submit(count, workload_class=workload_class)
            apps.append(new)
            wanted[new] = count
        elif what == "release" and app is not None:
            cluster.release(app, 1 + number % wanted[app])
        elif what == "end" and node.processes:
            application_id, _, executor = next(iter(node.processes)).rpartition("-x")
            cluster.end_process(ApplicationId(application_id), int(executor), number % 2)
        elif what == "finish" and app is not None:
            cluster.finish(app)
        elif what == "close":
            cluster.submit_to_node(node, e.NodeClosed(now=cluster.now, why="its disk is full"))
        elif what == "open":
            cluster.submit_to_node(node, e.NodeOpened(now=cluster.now))
        elif what == "break" and node.connected:
            cluster.disconnect(node)
        elif what == "return" and not node.connected:
            cluster.register(node)
        elif what == "restart":
            cluster.restart_master()
            for each in apps:
                if not cluster.app(each).life.state.ended:
                    cluster.attach(each)
                    cluster.request(each, range(1, wanted[each] + 1))
        elif what == "wait" or live:
            cluster.advance(count)
    for node in cluster.nodes.values():
        if not node.connected:
            cluster.register(node)
    for app in apps:
        cluster.finish(app)
    cluster.advance(30)
    assert cluster.running() == 0
    for node in cluster.nodes.values():
        assert node.core.containers == {}
        assert all(queue.free == queue.capacity for queue in node.core.units.values())
    for app in apps:
        assert cluster.app(app).life.state.ended
        assert cluster.app(app).containers == {}
