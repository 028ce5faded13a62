"""A master that slept does not count others' silence; its own rights end by real time."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hrm.core.messages import commands as c
from hrm.core.messages import events as e
from hrm.core.vocabulary.model import ApplicationId, NodeName, NodeState
from hrm.core.vocabulary.wakefulness import Patience, Wakefulness, excused
from hrm.testing.virtual import VirtualCluster, unit

TICK_S = 0.25


def test_a_master_that_was_stopped_loses_no_node_and_no_application() -> None:
    cluster = _running()
    cluster.now += 1_000.0
    cluster.submit_to_master(e.Ticked(now=cluster.now))
    (node,) = cluster.master.master_state.nodes.values()
    assert node.state is NodeState.ALIVE
    assert not cluster.master.master_state.live_applications()[0].life.state.ended
    cluster.advance(60.0)
    assert cluster.running() == 2
    assert node.state is NodeState.ALIVE


def test_what_is_silent_all_the_same_is_lost_after_one_fresh_limit() -> None:
    cluster = _running()
    core, timeout_s = cluster.master, cluster.bounds.node_timeout_s
    now = cluster.now + 1_000.0
    core.handle(e.Ticked(now=now))
    _let_pass(core.handle, now, timeout_s - 1.0)
    assert [node.state for node in core.master_state.nodes.values()] == [NodeState.ALIVE]
    _let_pass(core.handle, now + timeout_s - 1.0, 2.0)
    assert [node.state for node in core.master_state.nodes.values()] == [NodeState.LOST]


def test_one_that_never_comes_to_itself_still_loses_what_is_dead() -> None:
    """Every turn of its loop takes seconds: a silence is excused once, then it counts less."""
    cluster = _running()
    core = cluster.master
    for second in range(1, 200):
        core.handle(e.Ticked(now=cluster.now + 3.0 * second))
    assert [node.state for node in core.master_state.nodes.values()] == [NodeState.LOST]


def _disconnected(cluster: VirtualCluster, now: float) -> e.MasterEvent:
    (node,) = cluster.master.master_state.nodes.values()
    return e.NodeDisconnected(now=now, node=node.name, incarnation=node.incarnation)


def _detached(cluster: VirtualCluster, now: float) -> e.MasterEvent:
    (app,) = cluster.master.master_state.live_applications()
    assert app.session is not None
    return e.ApplicationDetached(now=now, application_id=app.application_id, session=app.session)


def _tick(cluster: VirtualCluster, now: float) -> e.MasterEvent:
    return e.Ticked(now=now)


@pytest.mark.parametrize("order", [*itertools.permutations((_tick, _disconnected, _detached))])
def test_it_does_not_matter_what_is_received_first_after_waking(
    order: tuple[Callable[[VirtualCluster, float], e.MasterEvent], ...],
) -> None:
    cluster = _running()
    core, now = cluster.master, cluster.now + 500.0
    for number, make in enumerate(order):
        core.handle(make(cluster, now + 0.001 * number))
    _let_pass(core.handle, now, cluster.bounds.node_timeout_s - 1.0)
    (node,) = core.master_state.nodes.values()
    (app,) = core.master_state.live_applications()
    assert (node.state, node.connected) == (NodeState.ALIVE, False)
    assert app.detached_at_s is not None


def test_an_absence_that_began_before_the_sleep_begins_again() -> None:
    cluster = _running()
    core, grace_s = cluster.master, cluster.bounds.application_grace_s
    core.handle(_detached(cluster, cluster.now))
    _let_pass(core.handle, cluster.now, grace_s - 1.0)
    now = cluster.now + grace_s + 100.0
    core.handle(e.Ticked(now=now))
    assert core.master_state.live_applications()
    _let_pass(core.handle, now, grace_s - 1.0)
    assert core.master_state.live_applications()
    _let_pass(core.handle, now + grace_s - 1.0, 2.0)
    assert not core.master_state.live_applications()


def test_what_a_store_has_forgotten_has_its_time_to_come_back_again() -> None:
    """The master sleeps near the end of that time; its nodes have registered long ago."""
    cluster = _running()
    (app_id,) = (app.application_id for app in cluster.master.master_state.live_applications())
    grace_s = cluster.bounds.application_grace_s
    cluster.durable.clear()
    cluster.durable_nodes.clear()
    cluster.restart_master()
    for node in cluster.nodes.values():
        cluster.register(node)
    cluster.advance(grace_s - 3)
    cluster.now += 120.0
    cluster.submit_to_master(e.Ticked(now=cluster.now))
    cluster.advance(grace_s - 3)
    assert cluster.master.master_state.forgot_until_s > cluster.now
    assert all(len(node.processes) == 2 for node in cluster.nodes.values())
    cluster.submit_to_master(
        e.ApplicationRegistered(
            now=cluster.now, call_id=cluster.next_call(), application_id=app_id,
            submission_key="k", name="n", user="u", proven=True,
        )
    )  # fmt: skip
    cluster.attach(app_id)
    cluster.advance(2 * grace_s)
    assert cluster.running() == 2


def test_a_busy_loop_is_a_sleep_although_some_report() -> None:
    """Reports arrive one after another; neither the clock nor the other node gets a turn."""
    cluster = VirtualCluster([unit("n1"), unit("n2")])
    cluster.advance(2.0)
    core = cluster.master
    contact, silent = core.master_state.nodes.values()
    now = cluster.now
    for _ in range(200):
        now += 0.5
        report = e.NodeReported(
            now=now,
            node=contact.name,
            incarnation=contact.incarnation,
            sequence=contact.sequence + 1,
            containers=(),
        )
        core.handle(report)
    core.handle(e.Ticked(now=now + 0.1))
    assert (contact.state, silent.state) == (NodeState.ALIVE, NodeState.ALIVE)


def test_a_right_ends_by_real_time() -> None:
    """The lease of a stream's scheduler is over after the sleep, whatever was granted to others."""
    cluster = _running()
    lease = cluster.master.negotiator.lease
    assert lease.acquire("elsewhere", cluster.now, None) is not None
    cluster.master.handle(e.Ticked(now=cluster.now + 100.0))
    assert lease.holder is None


