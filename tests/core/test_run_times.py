"""Run times of recurring applications, and queues that are limited by the speed of units."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hrm.core.master.run_time_corrections import progressed, work_left_s
from hrm.core.messages import events as e
from hrm.core.messages.claims import Claim, Decision, Entry, Proposal
from hrm.core.queue.start_rule import end_s
from hrm.core.scheduling.negotiator import Negotiator
from hrm.core.vocabulary.bounds import Bounds
from hrm.core.vocabulary.feasibility import Vector
from hrm.core.vocabulary.model import (
    ApplicationId,
    ApplicationState,
    ContainerId,
    Progress,
    Resources,
    ResourceUnitId,
    WorkloadClass,
)
from hrm.core.vocabulary.run_times import FinishTimes, RunTime, RunTimeTable, length_bound
from hrm.testing.virtual import VirtualCluster, unit

FEEDBACK = Bounds(waiting_bound="feedback", default_duration_s=0.25, heartbeat_interval_s=1.0)
DEMAND: Vector = (1, 1, 0, 1)


@pytest.mark.parametrize(
    ("slots", "mu_per_s", "tau_s", "waiting"),
    [
        (4, 1.0, 1.0, 0),  # what runs covers the interval exactly
        (4, 2.0, 1.0, 4),  # twice as fast: as many again
        (4, 0.5, 3.0, 2),  # r + b = 4 * 1.5
        (3, 1.0, 1.1, 1),  # rounded up
        (4, 0.01, 1.0, 0),  # slow containers: none may wait, and never less than none
        (16, 1 / 500, 10.0, 0),
    ],
)
def test_check_values_of_the_length_bound(
    slots: int, mu_per_s: float, tau_s: float, waiting: int
) -> None:
    assert length_bound(slots, mu_per_s, tau_s) == waiting


@given(st.integers(1, 64), st.floats(0.001, 100), st.floats(0.1, 60))
def test_running_and_waiting_cover_the_interval_and_not_one_more(
    slots: int, mu_per_s: float, tau_s: float
) -> None:
    waiting = length_bound(slots, mu_per_s, tau_s)
    finished = slots * mu_per_s * tau_s
    assert slots + waiting >= finished - 1e-6
    assert waiting == 0 or slots + waiting - 1 < finished + 1e-6


def proposal(many: int) -> Proposal:
    claims = tuple(
        Claim(
            Entry(ContainerId(f"c{number}"), WorkloadClass.BATCH, DEMAND, 1.0),
            ResourceUnitId("n1/cpu"),
            0,
        )
        for number in range(many)
    )
    return Proposal("s", ApplicationId("a"), WorkloadClass.BATCH, claims)


def test_the_negotiator_keeps_to_the_bound() -> None:
    """2 slots, 0.25 s per container, a heartbeat per second: 2 * (4 - 1) may wait."""
    cluster = VirtualCluster([unit("n1", vcores=2)], bounds=FEEDBACK)
    subject: Negotiator = cluster.master.negotiator
    outcomes = subject.commit(proposal(10), cluster.now)
    assert outcomes is not None
    counts = [sum(x.decision is kind for x in outcomes) for kind in Decision]
    assert counts == [2, 6, 2]
    assert "waiting_bound" in outcomes[-1].reason


def test_a_unit_that_turns_out_slow_accepts_no_waiter() -> None:
    cluster = VirtualCluster([unit("n1", vcores=2)], bounds=FEEDBACK)
    app = cluster.submit(9)
    cluster.settle()
    assert cluster.states(app) == {"running": 2, "waiting": 6, "pending": 1}
    cluster.advance(60)
    cluster.end_process(app, 1)
    cluster.advance(5)
    assert cluster.states(app) == {"running": 2, "waiting": 5, "pending": 1}, "6 are above it now"
    for executor in (2, 3, 4, 5, 6, 7):
        cluster.end_process(app, executor)
        cluster.settle()
    assert cluster.states(app) == {"running": 2}


def test_a_node_that_is_gone_leaves_no_record() -> None:
    times = FinishTimes(default_s=10.0)
    times.finished(ResourceUnitId("u"), 2.0)
    times.finished(ResourceUnitId("u"), 4.0)
    assert times.rate_per_s(ResourceUnitId("u")) == pytest.approx(1 / 3)
    times.forget(ResourceUnitId("u"))
    assert times.rate_per_s(ResourceUnitId("u")) == 0.1


def run_once(cluster: VirtualCluster, seconds: float, state: ApplicationState) -> None:
    app = cluster.submit(2, name="nightly")
    cluster.settle()
    cluster.advance(seconds - 1)
    cluster.finish(app, state)
    cluster.settle()


def expected_s(cluster: VirtualCluster, name: str) -> float:
    app = cluster.submit(1, name=name)
    duration_s = cluster.container(app, 1).request.expected_duration_s
    cluster.finish(app, ApplicationState.KILLED)
    cluster.settle()
    return duration_s


def test_a_recurring_application_is_expected_to_take_as_long_as_before() -> None:
    cluster = VirtualCluster([unit("n1")])
    assert expected_s(cluster, "nightly") == 0.0
    run_once(cluster, 30.0, ApplicationState.SUCCEEDED)
    assert expected_s(cluster, "nightly") == pytest.approx(30.0, abs=0.1)
    assert expected_s(cluster, "another") == 0.0
    run_once(cluster, 10.0, ApplicationState.SUCCEEDED)
    mean_s = (30.0 * 10.0) ** 0.5
    assert expected_s(cluster, "nightly") == pytest.approx(mean_s, abs=0.1)


def test_how_long_a_failed_run_took_is_a_lower_bound() -> None:
    cluster = VirtualCluster([unit("n1")])
    run_once(cluster, 30.0, ApplicationState.SUCCEEDED)
    run_once(cluster, 5.0, ApplicationState.FAILED)
    assert expected_s(cluster, "nightly") == pytest.approx(30.0, abs=0.1), "30 s may be right"
    run_once(cluster, 120.0, ApplicationState.FAILED)
    assert expected_s(cluster, "nightly") == pytest.approx(60.0, abs=0.2), "30 s were too little"
    run_once(cluster, 50.0, ApplicationState.FAILED)
    assert expected_s(cluster, "nightly") == pytest.approx(60.0, abs=0.2)
    for seconds, known_s in ((20.0, 0.0), (200.0, 200.0)):
        app = cluster.submit(1, name="another")
        cluster.settle()
        cluster.advance(seconds - 1)
        cluster.finish(app, ApplicationState.KILLED)
        cluster.settle()
        assert expected_s(cluster, "another") == pytest.approx(known_s, abs=0.1)


def test_a_user_begins_with_what_the_latest_other_user_knows() -> None:
    times = RunTimeTable(limit=2)
    times.put(row("a"))
    times.put(replace(row("a"), user="bob", mean_s=7.0))
    assert times.find(("a", "ada", 0)) == row("a")
    assert times.find(("a", "cleo", 0)) == replace(row("a"), user="bob", mean_s=7.0)
    assert times.find(("a", "cleo", 1)) is None
    times.put(row("b"))
    times.put(row("c"))
    assert times.find(("a", "cleo", 0)) is None, "both rows are displaced"


def test_tasks_that_are_left_extend_what_is_expected_of_an_application_that_runs() -> None:
    """n1 is expected to be free in 60 s, as n2 is; the tasks at n1 need 1,000 s more."""
    cluster = VirtualCluster([unit("n1", vcores=1), unit("n2", vcores=1)])
    apps = [cluster.submit(1, name=name) for name in ("first", "second")]
    cluster.settle()
    slow = next(app for app in apps if cluster.container(app, 1).node == "n1")
    progress = Progress(tasks_total=1010, tasks_running=1, tasks_completed=10, mean_task_s=1.0)
    report = e.ProgressReported(now=cluster.now, application_id=slow, progress=progress)
    cluster.submit_to_master(report)
    late = cluster.submit(2, name="late")
    cluster.settle()
    assert {cluster.container(late, x).node for x in (1, 2)} == {"n2"}
    state = cluster.master.master_state.state
    queue = state.find(ResourceUnitId("n1/cpu"))
    assert queue is not None
    (entry,) = queue.running.values()
    assert end_s(entry) == pytest.approx(report.now + 1000.0)
    sooner = replace(progress, tasks_completed=1009)
    cluster.submit_to_master(replace(report, now=cluster.now, progress=sooner))
    (entry,) = queue.running.values()
    assert entry.duration_s == 60.0, "jobs to come are not known: no sooner than without reports"


def test_a_report_of_the_first_tasks_does_not_last() -> None:
    """A thousand tasks of one second: one runs at first, on four cores; then four do."""
    cluster = VirtualCluster([unit("n1", vcores=4)])
    app = cluster.submit(1, Resources(4, 512), name="ramp")
    cluster.settle()
    first = Progress(tasks_total=1000, tasks_running=1, mean_task_s=1.0)
    report = e.ProgressReported(now=cluster.now, application_id=app, progress=first)
    cluster.submit_to_master(report)
    queue = cluster.master.master_state.state.find(ResourceUnitId("n1/cpu"))
    assert queue is not None
    (entry,) = queue.running.values()
    assert end_s(entry) == pytest.approx(report.now + 250.0), "all of its cores will be used"

    late = replace(first, tasks_running=4, tasks_completed=800)
    cluster.submit_to_master(replace(report, now=cluster.now, progress=late))

    (entry,) = queue.running.values()
    assert entry.duration_s == 60.0, "50 s are left, and 60 were expected"


def test_an_application_that_has_nothing_left_is_expected_as_without_reports() -> None:
    cluster = VirtualCluster([unit("n1", vcores=1)])
    app = cluster.submit(1, name="shell")
    cluster.settle()
    progress = Progress(active_jobs=1, tasks_total=1000, tasks_running=1, mean_task_s=1.0)
    report = e.ProgressReported(now=cluster.now, application_id=app, progress=progress)
    cluster.submit_to_master(report)
    queue = cluster.master.master_state.state.find(ResourceUnitId("n1/cpu"))
    assert queue is not None
    between = replace(progress, tasks_running=0, tasks_completed=500)
    cluster.submit_to_master(replace(report, progress=between))
    (entry,) = queue.running.values()
    assert end_s(entry) == pytest.approx(report.now + 1000.0), "between two stages"
    cluster.submit_to_master(replace(report, progress=replace(between, active_jobs=0)))
    (entry,) = queue.running.values()
    assert entry.duration_s == 60.0


def test_the_error_of_the_estimates_is_kept() -> None:
    cluster = VirtualCluster([unit("n1")])
    errors = cluster.master.master_state.estimate_errors
    assert errors.summary()[:2] == (0, 0)
    run_once(cluster, 30.0, ApplicationState.SUCCEEDED)
    assert errors.summary()[:2] == (0, 2), "nothing was known of its two containers"
    run_once(cluster, 40.0, ApplicationState.SUCCEEDED)
    known, unknown, median, p90 = errors.summary()
    assert (known, unknown) == (2, 2)
    assert median == pytest.approx(0.25, abs=0.02), "30 s were expected, and it took 40"
    assert p90 == pytest.approx(0.25, abs=0.02)
    run_once(cluster, 100.0, ApplicationState.KILLED)
    assert errors.summary()[:2] == (2, 2), "it has not done its work"
    for _ in range(2_000):
        errors.ended(1.0, 2.0)
    assert errors.summary() == (1_000, 0, 0.5, 0.5)


@pytest.mark.parametrize(
    ("progress", "left_s"),
    [
        (Progress(), 0.0),
        (Progress(tasks_total=10, tasks_completed=4, mean_task_s=2.0), 0.0),
        (Progress(tasks_total=10, tasks_completed=4, tasks_running=3, mean_task_s=2.0), 4.0),
        (Progress(tasks_total=4, tasks_completed=9, tasks_running=3, mean_task_s=2.0), 0.0),
        (Progress(tasks_total=10, tasks_running=1, mean_task_s=math.inf), 0.0),
        (Progress(tasks_total=10, tasks_running=1, mean_task_s=1e9), 30 * 86_400.0),
    ],
)
def test_work_left(progress: Progress, left_s: float) -> None:
    assert work_left_s(progress) == left_s


@pytest.mark.parametrize("progress", [Progress(), Progress(tasks_total=4, tasks_completed=4)])
def test_a_report_that_corrects_nothing_looks_at_no_container(
    progress: Progress, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Drivers report every few seconds, and may have thousands of executors."""
    cluster = VirtualCluster([unit("n1")])
    name = cluster.submit(2)
    cluster.settle()
    app = cluster.app(name)
    app.progress = progress
    looked = list[str]()

    class Watched(dict):  # type: ignore[type-arg]
        def values(self) -> Any:
            looked.append("values")
            return super().values()

    monkeypatch.setattr(app, "containers", Watched(app.containers))
    progressed(cluster.master.master_state, app, 10.0)
    assert looked == []
    app.progress = Progress(tasks_total=9, tasks_running=1, mean_task_s=500.0)
    progressed(cluster.master.master_state, app, 10.0)
    assert looked and app.due_at_s > 10.0


