"""A scheduler with an untrusted policy: invalid placements are refused, and nothing is lost."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from hrm.core.master.explain import explain
from hrm.core.messages import events as e
from hrm.core.scheduling.cluster_view import ClusterView
from hrm.core.scheduling.scheduler import Placement
from hrm.core.vocabulary.bounds import Bounds
from hrm.core.vocabulary.model import ApplicationId, NodeName, Resources, WorkloadClass
from hrm.policies.fifo import Fifo
from hrm.policies.min_wait import MinWait
from hrm.testing.virtual import VirtualCluster, unit

Choose = Callable[[ClusterView, Placement], Any]


class Odd:
    """Returns invalid placements until it has ``recovered``."""

    name = "odd-one"

    def __init__(self, choose: Choose) -> None:
        self.choose = choose
        self.recovered = False
        self.good = MinWait()

    def place(self, view: ClusterView, placement: Placement, now: float) -> list[int | None]:
        if self.recovered:
            return self.good.place(view, placement, now)
        choose: list[int | None] = self.choose(view, placement)
        return choose


def _cluster(policy: Odd) -> VirtualCluster:
    """Row 0 is open, row 1 closed, row 2 too small for the tests' requests; the rest unused."""
    nodes = [unit("n1"), unit("n2"), unit("n3", vcores=1)]
    cluster = VirtualCluster(nodes, schedulers=1, policy=lambda _: policy)
    cluster.submit_to_master(e.DrainRequested(now=cluster.now, call_id=99, nodes=(NodeName("n2"),)))
    return cluster


def _all(row: Any) -> Choose:
    return lambda view, placement: [row] * len(placement.entries)


def _raise(view: ClusterView, placement: Placement) -> Any:
    raise ZeroDivisionError("no idea")


NONSENSE: dict[str, tuple[Choose, str]] = {
    "too few": (lambda view, placement: [0], "returned 1 rows for 2"),
    "too many": (lambda view, placement: [0, 0, 0], "returned 3 rows for 2"),
    "beyond the table": (_all(10**9), "there is no row 1000000000"),
    "negative": (_all(-1), "there is no row -1"),
    "closed": (_all(1), "row 1 is closed"),
    "not in use": (_all(7), "row 7 is not in use"),
    "too small": (_all(2), "too small"),
    "NaN": (_all(math.nan), "nan, which is no row"),
    "a float": (_all(0.0), "0.0, which is no row"),
    "text": (_all("n1/cpu"), "'n1/cpu', which is no row"),
    "nothing at all": (lambda view, placement: None, "TypeError"),
    "an exception": (_raise, "ZeroDivisionError: no idea"),
}


@pytest.mark.parametrize("name", NONSENSE)
@pytest.mark.parametrize("workload_class", list(WorkloadClass))
def test_nonsense_is_refused_by_name_counted_and_tried_again(
    name: str, workload_class: WorkloadClass
) -> None:
    choose, message = NONSENSE[name]
    policy = Odd(choose)
    cluster = _cluster(policy)
    before = cluster.master.master_state.state.free.copy()
    app = cluster.submit(2, Resources(2, 1024), workload_class)
    cluster.advance(20)
    scheduler = next(iter(cluster.master.placement.schedulers.values()))
    assert cluster.states(app) == {"pending": 2}
    assert np.array_equal(cluster.master.master_state.state.free, before)
    assert "'odd-one'" in cluster.app(app).refusal
    assert message in cluster.app(app).refusal
    why = explain(cluster.master.master_state, cluster.app(app), cluster.now)
    assert "odd-one" in " ".join([why[0], *why[1]])
    assert 5 <= scheduler.policy_faults <= 30, "the back-off is capped at two seconds"
    policy.recovered = True
    cluster.advance(3)
    assert cluster.states(app) == {"running": 2}
    assert cluster.app(app).refusal == ""


def test_the_message_names_the_line_that_failed() -> None:
    cluster = _cluster(Odd(_raise))
    app = cluster.submit(1)
    cluster.settle()
    assert "test_scheduler.py:" in cluster.app(app).refusal


def test_half_a_round_of_nonsense_places_nothing() -> None:
    """Two demands, and the policy is right about the first only: the round counts for nothing."""

    def choose(view: ClusterView, placement: Placement) -> list[int]:
        return [0 if placement.demand[0] == 1 else 99] * len(placement.entries)

    cluster = _cluster(Odd(choose))
    app = cluster.submit(0)
    cluster.request(app, [1, 2], Resources(1, 1024))
    cluster.request(app, [3], Resources(2, 1024))
    cluster.advance(5)
    assert cluster.states(app) == {"pending": 3}
    assert "there is no row 99" in cluster.app(app).refusal


