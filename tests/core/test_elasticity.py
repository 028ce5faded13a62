"""The elasticity core: reports in, targets out, and no policy that breaks a limit."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hrm.core.elasticity.accuracy_trend import ChangeTrend, SlopeTrend
from hrm.core.elasticity.beta_rule import BetaRule, Resize
from hrm.core.elasticity.elasticity_core import ElasticityCore, ElasticitySettings
from hrm.core.elasticity.elasticity_messages import (
    ElasticCapacityChanged,
    ElasticityCommand,
    LearningRateDropped,
    RefuseReport,
    ReportProblem,
    SetWorkers,
    TrainingEnded,
    TrainingFlattened,
    TrainingReported,
    TrainingStarted,
    TrainingWorkersChanged,
)
from hrm.core.vocabulary.model import ApplicationId
from hrm.errors import InvalidRequest

A, B = ApplicationId("a"), ApplicationId("b")


def started(job: ApplicationId = A, **changes: object) -> TrainingStarted:
    fields: dict[str, object] = {
        "now": 0.0, "job_id": job, "workers": 3, "workers_min": 1, "workers_max": 4,
        "epochs_max": 500, "beta": 0.0003, **changes,
    }  # fmt: skip
    return TrainingStarted(**fields)  # type: ignore[arg-type]


def report(job: ApplicationId = A, epoch: int = 1, **changes: object) -> TrainingReported:
    fields: dict[str, object] = {
        "now": 10.0 * epoch, "sender": job, "job_id": job, "epoch": epoch, "loss": 1.0 / epoch,
        "accuracy": 0.5, "seconds": 10.0, **changes,
    }  # fmt: skip
    return TrainingReported(**fields)  # type: ignore[arg-type]


def told(core: ElasticityCore, event: TrainingReported) -> list[ElasticityCommand]:
    """The commands after a report, with the beta rule as the policy."""
    commands = core.reported(event)
    while (view := core.question()) is not None:
        commands += core.decide(BetaRule().propose(view))
    return commands


def targets(commands: list[ElasticityCommand]) -> list[tuple[str, int]]:
    return [(x.job_id, x.workers) for x in commands if isinstance(x, SetWorkers)]


def test_a_job_that_no_longer_learns_gives_its_workers_to_one_that_does() -> None:
    core = ElasticityCore()
    core.started(started(A, workers=4))
    core.started(started(B, workers=2))
    moved: list[tuple[str, int]] = []
    for epoch in range(1, 13):
        moved += targets(told(core, report(B, epoch, accuracy=0.04 * epoch)))
        moved += targets(told(core, report(A, epoch, accuracy=0.8)))
    assert moved == [(A, 3), (B, 3), (A, 2), (B, 4), (A, 1)]
    assert core.free == 1


def test_nothing_is_resized_before_it_is_warm() -> None:
    core = ElasticityCore(ElasticitySettings(warm_reports=8))
    core.started(started())
    quiet = [told(core, report(epoch=epoch)) for epoch in range(1, 8)]
    assert not any(quiet)
    assert targets(told(core, report(epoch=8))) == [(A, 2)]


def test_a_flat_job_keeps_its_minimum_and_grows_again_when_it_learns_again() -> None:
    core = ElasticityCore()
    core.started(started(workers=2))
    commands = [x for epoch in range(1, 14) for x in told(core, report(epoch=epoch))]
    assert targets(commands) == [(A, 1)]
    assert TrainingFlattened(job_id=A) in commands
    core.capacity_changed(ElasticCapacityChanged(now=135.0, free=1, waiting=0))
    assert core.question() is None or BetaRule().propose(core.view(135.0, None)) is None
    assert targets(told(core, report(epoch=14, accuracy=0.56))) == [(A, 2)]


def test_a_learning_rate_that_is_announced_makes_the_job_warm_up_again() -> None:
    core = ElasticityCore()
    core.started(started())
    for epoch in range(1, 8):
        told(core, report(epoch=epoch))
    core.learning_rate_dropped(LearningRateDropped(now=70.0, job_id=A))
    quiet = [told(core, report(epoch=epoch)) for epoch in range(8, 15)]
    assert not any(quiet)
    assert targets(told(core, report(epoch=15))) == [(A, 2)]


REFUSED = [
    ({"loss": math.nan}, ReportProblem.NOT_FINITE),
    ({"accuracy": math.inf}, ReportProblem.NOT_FINITE),
    ({"seconds": -math.inf}, ReportProblem.NOT_FINITE),
    ({"accuracy": 93.0}, ReportProblem.OUT_OF_RANGE),
    ({"seconds": 0.0}, ReportProblem.OUT_OF_RANGE),
    ({"epoch": 501}, ReportProblem.OUT_OF_RANGE),
    ({"epoch": 5, "now": 60.0}, ReportProblem.REPEATED),
    ({"epoch": 3, "now": 60.0}, ReportProblem.OUT_OF_ORDER),
    ({"sender": B}, ReportProblem.FOREIGN),
    ({"now": 1.0}, ReportProblem.CLOCK),
    ({"job_id": B, "sender": B}, ReportProblem.UNKNOWN_JOB),
]


@pytest.mark.parametrize(("changes", "problem"), REFUSED)
def test_a_report_that_cannot_be_right_is_refused_and_changes_nothing(
    changes: dict[str, object], problem: ReportProblem
) -> None:
    core = ElasticityCore()
    core.started(started())
    for epoch in range(1, 6):
        told(core, report(epoch=epoch))
    before = core.view(60.0, None)
    history = list(before.jobs[0].history)
    (refusal,) = told(core, report(**{"epoch": 6, **changes}))  # type: ignore[arg-type]
    assert isinstance(refusal, RefuseReport)
    assert refusal.problem is problem
    assert refusal.detail
    assert core.view(60.0, None) == before
    assert core.jobs[A].history == history


def test_missing_reports_are_a_gap_and_no_sudden_gain() -> None:
    for trend in (SlopeTrend(), ChangeTrend(level_weight=1.0, change_weight=1.0)):
        for epoch in (1, 2, 3, 9, 10, 20):
            trend.add(epoch, 0.01 * epoch)
        assert trend.change == pytest.approx(0.01)


def test_the_slope_is_steadier_than_a_single_change_by_what_theory_says() -> None:
    import random

    rng, slopes = random.Random(1), []
    for _ in range(400):
        trend = SlopeTrend(16)
        for epoch in range(1, 17):
            trend.add(epoch, rng.gauss(0.5, 0.0009))
        slopes.append(trend.change)
    deviation = math.sqrt(sum(x * x for x in slopes) / len(slopes))
    assert deviation == pytest.approx(0.0009 * math.sqrt(12 / (16**3 - 16)), rel=0.15)


def test_a_job_that_has_fallen_silent_is_left_alone() -> None:
    core = ElasticityCore(ElasticitySettings(silence_s=100.0, silence_epochs=3.0))
    core.started(started())
    for epoch in range(1, 10):
        told(core, report(epoch=epoch, accuracy=0.04 * epoch))
    assert core.view(189.0, None).jobs[0].may_shrink
    assert not core.view(191.0, None).jobs[0].may_shrink


def test_one_that_never_reports_is_never_resized() -> None:
    core = ElasticityCore()
    core.started(started(A))
    core.started(started(B))
    for epoch in range(1, 40):
        told(core, report(A, epoch))
    assert core.jobs[B].workers == 3


def test_resizes_of_the_cluster_are_bounded_in_any_minute() -> None:
    core = ElasticityCore(ElasticitySettings(resizes_per_minute=2))
    names = [ApplicationId(f"job-{n}") for n in range(6)]
    for name in names:
        core.started(started(name))
    at = []
    for epoch in range(1, 50):
        for name in names:
            at += [10.0 * epoch] * len(targets(told(core, report(name, epoch))))
    assert len(at) == 12
    assert all(sum(x - 60.0 < y <= x for y in at) <= 2 for x in at)


def test_limits_that_contradict_each_other_are_refused() -> None:
    core = ElasticityCore()
    for wrong in ({"workers_min": 0}, {"workers": 5}, {"workers_max": 2}, {"beta": 0.0},
                  {"beta": math.nan}, {"epochs_max": 0}):  # fmt: skip
        with pytest.raises(InvalidRequest, match="give"):
            core.started(started(**wrong))


@st.composite
def policies(draw: st.DrawFn) -> list[tuple[int, int]]:
    return draw(st.lists(st.tuples(st.integers(-2, 6), st.integers(-2, 2)), max_size=80))


@given(
    proposals=policies(),
    reports=st.lists(st.tuples(st.integers(0, 4), st.floats(0.0, 1.0)), min_size=30, max_size=80),
    free=st.integers(0, 5),
)
def test_no_policy_breaks_a_limit_or_makes_workers(
    proposals: list[tuple[int, int]], reports: list[tuple[int, float]], free: int
) -> None:
    core = ElasticityCore(ElasticitySettings(warm_reports=2, resizes_per_minute=4))
    for number in range(5):
        core.started(started(ApplicationId(f"job-{number}"), workers=2))
    core.capacity_changed(ElasticCapacityChanged(now=0.0, free=free, waiting=0))
    total, epochs, at = 10 + free, [0] * 5, []
    for step, (number, accuracy) in enumerate(reports):
        epochs[number] += 1
        name, now = ApplicationId(f"job-{number}"), 5.0 * step
        core.reported(report(name, epochs[number], now=now, accuracy=accuracy))
        changed = []
        while core.question() is not None:
            wanted = Resize(*proposals.pop()) if proposals else None
            for command in core.decide(wanted):
                assert isinstance(command, SetWorkers)
                assert 1 <= command.workers <= 4
                changed.append(command.job_id)
                at.append(now)
        assert len(changed) == len(set(changed)), "twice in one cycle"
        held = sum(job.workers for job in core.jobs.values())
        assert held + core.free == total
        assert core.free >= 0
        assert all(1 <= job.workers <= 4 for job in core.jobs.values())
    assert all(sum(x - 60.0 < y <= x for y in at) <= 4 for x in at)


def test_a_worker_that_fails_and_a_job_that_ends_are_taken_in() -> None:
    core = ElasticityCore()
    core.started(started())
    core.workers_changed(TrainingWorkersChanged(now=1.0, job_id=A, workers=2))
    core.workers_changed(TrainingWorkersChanged(now=1.0, job_id=B, workers=2))
    assert core.jobs[A].workers == 2
    core.ended(TrainingEnded(now=2.0, job_id=A))
    core.ended(TrainingEnded(now=2.0, job_id=A))
    assert not core.jobs
    assert core.question() is None
