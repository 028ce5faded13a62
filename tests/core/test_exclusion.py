"""A node that ends everything that starts there gets no more containers, for a while."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hrm.core.master.exclusion import CONFIRM_S, ExclusionTracker
from hrm.core.master.explain import explain
from hrm.core.messages import commands as c
from hrm.core.messages import events as e
from hrm.core.vocabulary.bounds import Bounds
from hrm.core.vocabulary.history import ExclusionState
from hrm.core.vocabulary.model import (
    ApplicationId,
    ContainerEnd,
    ContainerState,
    EndCause,
    NodeName,
    Resources,
    WorkloadClass,
)
from hrm.testing.virtual import VirtualCluster, unit
from tests.core.test_counted_work import calls_of

N1, N2, N3 = NodeName("n1"), NodeName("n2"), NodeName("n3")
A, B, C, D = (ApplicationId(x) for x in "abcd")
CRASH = ContainerEnd(cause=EndCause.EXITED, exit_code=52, message="exit code 52")


@dataclass
class Killer:
    """A cluster of which ``n1`` ends whatever starts there after 0.1 s."""

    cluster: VirtualCluster
    bad: str = "n1"

    def live(self, seconds: float) -> None:
        """Let time pass; AppMasters request another executor where one has failed."""
        for _ in range(int(seconds * 4)):
            self.cluster.advance(0.25)
            self.cluster.submit_to_master(e.Ticked(now=self.cluster.now))
            for container_id in list(self.cluster.nodes[self.bad].processes):
                application_id, _, executor = container_id.rpartition("-x")
                app = ApplicationId(application_id)
                resources = self.cluster.container(app, int(executor)).request.resources
                self.cluster.end_process(app, int(executor), exit_code=52)
                another = self.cluster.app(app).last_executor_number + 1
                self.cluster.request(app, [another], resources)

    def placed_on(self, app: ApplicationId) -> list[str]:
        everything = (*self.cluster.app(app).ended, *self.cluster.app(app).containers.values())
        return [x.node for x in everything if x.node is not None]


def killer(*names: str, bad: str = "n1", vcores: int = 4, **bounds: Any) -> Killer:
    units = [unit(name, vcores=vcores) for name in names]
    return Killer(VirtualCluster(units, bounds=Bounds(**bounds)), bad)


def tick(tracker: ExclusionTracker, now: float) -> list[NodeName]:
    """The nodes that are excluded for all, in a large cluster whose applications are in order."""
    return tracker.tick(now, lambda _: True, lambda: 100)


def why(cluster: VirtualCluster, app: ApplicationId) -> str:
    summary, details = explain(cluster.master.master_state, cluster.app(app), cluster.now)
    return "\n".join([summary, *details])


def test_an_application_leaves_a_node_that_kills_its_executors() -> None:
    subject = killer("n1", "n2", "n3")
    app = subject.cluster.submit(6)
    subject.live(5)
    assert subject.cluster.states(app) == {"running": 6}
    assert {x.node for x in subject.cluster.app(app).containers.values()} == {"n2", "n3"}
    assert subject.placed_on(app).count("n1") <= 3, "one was on its way when the second failed"
    reason = why(subject.cluster, app)
    assert "n1 is excluded for this application for 5" in reason
    assert "2 of its containers failed there at once" in reason
    assert not subject.cluster.master.master_state.exclusions.of_all(subject.cluster.now)


def test_the_exclusion_ends_and_the_next_is_longer() -> None:
    tracker, now = ExclusionTracker(Bounds(node_exclusion_s=10.0, node_exclusion_max_s=50.0)), 0.0
    lengths = []
    assert not tracker.failed(A, N1, CRASH, now)
    for _ in range(5):
        assert tracker.failed(A, N1, CRASH, now), "after the first, one failure is enough"
        (exclusion,) = tracker.of_application(A, now)
        lengths.append(exclusion.until_s - now)
        assert tracker.avoided(A, exclusion.until_s - 0.01) == {N1}
        assert tracker.avoided(A, exclusion.until_s) == frozenset()
        assert tracker.avoided(B, now) == frozenset()
        assert [tracker.applications_without(N1, now, x) for x in ([A, B], [B])] == [1, 0]
        now = exclusion.until_s
    assert lengths == [10.0, 20.0, 40.0, 50.0, 50.0]
    now += 50.1
    assert not tracker.failed(A, N1, CRASH, now), "it kept out of trouble: two are needed again"


def test_a_node_that_fails_several_applications_is_excluded_for_all() -> None:
    subject = killer("n1", "n2", "n3", node_failing_applications=2)
    cluster = subject.cluster
    cluster.submit(6), cluster.submit(6)
    subject.live(CONFIRM_S - 1.0)
    assert not cluster.master.master_state.exclusions.of_all(cluster.now)
    subject.live(3.0)
    (exclusion,) = cluster.master.master_state.exclusions.of_all(cluster.now)
    assert (exclusion.node, exclusion.why.partition(":")[0]) == (
        "n1",
        "executors of 2 applications failed there at once",
    )
    newcomer = cluster.submit(3)
    subject.live(2.0)
    assert "n1" not in subject.placed_on(newcomer)
    assert "n1 is excluded for every application" in why(cluster, newcomer)


def test_a_stream_that_needs_an_excluded_node_is_told_which() -> None:
    subject = killer("n1", "n2", node_failing_applications=2)
    cluster = subject.cluster
    cluster.submit(6), cluster.submit(6)
    subject.live(CONFIRM_S + 2.0)
    assert cluster.master.master_state.exclusions.of_all(cluster.now)
    for app in list(cluster.master.master_state.live_applications()):
        cluster.finish(app.application_id)
    cluster.settle()
    stream = cluster.submit(2, Resources(4, 4096), WorkloadClass.STREAM)
    cluster.advance(2)
    assert cluster.states(stream) == {"pending": 2}
    reason = why(cluster, stream)
    assert "capacity for 1 of the 2 now, without n1, which is excluded (see the details)" in reason
    assert "there is capacity for all" not in reason


def test_drivers_that_fail_again_and_again_report_no_node() -> None:
    """The master holds their containers: it is always present, whatever is wrong with them."""
    subject = killer("n1", "n2", "n3", node_failing_applications=2, driver_share=1.0)
    cluster = subject.cluster
    drivers = [cluster.submit(6, new_id=ApplicationId(f"driver-{n}")) for n in range(2)]
    subject.live(CONFIRM_S + 3.0)
    assert drivers == ["driver-0", "driver-1"]
    assert not cluster.master.master_state.exclusions.of_all(cluster.now)
    (own,) = cluster.master.master_state.exclusions.of_application(drivers[0], cluster.now)
    assert own.node == "n1", "their own next try goes elsewhere"


def test_a_node_is_tried_before_it_is_excluded_for_all_again() -> None:
    """What fails there during the exclusion was there before: it says nothing of the next try."""
    tracker = ExclusionTracker(Bounds(node_failures=1))
    for app in (A, B, C):
        tracker.failed(app, N1, CRASH, 0.0)
    assert tick(tracker, CONFIRM_S) == [N1]
    (exclusion,) = tracker.of_all(CONFIRM_S)
    assert not tracker.failed(D, N1, CRASH, CONFIRM_S + 1.0), "nor for the application itself"
    over_s = exclusion.until_s
    assert tick(tracker, over_s) == tick(tracker, over_s + CONFIRM_S) == []
    assert not tracker.of_all(over_s)
    assert tracker.failed(A, N1, CRASH, over_s + 60.0)
    assert tick(tracker, over_s + 60.0 + CONFIRM_S) == [N1], "one more is enough"
    (again,) = tracker.of_all(over_s + 60.0 + CONFIRM_S)
    assert again.until_s == over_s + 60.0 + CONFIRM_S + 2 * Bounds().node_exclusion_s


def test_a_failure_counts_from_the_end_of_an_exclusion_on() -> None:
    for before_s, found in ((0.25, []), (0.0, [N1])):
        tracker = ExclusionTracker(Bounds(node_failures=1, node_failing_applications=1))
        tracker.failed(A, N1, CRASH, 0.0)
        assert tick(tracker, CONFIRM_S) == [N1]
        (exclusion,) = tracker.of_all(CONFIRM_S)
        tracker.failed(B, N1, CRASH, exclusion.until_s - before_s)
        assert tick(tracker, exclusion.until_s + CONFIRM_S) == found


def test_a_report_counts_until_it_is_as_old_as_the_window() -> None:
    for age_s, found in ((99.0, [N1]), (100.0, [])):
        tracker = ExclusionTracker(
            Bounds(node_failures=1, node_failing_applications=2, node_failure_window_s=100.0)
        )
        tracker.failed(A, N1, CRASH, 0.0)
        assert tick(tracker, CONFIRM_S) == []
        tracker.failed(B, N1, CRASH, age_s - CONFIRM_S)
        assert tick(tracker, age_s) == found


def test_an_application_that_fails_everywhere_reports_no_node() -> None:
    tracker = ExclusionTracker(Bounds(node_failing_applications=1))
    for node in (N1, N2):
        assert [tracker.failed(A, node, CRASH, 0.0) for _ in range(2)] == [False, True]
    assert tracker.tick(CONFIRM_S, lambda _: True, nodes_alive=lambda: 3) == []
    assert tracker.avoided(B, CONFIRM_S) == frozenset()
    assert tracker.avoided(A, CONFIRM_S) == {N1, N2}


def test_an_application_that_ended_badly_meanwhile_reports_no_node() -> None:
    """Executors of a driver that died end by themselves, wherever they are."""
    tracker = ExclusionTracker(Bounds(node_failing_applications=1))
    tracker.failed(A, N1, CRASH, 0.0), tracker.failed(A, N1, CRASH, 0.0)
    tracker.failed(B, N2, CRASH, 0.0), tracker.failed(B, N2, CRASH, 0.0)
    assert tracker.tick(CONFIRM_S, lambda app: app == B, nodes_alive=lambda: 4) == [N2]


def test_the_last_node_is_never_excluded_and_why_reports_it() -> None:
    subject = killer("n1", vcores=2)
    app = subject.cluster.submit(2)
    subject.live(3)
    assert len(subject.placed_on(app)) > 5, "it goes on trying there"
    assert "n1 is used nevertheless: no other node could hold its containers" in why(
        subject.cluster, app
    )


def test_a_node_that_alone_is_large_enough_is_used_all_the_same() -> None:
    subject = Killer(VirtualCluster([unit("n1", vcores=4), unit("n2", vcores=1)]))
    app = subject.cluster.submit(1, Resources(4, 1024))
    small = subject.cluster.submit(2, Resources(1, 1024))
    subject.live(5)
    assert set(subject.placed_on(app)) == {"n1"}
    running = subject.cluster.app(small).containers.values()
    assert {x.node for x in running} == {"n2"}, "one of its two waits there rather"


def test_one_that_waits_at_a_node_that_gets_excluded_goes_elsewhere() -> None:
    subject = killer("n1", vcores=1)
    cluster = subject.cluster
    app = cluster.submit(4)
    cluster.settle()
    assert cluster.states(app) == {"running": 1, "waiting": 3}
    cluster.add_node(unit("n2", vcores=4))
    cluster.end_process(app, 1, exit_code=52)
    cluster.settle()
    cluster.end_process(app, 2, exit_code=52)
    cluster.settle()
    assert cluster.container(app, 3).state is ContainerState.RUNNING, "its node was faster"
    end = cluster.container(app, 4).end
    assert end is not None
    assert (end.cause, end.message) == (EndCause.PREEMPTED, "n1 is excluded, see hrm app why")
    cluster.request(app, [5, 6])
    cluster.settle()
    assert [cluster.container(app, executor).node for executor in (5, 6)] == ["n2", "n2"]


def test_a_stream_and_a_gang_are_placed_next_to_it_or_not_at_all() -> None:
    for gang_min, kind in ((0, WorkloadClass.STREAM), (3, WorkloadClass.BATCH)):
        subject = killer("n1", "n2", vcores=4, lease_scope="candidates")
        tracker = subject.cluster.master.master_state.exclusions
        app = ApplicationId("app-known-before")
        tracker.failed(app, N1, CRASH, 1000.0), tracker.failed(app, N1, CRASH, 1000.0)
        subject.cluster.submit(3, workload_class=kind, gang_min=gang_min, new_id=app)
        subject.cluster.settle()
        assert subject.placed_on(app) == ["n2"] * 3


def test_claims_that_were_on_their_way_are_not_granted() -> None:
    subject = killer("n1", "n2")
    cluster = subject.cluster
    placing = cluster.master.placement
    app = cluster.submit(0)
    cluster.request(app, [1])
    scheduler = placing.schedulers[cluster.app(app).scheduler]
    commands = cluster.master.handle(e.SchedulerWoken(now=cluster.now, scheduler=scheduler.name))
    (proposal,) = [x.proposal for x in commands if isinstance(x, c.ProposeClaims)]
    node = NodeName(proposal.claims[0].unit_id.partition("/")[0])
    tracker = cluster.master.master_state.exclusions
    tracker.failed(app, node, CRASH, cluster.now), tracker.failed(app, node, CRASH, cluster.now)
    cluster.submit_to_master(e.ClaimsProposed(now=cluster.now, proposal=proposal))
    assert cluster.container(app, 1).state is ContainerState.PENDING
    cluster.settle()
    assert cluster.container(app, 1).node == ({"n1", "n2"} - {node}).pop()


def test_what_does_not_count_against_a_node() -> None:
    subject = killer("n1", "n2", node_failures=1)
    cluster = subject.cluster
    app = cluster.submit(4)
    cluster.settle()
    first = next(iter(cluster.nodes["n1"].processes)).rpartition("-x")[2]
    cluster.end_process(app, int(first), exit_code=0)
    cluster.release(app, *[int(x.rpartition("-x")[2]) for x in cluster.nodes["n1"].processes])
    cluster.settle()
    cluster.request(app, [5, 6, 7])
    cluster.advance(Bounds().node_failure_run_s + 1)
    late = next(iter(cluster.nodes["n1"].processes)).rpartition("-x")[2]
    cluster.end_process(app, int(late), exit_code=1)
    cluster.settle()
    assert not cluster.master.master_state.exclusions.of_application(app, cluster.now)


def excluded_after_a_restart(ran_s: float, *, node_first: bool) -> list[str]:
    """Two executors on ``n1`` end badly after this long, while no master runs. Returns the nodes
    that the next master, whom the node or the application reaches first, excludes for it."""
    cluster = VirtualCluster([unit(name, vcores=4) for name in ("n1", "n2", "n3")])
    app = cluster.submit(6)
    cluster.settle()
    cluster.advance(ran_s)
    cluster.restart_master()
    for container_id in list(cluster.nodes["n1"].processes):
        cluster.end_process(app, int(container_id.rpartition("-x")[2]), exit_code=1)
    cluster.advance(20.0)
    if not node_first:
        cluster.attach(app)
    for node in cluster.nodes.values():
        cluster.register(node)
    if node_first:
        cluster.advance(1.0)
        cluster.attach(app)
    cluster.advance(2.0)
    ends = [x.end for x in cluster.app(app).ended]
    assert [end.exit_code for end in ends if end is not None] == [1, 1]
    tracker = cluster.master.master_state.exclusions
    return [x.node for x in tracker.of_application(app, cluster.now)]


@pytest.mark.parametrize("node_first", [False, True])
def test_what_ran_for_hours_fails_no_node_at_a_new_master(node_first: bool) -> None:
    """It hears of the end alone, and has not seen the start."""
    assert excluded_after_a_restart(3600.0, node_first=node_first) == []


@pytest.mark.parametrize("node_first", [False, True])
def test_what_failed_at_once_while_no_master_ran_counts_at_the_next(node_first: bool) -> None:
    assert excluded_after_a_restart(2.0, node_first=node_first) == ["n1"]


@pytest.mark.parametrize(
    ("by_node_s", "by_master_s", "counts"),
    [
        (2.0, 100.0, True),  # it was reported late
        (100.0, 2.0, False),  # what the master knows of its start is bounded by its own clock
        (-1.0, 100.0, False),  # the node's clock was set back
        (-1.0, 2.0, True),
    ],
)
def test_how_long_a_container_ran_is_for_its_node_to_say(
    by_node_s: float, by_master_s: float, counts: bool
) -> None:
    cluster = VirtualCluster([unit("n1")], bounds=Bounds(node_failures=1))
    app = cluster.submit(1)
    cluster.advance(by_master_s)
    node = cluster.nodes["n1"].core
    (status,) = node.statuses()
    begun_s = status.started_at_s + 86_400.0  # on a clock of its own
    ended = replace(
        status,
        state=ContainerState.ENDED,
        end=CRASH,
        started_at_s=begun_s,
        ended_at_s=begun_s + by_node_s,
    )
    incarnation = cluster.master.master_state.nodes[N1].incarnation
    cluster.submit_to_master(
        e.ContainerReported(
            now=cluster.now, node=N1, incarnation=incarnation, sequence=10_000, container=ended
        )
    )
    avoided = cluster.master.master_state.exclusions.avoided(app, cluster.now)
    assert avoided == ({N1} if counts else set())


def test_zero_failures_switch_it_off() -> None:
    tracker = ExclusionTracker(Bounds(node_failures=0))
    assert not any(tracker.failed(A, N1, CRASH, 0.0) for _ in range(10))
    assert not tracker.open


def test_another_machine_of_the_name_begins_again() -> None:
    tracker = ExclusionTracker(Bounds())
    tracker.failed(A, N1, CRASH, 0.0), tracker.failed(A, N1, CRASH, 0.0)
    assert tracker.avoided(A, 1.0) == {N1}
    tracker.clear(N1, 1.0, "another agent has its name")
    assert tracker.avoided(A, 1.0) == frozenset()


def test_one_that_watches_is_notified_when_an_exclusion_begins_and_when_it_ends() -> None:
    moves: list[Any] = []
    tracker = ExclusionTracker(
        Bounds(node_failing_applications=1, node_exclusion_s=10.0), moves.append
    )
    assert [tracker.failed(A, N1, CRASH, 0.0) for _ in range(2)] == [False, True]
    tracker.tick(CONFIRM_S, lambda _: True, nodes_alive=lambda: 9)
    tracker.tick(9.99, lambda _: True, nodes_alive=lambda: 9)
    tracker.tick(10.0, lambda _: True, nodes_alive=lambda: 9)
    tracker.tick(10.25, lambda _: True, nodes_alive=lambda: 9)
    tracker.clear(N1, 11.0, "returned to service")
    tracker.clear(N1, 12.0, "returned to service")
    excluded, admitted = ExclusionState.EXCLUDED, ExclusionState.ADMITTED
    of_a = "2 of its containers failed there at once, the last: exit code 52"
    assert moves == [
        ("node", "n1", "a", None, excluded, 0.0,
         f"for a for 10 s, until 1970-01-01 00:00:10 UTC: {of_a}"),
        ("node", "n1", "", None, excluded, 5.0,
         "for every application for 10 s, until 1970-01-01 00:00:15 UTC: "
         "executors failed there at once: a"),
        ("node", "n1", "a", excluded, admitted, 10.0, "for a: its time is over"),
        ("node", "n1", "", excluded, admitted, 11.0,
         "for every application: returned to service"),
    ]  # fmt: skip


def test_an_exclusion_that_follows_before_a_tick_ends_the_one_before() -> None:
    moves: list[Any] = []
    tracker = ExclusionTracker(Bounds(node_failures=1, node_exclusion_s=10.0), moves.append)
    assert tracker.failed(A, N1, CRASH, 0.0) and tracker.failed(A, N1, CRASH, 10.0)
    excluded, admitted = ExclusionState.EXCLUDED, ExclusionState.ADMITTED
    assert [(to, at) for _, _, _, _, to, at, _ in moves] == [
        (excluded, 0.0), (admitted, 10.0), (excluded, 10.0),
    ]  # fmt: skip


def test_a_master_reports_the_exclusions_of_its_nodes_in_the_order_of_its_events() -> None:
    subject = killer("n1", "n2", node_exclusion_s=10.0)
    moves: list[Any] = []
    subject.cluster.master.master_state.exclusions._watch = moves.append
    app = subject.cluster.submit(3)
    subject.live(20.0)
    seen = [(node, owner, was, to) for _, node, owner, was, to, _, _ in moves]
    begins, ends = (
        (None, ExclusionState.EXCLUDED),
        (ExclusionState.EXCLUDED, ExclusionState.ADMITTED),
    )
    assert seen[:2] == [("n1", app, *begins), ("n1", app, *ends)]
    assert moves[1][5] - moves[0][5] >= 10.0


@given(
    st.lists(
        st.tuples(
            st.sampled_from([A, B, C]),
            st.sampled_from([N1, N2, N3]),
            st.floats(0.0, 40.0),
            st.booleans(),
        ),
        max_size=60,
    )
)
def test_exclusions_are_bounded_and_records_become_empty(
    history: list[tuple[ApplicationId, NodeName, float, bool]],
) -> None:
    bounds = Bounds(node_exclusion_s=5.0, node_exclusion_max_s=30.0, node_failure_window_s=20.0)
    moves: list[Any] = []
    tracker, again, now = ExclusionTracker(bounds, moves.append), ExclusionTracker(bounds), 0.0
    for app, node, pause_s, ticks in history:
        now += pause_s
        for each in (tracker, again):
            each.failed(app, node, CRASH, now)
            if ticks:
                each.tick(now, lambda app: app != C, lambda: 3)
        for exclusion in (*tracker.of_application(app, now), *tracker.of_all(now)):
            assert now < exclusion.until_s <= now + 30.0
        assert tracker.avoided(app, now) == again.avoided(app, now), (
            "it is a function of its events"
        )
    for _ in range(3):
        now += 61.0
        tracker.tick(now, lambda _: True, lambda: 3)
    assert not tracker.open
    begun = [(node, owner) for _, node, owner, was, _, _, _ in moves if was is None]
    ended = [(node, owner) for _, node, owner, was, _, _, _ in moves if was is not None]
    assert sorted(begun) == sorted(ended), "each begins once and ends once"


def tick_calls(nodes: int) -> int:
    """Calls of a tick, and of asking which nodes to avoid, with one failure on each of ``nodes``,
    two applications for which each of as many others was excluded, and one exclusion."""
    tracker = ExclusionTracker(Bounds(node_failure_window_s=100.0))
    for number in range(nodes):
        tracker.failed(A, NodeName(f"m{number}"), CRASH, 0.0)
        for app in (B, C) * Bounds().node_failures:
            tracker.failed(app, NodeName(f"r{number}"), CRASH, 0.0)
    for _ in range(Bounds().node_failures):
        tracker.failed(A, N1, CRASH, 0.0)
    tracker.tick(50.0, lambda _: True, lambda: 10 * nodes)
    assert tracker.avoided(A, 51.0) == {N1}
    assert len(tracker.of_application(B, 51.0)) == nodes, "each lacks one report"

    def work() -> None:
        tracker.tick(51.0, lambda _: True, lambda: 10 * nodes)
        tracker.avoided(A, 51.0)

    return calls_of(work)


def test_a_tick_costs_the_same_on_how_many_nodes_containers_have_failed() -> None:
    few = tick_calls(10)
    assert tick_calls(1_000) == few < 60


@pytest.mark.parametrize("undo", [False, True])
@pytest.mark.parametrize("schedulers", [1, 2, 6])
def test_what_waits_gets_the_node_as_soon_as_its_exclusion_is_over(
    schedulers: int, undo: bool
) -> None:
    bounds = Bounds(node_exclusion_s=30.0, retry_delay_max_s=25.0)
    cluster = VirtualCluster([unit("n1")], schedulers=schedulers, bounds=bounds)
    app, tracker = cluster.submit(0), cluster.master.master_state.exclusions
    for executor in range(1, bounds.node_failures + 1):
        cluster.request(app, [executor], Resources(1, 64))
        cluster.settle()
        cluster.end_process(app, executor, exit_code=1)
        cluster.settle()
    assert tracker.avoided(app, cluster.now) == {N1}
    cluster.add_node(unit("n2"))
    cluster.settle()
    holds = cluster.submit(8, Resources(1, 64), WorkloadClass.STREAM)
    cluster.settle()
    on_n1 = [x for x in cluster.app(holds).containers.values() if x.node == "n1"]
    cluster.release(holds, *(int(x.request.executor_id) for x in on_n1))
    cluster.settle()
    cluster.request(app, [10], Resources(1, 64))
    cluster.advance(20.0)
    assert cluster.states(app) == {"pending": 1}
    if undo:
        cluster.submit_to_master(
            e.DrainRequested(now=cluster.now, call_id=cluster.next_call(), nodes=(N1,), undo=True)
        )
    else:
        for _ in range(30):
            cluster.advance(1.0)
            if not tracker.avoided(app, cluster.now):
                break
    cluster.advance(1.5)
    assert cluster.states(app) == {"running": 1}