@pytest.mark.parametrize(
    "name",
    ["free", "total", "stream_headroom", "waiting_stream", "waiting_batch", "version", "open"],
)
def test_a_policy_cannot_write_into_its_view(name: str) -> None:
    def vandal(view: ClusterView, placement: Placement) -> list[int]:
        getattr(view, name)[:] = 1
        return [1] * len(placement.entries)

    cluster = _cluster(Odd(vandal))
    state = cluster.master.master_state.state
    names = ("free", "total", "waiting_stream", "waiting_batch", "version", "open")
    before = {name: getattr(state, name).copy() for name in names}
    app = cluster.submit(2)
    cluster.advance(3)
    assert {name: np.array_equal(getattr(state, name), before[name]) for name in names} == (
        dict.fromkeys(names, True)
    )
    assert "read-only" in cluster.app(app).refusal


def _strict(*vcores: int) -> VirtualCluster:
    nodes = [unit(f"n{i}", n) for i, n in enumerate(vcores)]
    return VirtualCluster(nodes, schedulers=1, policy=Fifo)


def _end_all(cluster: VirtualCluster, app: ApplicationId, *executors: int) -> None:
    for executor in executors:
        cluster.end_process(app, executor)
    cluster.settle()


def test_in_strict_order_a_job_without_a_place_blocks_those_behind_it() -> None:
    cluster = _strict(4)
    first = cluster.submit(1, Resources(2, 1024))
    large = cluster.submit(1, Resources(4, 1024))
    small = cluster.submit(2, Resources(1, 1024))
    cluster.advance(10)
    assert cluster.states(first) == {"running": 1}
    assert cluster.states(large) == {"pending": 1}
    assert cluster.states(small) == {"pending": 2}, "there is room for it, but it is not its turn"
    _end_all(cluster, first, 1)
    assert cluster.states(large) == {"running": 1}
    _end_all(cluster, large, 1)
    assert cluster.states(small) == {"running": 2}


def test_in_strict_order_what_waits_for_a_stream_to_end_blocks_nobody() -> None:
    """Nor may it be a driver, whose own executors are behind."""
    cluster = _strict(4)
    stream = cluster.submit(1, Resources(2, 1024), WorkloadClass.STREAM)
    cluster.settle()
    large = cluster.submit(1, Resources(4, 1024))
    gang = cluster.submit(3, Resources(1, 1024), gang_min=3)
    small = cluster.submit(1, Resources(1, 1024))
    cluster.advance(10)
    assert cluster.states(small) == {"running": 1}
    assert cluster.states(large) == {"pending": 1}
    assert cluster.states(gang) == {"pending": 3}
    late = cluster.submit(2, Resources(1, 1024))
    cluster.settle()
    assert cluster.states(late) == {"running": 1, "pending": 1}
    cluster.finish(stream)
    cluster.advance(5)
    assert cluster.states(late)["pending"] == 1, "it is the turn of the large one again"
    _end_all(cluster, small, 1)
    _end_all(cluster, late, 1)
    assert cluster.states(large) == {"running": 1}
    _end_all(cluster, large, 1)
    assert cluster.states(gang) == {"running": 3}


def test_in_strict_order_a_stream_still_goes_before_batch() -> None:
    cluster = _strict(4)
    cluster.submit(1, Resources(2, 1024))
    batch = cluster.submit(1, Resources(4, 1024))
    stream = cluster.submit(2, Resources(1, 1024), WorkloadClass.STREAM)
    cluster.advance(3)
    assert cluster.states(stream) == {"running": 2}
    assert cluster.states(batch) == {"pending": 1}


def test_in_strict_order_a_large_container_blocks_later_ones_of_its_own_job() -> None:
    cluster = _strict(4)
    app = cluster.submit(0)
    cluster.request(app, [1], Resources(2, 1024))
    cluster.request(app, [2], Resources(4, 1024))
    cluster.request(app, [3], Resources(2, 1024))
    cluster.advance(10)
    states = {n: cluster.container(app, n).state.value for n in (1, 2, 3)}
    assert states == {1: "running", 2: "pending", 3: "pending"}
    _end_all(cluster, app, 1)
    _end_all(cluster, app, 2)
    assert cluster.container(app, 3).state.value == "running"


def test_one_round_finds_out_for_all_that_there_is_no_capacity() -> None:
    bounds = Bounds(waiting_limit=0)
    cluster = VirtualCluster([unit("n1", 4)], schedulers=1, bounds=bounds)
    running = cluster.submit(4)
    cluster.settle()
    pending = [cluster.submit(1, Resources(2, 1024)) for _ in range(50)]
    small = cluster.submit(1, Resources(1, 512))
    cluster.advance(10.0)
    (scheduler,) = cluster.master.placement.schedulers.values()
    before = scheduler.rounds
    cluster.end_process(running, 1)
    cluster.settle()
    assert cluster.states(small) == {"running": 1}, "it asks for less than those that found no room"
    assert scheduler.rounds - before < 20, "not one for each job"
    _end_all(cluster, running, 2, 3)
    cluster.advance(3.0)
    assert sum(cluster.states(app) == {"running": 1} for app in pending) == 1