def test_what_was_learned_survives_the_master() -> None:
    cluster = VirtualCluster([unit("n1")])
    run_once(cluster, 30.0, ApplicationState.SUCCEEDED)
    cluster.restart_master()
    for node in cluster.nodes.values():
        cluster.register(node)
    assert expected_s(cluster, "nightly") == pytest.approx(30.0, abs=0.1)


def run_of(cluster: VirtualCluster, duration_s: float, input_bytes: int) -> float:
    """Run the application once; returns how long it was expected to take."""
    app = cluster.submit(1, name="sized", input_bytes=input_bytes)
    expected_s = cluster.container(app, 1).request.expected_duration_s
    cluster.advance(duration_s)
    cluster.finish(app)
    cluster.settle()
    return expected_s


def test_run_times_follow_the_size_that_is_stated() -> None:
    cluster = VirtualCluster([unit("n1")])
    assert run_of(cluster, 60.0, 10 << 30) == 0.0
    assert run_of(cluster, 120.0, 20 << 30) == pytest.approx(120.0, rel=0.02)
    for _ in range(20):  # it takes as long whatever it reads
        run_of(cluster, 60.0, 10 << 30)
        run_of(cluster, 60.0, 40 << 30)
    assert run_of(cluster, 60.0, 80 << 30) == pytest.approx(60.0, rel=0.25)


