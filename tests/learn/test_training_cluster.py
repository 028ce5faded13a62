"""The simulated cluster of training jobs: conservation, ends, queues, failures, vectors."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hrm.core.elasticity.accuracy_trend import ChangeTrend
from hrm.core.elasticity.beta_rule import BetaRule, ElasticityPolicy, Resize
from hrm.core.elasticity.elastic_job import ElasticityView
from hrm.core.elasticity.elasticity_core import ElasticityCore, ElasticitySettings
from hrm.core.vocabulary.model import ApplicationId
from hrm.learn.elasticity_oracle import ElasticityOracle
from hrm.learn.experiment_queue import POINTS
from hrm.learn.training_cluster import TrainingCluster, run_policy
from hrm.learn.training_curves import (
    TrainingCurve,
    TrainingState,
    correlated_noise,
    drawn_curve,
    fitted_curve,
)
from hrm.learn.training_jobs import ClusterRules, TrainingJob, TrainingRun
from hrm.learn.training_workloads import COMBINATIONS, drawn_jobs, twelve_jobs
from hrm.policies.elasticity.fixed import ConstantWorkers, KeepWorkers, RandomResize


def line(epochs: int = 10, seconds: float = 10.0) -> TrainingCurve:
    """Rises evenly, without noise; an epoch takes ``seconds`` over the workers."""
    return TrainingCurve(
        gained=lambda e: e / epochs, floor=0.0, top=1.0, penalty=0.0, serial_s=0.0,
        parallel_s=seconds, sync_s=0.0, dilution=0.0, noise=np.zeros(epochs), epochs_max=epochs,
    )  # fmt: skip


def a_job(name: str, priority: int = 1, **changes: object) -> TrainingJob:
    fields: dict[str, object] = {
        "job_id": ApplicationId(name), "curve": line(), "priority": priority,
        "points": POINTS[priority], **changes,
    }  # fmt: skip
    return TrainingJob(**fields)  # type: ignore[arg-type]


def cluster(
    jobs: list[TrainingJob], seed: int = 0, *, warm: int = 8, **rules: object
) -> TrainingCluster:
    made = ClusterRules(**{"workers": 4, **rules})  # type: ignore[arg-type]
    return TrainingCluster(jobs, made, ElasticityCore(ElasticitySettings(warm_reports=warm)), seed)


def checked(held: TrainingCluster, policy: ElasticityPolicy) -> TrainingRun:
    """A run in which after each step no worker is made or lost."""
    while (view := held.advance()) is not None:
        assert view.free == held.free >= 0
        assert view.total == held.rules.workers - held.broken
        held.decide(policy.propose(view))
        for job in held.running.values():
            assert job.job.workers_min <= job.workers <= job.job.workers_max
    return held.result()


def test_epochs_take_what_their_workers_make_of_them() -> None:
    run = run_policy(cluster([a_job("a"), a_job("b", arrives=5.0)]), KeepWorkers())
    ends = [outcome.completed for outcome in run.outcomes]
    assert ends == pytest.approx([25.0, 50.0])
    assert [x.node_s for x in run.outcomes] == pytest.approx([100.0, 100.0])
    assert run.accuracy == pytest.approx(1.0)
    assert run.points_at([24.0, 25.0, 60.0]) == [0.0, 10.0, 20.0]
    assert run.mean_points(100.0) == pytest.approx(10 * 0.75 + 10 * 0.5)


def test_a_resize_keeps_the_work_of_its_epoch_and_costs_a_standstill() -> None:
    class GiveAtOnce:
        name = "give-at-once"

        def propose(self, view: ElasticityView) -> Resize | None:
            job = view.jobs[0]
            return Resize(0, -1) if job.epoch == 5 and job.may_shrink else None

    held = cluster([a_job("a", workers_max=2)], warm=1, resize_s=(30.0, 30.0))
    run = run_policy(held, GiveAtOnce())
    assert run.outcomes[0].completed == pytest.approx(5 * 5.0 + 30.0 + 5 * 10.0)
    assert run.outcomes[0].resizes == 1


VECTOR = [
    ("start", "A"), ("start", "B"), ("interrupt", "B"), ("start", "E"), ("interrupt", "A"),
    ("start", "F"), ("done", "E"), ("start", "G"), ("done", "F"), ("resume", "B"), ("done", "G"),
    ("resume", "A"), ("done", "B"), ("start", "D"), ("done", "A"), ("start", "C"), ("done", "D"),
    ("done", "C"),
]  # fmt: skip


def test_the_queue_follows_the_specification() -> None:
    """Two slots; submitted A1 B2 C3 D4 E5 F5 G5, finished E F G B A D C. Lengths make that order
    of ends: an interrupted job goes on from its checkpoint."""
    lengths = {"A": 60, "B": 30, "C": 400, "D": 200, "E": 10, "F": 14, "G": 18}
    jobs = [
        a_job(name, priority, arrives=0.5 * n, curve=line(lengths[name]), workers_max=1)
        for n, (name, priority) in enumerate(zip("ABCDEFG", (1, 2, 3, 4, 5, 5, 5), strict=True))
    ]
    held = cluster(jobs, workers=2, by_priority=True)
    run = run_policy(held, KeepWorkers())
    done = {x.job.job_id: x.completed for x in run.outcomes}
    begun: set[str] = set()
    events = []
    for time, name, workers in held.log:
        if workers:
            events.append(("resume" if name in begun else "start", str(name)))
            begun.add(name)
        else:
            events.append(("done" if done[name] == time else "interrupt", str(name)))
    assert events == VECTOR


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10_000), policy=st.sampled_from(["beta", "random", "constant", "oracle"])
)
def test_no_worker_is_made_or_lost_whatever_fails(seed: int, policy: str) -> None:
    jobs, workers = drawn_jobs(seed, count=8)
    held = cluster(
        jobs, seed, workers=workers, failures_per_hour=6.0, resize_s=(5.0, 60.0),
        by_priority=True, stops_flat=bool(seed % 2),
    )  # fmt: skip
    made: dict[str, ElasticityPolicy] = {
        "beta": BetaRule(), "random": RandomResize(np.random.default_rng(seed)),
        "constant": ConstantWorkers(2), "oracle": ElasticityOracle(held),
    }  # fmt: skip
    run = checked(held, made[policy])
    assert len(run.outcomes) == 8
    assert all(math.isfinite(value) for value in run.figures().values())
    assert all(x.started <= x.almost <= x.delivered <= x.completed for x in run.outcomes)


FIGURE_10 = {
    (1, True): (0, 60, 60, 90, 110, 150, 170), (1, False): (0, 0, 0, 50, 50, 80, 150),
    (2, True): (0, 40, 70, 140, 140, 200, 210), (2, False): (0, 0, 0, 60, 60, 90, 160),
    (3, True): (0, 80, 160, 200, 240, 270, 300), (3, False): (0, 0, 0, 70, 70, 120, 220),
    (4, True): (0, 160, 200, 240, 320, 350, 400), (4, False): (0, 0, 0, 90, 90, 120, 260),
}  # fmt: skip


@pytest.mark.parametrize(("mix", "by_priority"), FIGURE_10)
def test_points_without_elasticity_are_those_of_the_specification(
    mix: int, by_priority: bool
) -> None:
    """Three slots, all queued at 0; a big job takes 3,480 s, a medium one 1,740, a small 1,160."""
    seconds = [3_480.0] * 4 + [1_740.0] * 4 + [1_160.0] * 4
    jobs = [
        a_job(f"task-{n + 1}", priority, curve=line(1, seconds[n]), workers_max=1)
        for n, priority in enumerate(COMBINATIONS[mix])
    ]
    held = cluster(jobs, workers=3, slots=(1, 1, 1), by_priority=by_priority)
    run = run_policy(held, KeepWorkers())
    times = [1_000.0 * n for n in range(1, 8)]
    assert tuple(run.points_at(times)) == FIGURE_10[mix, by_priority]


@pytest.mark.parametrize("by_priority", [True, False])
@pytest.mark.parametrize("slots", [(), (3, 3, 4), (10,)])
def test_every_mix_ends_with_every_queue(by_priority: bool, slots: tuple[int, ...]) -> None:
    for priorities in COMBINATIONS.values():
        jobs = twelve_jobs(0, priorities=priorities, beta=0.001)
        held = cluster(jobs, workers=10, slots=slots, by_priority=by_priority, running_max=3)
        run = run_policy(held, BetaRule())
        interrupted = sum(x.interruptions for x in run.outcomes)
        assert interrupted == 0 or (by_priority and 5 in priorities)


def test_a_run_is_repeated_to_the_bit() -> None:
    logs = []
    for _ in range(2):
        jobs, workers = drawn_jobs(7, count=8)
        held = cluster(jobs, 7, workers=workers, failures_per_hour=4.0, resize_s=(5.0, 60.0))
        run_policy(held, BetaRule())
        logs.append(held.log)
    assert logs[0] == logs[1]
    assert len(logs[0]) > 30


def test_a_failed_worker_takes_the_epoch_with_it() -> None:
    calm, stormy = (
        run_policy(
            cluster([a_job("a", curve=line(200))], failures_per_hour=rate, repair_s=60.0),
            KeepWorkers(),
        )
        for rate in (0.0, 30.0)
    )
    assert stormy.outcomes[0].completed > calm.outcomes[0].completed


def test_jobs_end_where_they_are_flat_only_if_that_is_the_rule() -> None:
    jobs = twelve_jobs(0, beta=0.001)
    by_rule = {}
    for stops in (True, False):
        core = ElasticityCore(ElasticitySettings(flat_at_minimum=False), ChangeTrend)
        rules = ClusterRules(workers=10, running_max=3, stops_flat=stops)
        by_rule[stops] = run_policy(TrainingCluster(jobs, rules, core), BetaRule())
    assert by_rule[True].total_s < 0.6 * by_rule[False].total_s
    assert by_rule[True].accuracy < by_rule[False].accuracy


def test_more_workers_are_faster_and_less_accurate() -> None:
    """Figure 9 of the source: two to four workers are balanced."""
    found = {}
    for workers in (1, 2, 4, 8):
        state = TrainingState(fitted_curve(np.random.default_rng(5), 1))
        seconds = [state.curve.seconds(workers) for _ in range(110)]
        for _ in range(110):
            state.run_epoch(workers)
        found[workers] = (sum(seconds), state.accuracy)
    times, accuracies = zip(*found.values(), strict=True)
    assert list(times) == sorted(times, reverse=True)
    assert list(accuracies) == sorted(accuracies, reverse=True)
    gains = [times[0] / times[1], times[1] / times[2], times[2] / times[3]]
    assert gains == sorted(gains, reverse=True)


def test_noise_is_as_it_is_said_to_be() -> None:
    noise = correlated_noise(np.random.default_rng(1), 20_000, 0.0011)
    assert noise.std() == pytest.approx(0.0011 / math.sqrt(0.75), rel=0.05)
    assert np.corrcoef(noise[1:], noise[:-1])[0, 1] == pytest.approx(0.5, abs=0.03)


def test_drawn_curves_rise_and_half_of_their_drops_are_announced() -> None:
    rng = np.random.default_rng(2)
    curves = [drawn_curve(rng) for _ in range(200)]
    for curve in curves:
        values = [curve.gained(float(e)) for e in range(1, curve.epochs_max + 1)]
        assert values == sorted(values)
        assert values[-1] == pytest.approx(1.0)
        assert all(curve.seconds(w) > 0.0 for w in (1, 4, 16))
    with_drops = [curve for curve in curves if curve.drops]
    assert 80 < len(with_drops) < 160
    assert 0.3 < sum(curve.announced for curve in with_drops) / len(with_drops) < 0.7


def test_a_curve_says_when_it_reaches_a_share_of_its_end() -> None:
    assert line(10).reaches(0.75) == 8.0
    assert line(10).reaches(1.0) == 10.0


def test_the_combinations_are_worth_what_the_specification_says() -> None:
    worth = {n: sum(POINTS[p] for p in sequence) for n, sequence in COMBINATIONS.items()}
    assert worth == {1: 210, 2: 250, 3: 350, 4: 430}


def test_jobs_of_a_seed_are_alike_whatever_else_differs() -> None:
    one, other = twelve_jobs(3), twelve_jobs(3, priorities=COMBINATIONS[4], beta=0.001)
    for ours, theirs in zip(one, other, strict=True):
        assert ours.curve.seconds(2) == theirs.curve.seconds(2)
        assert (ours.curve.noise == theirs.curve.noise).all()