def test_a_caller_waits_for_a_rebinding_as_long_as_the_master_is_awake() -> None:
    cluster = _running()
    core, now = cluster.master, cluster.now
    (node,) = core.master_state.nodes.values()
    core.handle(
        e.RebindRequested(
            now=now, call_id=77, node=node.name, mode=None, bound_cores=1, reserve_cores=None
        )
    )
    assert not [x for x in core.handle(e.Ticked(now=now + 60.0)) if isinstance(x, c.Refuse)]
    result = e.RebindReplied(
        now=now + 60.1, node=node.name, request_id=77, accepted=True, message="done"
    )
    assert [x.call_id for x in core.handle(result) if isinstance(x, c.Reply)] == [77]


def test_what_is_read_after_a_sleep_has_not_waited_through_it() -> None:
    """The sleep shows between two ticks, and the request is read just before the second."""
    cluster = _running()
    core, bounds = cluster.master, cluster.master.master_state.bounds
    (node,) = core.master_state.nodes.values()

    def request(now: float, name: NodeName) -> e.RebindRequested:
        return e.RebindRequested(
            now=now, call_id=77, node=name, mode=None, bound_cores=1, reserve_cores=None
        )

    core.handle(e.Ticked(now=cluster.now))
    core.handle(request(cluster.now + 0.7 * bounds.asleep_s, NodeName("unknown")))
    now = cluster.now + 1.4 * bounds.asleep_s
    core.handle(request(now, node.name))
    assert core.slept_s == 0
    core.handle(e.Ticked(now=now))
    assert core.slept_s > 0
    steps = math.ceil(bounds.rebind_timeout_s / TICK_S)
    refused = [
        [x.call_id for x in core.handle(e.Ticked(now=now + step * TICK_S)) if type(x) is c.Refuse]
        for step in range(1, steps + 1)
    ]
    assert refused == [[]] * (steps - 1) + [[77]]


def test_a_round_that_began_after_a_sleep_has_not_lasted_through_it() -> None:
    placement = _running().master.placement
    (scheduler, *_) = placement.schedulers.values()
    for began_s, counts_from_s in ((90.0, 94.0), (99.0, 100.0)):
        scheduler.in_flight = (ApplicationId("app"), began_s)
        placement.woke(100.0, 4.0)
        assert scheduler.in_flight == ("app", counts_from_s)


@given(st.lists(st.floats(0.0, 30.0), min_size=1, max_size=50))
def test_sleeps_are_never_longer_than_the_time_that_passed(gaps: list[float]) -> None:
    awake, now = Wakefulness(1.0, 0.0), 0.0
    slept_s = 0.0
    for number, gap in enumerate(gaps):
        now += gap
        slept_s += awake.passed(now)
        if number % 3 == 0:
            slept_s += awake.ticked(now)
    assert 0.0 <= slept_s <= now


def test_one_sleep_does_not_count_as_two() -> None:
    awake = Wakefulness(1.0, 0.0)
    awake.passed(0.4)
    awake.ticked(0.4)
    awake.passed(0.8)
    assert awake.passed(10.8) == 9.0
    assert (awake.passed(10.9), awake.ticked(10.9)) == (0.0, 0.0)
    assert awake.passed(12.5) == pytest.approx(0.6), "the next one does"


@given(st.floats(0, 100), st.floats(0, 100), st.floats(0.1, 100))
def test_a_silence_is_forgiven_once(since_s: float, later_s: float, slept_s: float) -> None:
    now = since_s + later_s + slept_s + 0.1
    first = excused(since_s, float("-inf"), now, slept_s)
    assert first == now
    assert excused(since_s, first, now + 50.0, 20.0) == first + 20.0, "then it only does not count"


def test_patience_counts_only_while_awake_and_ends() -> None:
    patience = Patience(0.0, limit_s=10.0, late_s=3.0)
    assert not patience.is_over(2.0)
    assert not patience.is_over(500.0), "a sleep"
    assert not patience.is_over(502.0)
    assert not patience.is_over(600.0), "another: only what was awake counts"
    assert not any(patience.is_over(600.0 + step) for step in (2.0, 4.0))
    assert patience.is_over(606.5)
    patience.contact(610.0)
    assert not patience.is_over(612.0)


def _running() -> VirtualCluster:
    """One node, and one application with two executors there."""
    cluster = VirtualCluster([unit("n1", vcores=4)])
    cluster.submit(2)
    cluster.advance(3.0)
    assert cluster.running() == 2
    return cluster


def _let_pass(handle: Callable[[e.MasterEvent], object], begin_s: float, for_s: float) -> None:
    for step in range(1, int(for_s / TICK_S) + 1):
        handle(e.Ticked(now=begin_s + step * TICK_S))