def test_without_a_size_the_mean_is_expected() -> None:
    cluster = VirtualCluster([unit("n1")])
    run_of(cluster, 60.0, 0)
    assert run_of(cluster, 60.0, 90 << 30) == pytest.approx(60.0, rel=0.02), "none was known before"
    assert run_of(cluster, 60.0, 0) == pytest.approx(60.0, rel=0.02)


SIZES = st.integers(0, 2**63 - 1)


@given(st.lists(st.tuples(st.floats(0.0, 1e7), SIZES), min_size=1, max_size=20), SIZES)
def test_estimates_are_finite_and_a_larger_input_never_takes_less(
    runs: list[tuple[float, int]], size: int
) -> None:
    times = RunTimeTable(limit=1)
    for duration_s, input_bytes in runs:
        times.put(times.learned(("a", "u", 0), [duration_s], input_bytes))
    (known,) = times.rows.values()
    durations_s = [max(0.001, duration_s) for duration_s, _ in runs]
    assert min(durations_s) * 0.999 <= known.mean_s <= max(durations_s) * 1.001
    assert 0 < known.expected_s(size) < math.inf
    if size and known.input_bytes:
        assert known.expected_s(max(1, size // 2)) <= known.expected_s(size) * 1.001


def test_streams_teach_nothing() -> None:
    cluster = VirtualCluster([unit("n1")])
    app = cluster.submit(1, name="nightly", workload_class=WorkloadClass.STREAM)
    cluster.advance(30)
    cluster.finish(app)
    assert expected_s(cluster, "nightly") == 0.0


def row(name: str) -> RunTime:
    return RunTime(name=name, user="ada", resource_profile_id=0, mean_s=1.0, containers=1)


def test_rows_are_bounded_and_the_unused_go_first() -> None:
    times = RunTimeTable(limit=2)
    assert times.put(row("a")) == []
    assert times.put(row("b")) == []
    assert times.find(("a", "ada", 0)) == row("a")
    assert times.put(row("c")) == [("b", "ada", 0)]
    assert times.find(("b", "ada", 0)) is None
    cluster = VirtualCluster([unit("n1")], bounds=Bounds(run_times_kept=1))
    for name in ("x", "y"):
        app = cluster.submit(1, name=name)
        cluster.settle()
        cluster.finish(app)
        cluster.settle()
    assert [key[0] for key in cluster.durable_run_times] == ["y"]


def test_the_past_fades() -> None:
    times = RunTimeTable(limit=1)
    for run_s in [10.0] * 50 + [20.0] * 20:
        times.put(times.learned(("a", "u", 0), [run_s] * 10))
    (changed,) = times.rows.values()
    assert changed.containers == 700
    assert changed.mean_s > 19.0
    times.put(times.learned(("a", "u", 0), [2000.0] * 10))
    assert times.rows["a", "u", 0].mean_s < 41.0, "one run that is 100 times as long"
