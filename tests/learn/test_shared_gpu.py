"""Schedules of jobs on one GPU, against what was computed by hand and against bounds."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.paper.dqngpu_search import (
    Ordered,
    area_bound,
    best_order,
    exhaustive,
    lower_bound,
    simulate,
)
from hrm.errors import InvalidConfig
from hrm.learn.gpu_workloads import draw_jobs
from hrm.learn.shared_gpu import SharedGpu, SimulatedGpuJob
from hrm.policies.shared_gpu.heuristics import (
    GpuSharingPolicy,
    PackedByLength,
    RandomLegal,
    TetrisPacking,
)
from hrm.policies.shared_gpu.imagined import (
    GpuJobKinds,
    ImaginedRun,
    ProfileFit,
    StartsFastestTogether,
    StartsShortest,
)
from hrm.policies.shared_gpu.interference import AdditiveOverload, NoInterference, PairFactors
from hrm.policies.shared_gpu.look_ahead import LookAhead
from hrm.policies.shared_gpu.profiles import MEMORY, CapacityRule, GpuUseProfile, constant
from hrm.policies.shared_gpu.registry import HEURISTICS
from tests.policies.shared_gpu.printed import ALL, WIDTH, P, Q, S, U

ALIGNED = CapacityRule(memory="aligned")


def printed(how: str = "true") -> list[SimulatedGpuJob]:
    """P, Q, S, U, all queued at 0, believed as they are, or constant at their maximum or mean."""
    believed = {
        "true": ALL,
        "max": {name: constant(one, "max") for name, one in ALL.items()},
        "mean": {name: constant(one, "mean", WIDTH) for name, one in ALL.items()},
    }[how]
    return [SimulatedGpuJob(name, 0, one, believed[name]) for name, one in ALL.items()]


@pytest.mark.parametrize(
    ("policy", "how", "starts", "makespan", "slowdown"),
    [
        ("sjf", "true", {"S": 0, "Q": 2, "U": 5, "P": 9}, 14, 1.929167),
        ("sjf-packed", "true", {"S": 0, "Q": 0, "P": 1, "U": 5}, 9, 1.3625),
        ("tetris", "true", {"P": 0, "S": 2, "U": 4, "Q": 8}, 11, 2.166667),
        ("tetris", "max", {"P": 0, "U": 5, "S": 5, "Q": 9}, 12, None),
        ("tetris", "mean", {"U": 0, "S": 0, "Q": 4, "P": 4}, 9, None),
    ],
)
def test_schedules_of_the_printed_jobs(
    policy: str, how: str, starts: dict[str, int], makespan: float, slowdown: float | None
) -> None:
    run = simulate(printed(how), HEURISTICS[policy](), NoInterference(), ALIGNED)
    assert {name: r.started for name, r in zip(ALL, run.records, strict=True)} == starts
    assert run.makespan == makespan
    if slowdown is not None:
        assert run.response.mean() == pytest.approx(slowdown, abs=1e-6)


def test_a_mean_overcommits_what_is_really_used() -> None:
    """Tetris on means starts P at 4 with Q: tick 6 needs five of four units of the GPU."""
    assert (P.uses[2] + Q.uses[2])[0] * WIDTH == 5
    jobs = printed("mean")
    assert simulate(jobs, TetrisPacking(), NoInterference(), ALIGNED).makespan == 9
    assert simulate(jobs, TetrisPacking(), AdditiveOverload(), ALIGNED).makespan > 9


def test_utilisation_of_the_printed_schedules() -> None:
    packed = simulate(printed(), PackedByLength(), NoInterference(), ALIGNED)
    assert packed.used == pytest.approx([0.7222, 0.4167, 0.6389, 0.4444], abs=1e-4)
    alone = simulate(printed(), HEURISTICS["sjf"](), NoInterference(), ALIGNED)
    assert alone.used == pytest.approx([0.4643, 0.2679, 0.4107, 0.2857], abs=1e-4)


def test_bounds_and_the_optimum_of_the_printed_jobs() -> None:
    assert area_bound(printed(), ALIGNED) == pytest.approx((6.5, 3.75, 5.75, 4.0))
    assert lower_bound(printed(), ALIGNED) == 6.5
    makespan, slowdown = exhaustive(printed(), NoInterference(), ALIGNED)
    assert makespan == 9.0
    assert slowdown == pytest.approx(1.3625)
    found = best_order(printed(), NoInterference(), ALIGNED, tries=60, seed=0)
    assert found.makespan == 9.0


def test_scores_of_tetris_at_the_first_tick() -> None:
    free = np.ones(4)
    scores = {name: float(free @ one.peak) * WIDTH * WIDTH for name, one in ALL.items()}
    assert scores == {"P": 40, "Q": 24, "S": 16, "U": 32}


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([*HEURISTICS, "random"]))
def test_no_run_is_shorter_than_its_bound_and_true_profiles_never_run_out_of_memory(
    seed: int, name: str
) -> None:
    """Whatever slows jobs down: pairs at random, overload, nothing."""
    jobs, world, known = draw_jobs(jobs=(4, 10))(seed)
    rng = np.random.default_rng(seed)
    policy: GpuSharingPolicy = RandomLegal(rng) if name == "random" else HEURISTICS[name]()
    run = simulate(jobs, policy, world, CapacityRule(), known)
    assert run.makespan >= lower_bound(jobs, CapacityRule()) - 1e-6
    assert run.failures == 0
    assert run.memory_peak <= 1.0 + 1e-9
    assert (run.slowdowns >= 1.0 - 1e-9).all()
    assert run.makespan <= run.work + len(jobs) + max(one.arrives for one in jobs)


@settings(max_examples=5, deadline=None)
@given(st.integers(0, 10_000))
def test_search_is_between_the_optimum_and_every_heuristic_in_an_order(seed: int) -> None:
    jobs = draw_jobs(jobs=(3, 3), worlds=("none",), arriving=0.0)(seed).jobs
    short = [
        SimulatedGpuJob(one.name, 0, made, made)
        for one in jobs
        for made in [GpuUseProfile(one.true.uses[:: max(1, len(one.true) // 3)][:3])]
    ]
    world, rule = NoInterference(), ALIGNED
    optimum, _ = exhaustive(short, world, rule)
    found = best_order(short, world, rule, tries=30, seed=seed).makespan
    packed = simulate(short, PackedByLength(), world, rule).makespan
    assert lower_bound(short, rule) - 1e-9 <= optimum <= found <= packed


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from(["pairs", "none"]))
def test_a_schedule_that_was_found_has_its_makespan_on_the_simulated_gpu(
    seed: int, name: str
) -> None:
    """The search goes by imagined runs."""
    jobs, world, _ = draw_jobs(jobs=(4, 12), worlds=(name,), arriving=0.0)(seed)
    assert isinstance(world, PairFactors | NoInterference)
    rule = CapacityRule()
    found = best_order(jobs, world, rule, tries=20, seed=seed)
    run = simulate(jobs, Ordered(found.order, strict=found.strict), world, rule)
    assert run.makespan == pytest.approx(found.makespan, abs=1e-6)
    begun = best_order(jobs, world, rule, tries=8, seed=seed, begin=[found.order])
    assert begun.makespan <= found.makespan + 1e-9


def test_the_search_stops_at_the_lower_bound() -> None:
    jobs = [SimulatedGpuJob("s", 0, U, U)] * 4
    found = best_order(jobs, NoInterference(), CapacityRule(), tries=1_000, seed=0)
    assert found.makespan == 16.0
    jobs = [SimulatedGpuJob(str(n), 0, each, each) for n, each in enumerate((S, U))]
    found = best_order(jobs, NoInterference(), CapacityRule((1.0, 1.0, 1.0, 1.0)), tries=99, seed=0)
    assert found.tries < 99 and found.makespan == lower_bound(jobs, CapacityRule())


def test_a_strict_order_leaves_capacity_idle_for_the_next() -> None:
    jobs = printed()
    order = [0, 1, 2, 3]
    strict = simulate(jobs, Ordered(order, strict=True), NoInterference(), ALIGNED)
    skipping = simulate(jobs, Ordered(order, strict=False), NoInterference(), ALIGNED)
    starts = [r.started for r in strict.records]
    assert starts == sorted(starts)
    assert [r.started for r in skipping.records] != starts


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("name", ["pairs", "none"])
def test_looking_ahead_in_a_world_as_it_is_imagined_is_never_worse_than_its_rules(
    seed: int, name: str
) -> None:
    jobs, world, _ = draw_jobs(jobs=(6, 9), worlds=(name,), arriving=0.0)(seed)
    known = world if isinstance(world, PairFactors) else None
    rule = CapacityRule()
    found = simulate(jobs, LookAhead(starts_max=10_000, steps_max=100_000), world, rule, known)
    for each in ("fastest-together", "sjf-packed"):
        followed = simulate(jobs, HEURISTICS[each](), world, rule, known)
        assert found.makespan <= followed.makespan + 1e-6


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from(["pairs", "none"]))
def test_an_imagined_run_is_the_simulated_one_where_beliefs_are_true(seed: int, name: str) -> None:
    jobs, world, _ = draw_jobs(jobs=(3, 20), worlds=(name,), arriving=0.0)(seed)
    known = world if isinstance(world, PairFactors) else None
    rule = CapacityRule()
    numbers = {(id(one.true), one.kind): one for one in jobs}
    fit = ProfileFit([one.true for one in numbers.values()], rule)
    kinds = GpuJobKinds(fit, [one.kind for one in numbers.values()], known)
    keys = list(numbers)
    places = [[n for n, one in enumerate(jobs) if (id(one.true), one.kind) == key] for key in keys]
    both = ((StartsFastestTogether, "fastest-together"), (StartsShortest, "sjf-packed"))
    for rule_of, policy in both:
        run = ImaginedRun(kinds, places)
        run.go_on(rule_of(kinds), starts=len(jobs), steps=10_000)
        real = simulate(jobs, HEURISTICS[policy](), world, rule, known)
        assert run.over
        assert run.last_end == pytest.approx(real.makespan, abs=1e-6)
        ends = [record.ended for record in real.records]
        assert run.ends == pytest.approx(sum(ends), abs=1e-5)


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from(["pairs", "none"]))
def test_of_a_few_jobs_looking_ahead_finds_the_optimum(seed: int, name: str) -> None:
    """Two jobs: to start one of them, then or later the other, is all that there is."""
    jobs, world, _ = draw_jobs(jobs=(2, 2), worlds=(name,), arriving=0.0)(seed)
    known = world if isinstance(world, PairFactors) else None
    short = [dataclasses.replace(one, true=made, believed=made)
             for one in jobs for made in [GpuUseProfile(one.true.uses[:5])]]  # fmt: skip
    found = simulate(short, LookAhead(), world, CapacityRule(), known)
    optimum, _ = exhaustive(short, world, CapacityRule())
    assert found.makespan == pytest.approx(optimum, abs=1e-6)


def two(believed: GpuUseProfile) -> list[SimulatedGpuJob]:
    grows = GpuUseProfile([(0.1, 0.1, 0.1, 0.1), (0.1, 0.1, 0.1, 0.1), (0.1, 0.7, 0.1, 0.1)])
    steady = GpuUseProfile([(0.1, 0.5, 0.1, 0.1)] * 4)
    return [
        SimulatedGpuJob("steady", 0, steady, steady),
        SimulatedGpuJob("grows", 0, grows, believed),
    ]


def test_the_job_that_allocates_last_fails_and_starts_again_from_nothing() -> None:
    believed = GpuUseProfile([(0.1, 0.1, 0.1, 0.1)] * 3)
    run = simulate(two(believed), HEURISTICS["fifo-packed"](), NoInterference(), ALIGNED)
    steady, grows = run.records
    # Tick 2 needs 0.5 and 0.7. The next attempt has that tick at 5, when the other has ended.
    assert (steady.failures, grows.failures) == (0, 1)
    assert run.failures == 1
    assert run.lost == 2.0
    assert grows.started == 3
    assert run.makespan == 6.0


def test_after_two_failures_a_job_runs_alone() -> None:
    believed = GpuUseProfile([(0.1, 0.1, 0.1, 0.1)] * 3)
    grows = two(believed)[1]
    steady = GpuUseProfile([(0.1, 0.5, 0.1, 0.1)] * 30)
    jobs = [SimulatedGpuJob("steady", 0, steady, steady), grows]
    run = simulate(jobs, HEURISTICS["fifo-packed"](), NoInterference(), ALIGNED)
    assert run.records[1].failures == 2
    assert run.records[1].started == 30
    assert run.makespan == 33.0


def test_factors_of_pairs_are_multiplied_and_no_job_is_slower_than_in_turns() -> None:
    factors = np.array([[0.9, 0.8], [0.6, 0.5]])
    world = PairFactors(factors)
    uses = np.zeros((3, 4))
    assert world.speeds([0], uses[:1]) == [1.0]
    assert world.speeds([0, 1], uses[:2]) == pytest.approx([0.8, 0.6])
    assert world.speeds([0, 1, 1], uses) == pytest.approx([0.64, 1 / 3, 1 / 3])
    assert PairFactors(factors, "min").speeds([0, 1, 1], uses) == pytest.approx([0.8, 0.5, 0.5])


def test_a_job_that_no_card_holds_is_refused() -> None:
    large = GpuUseProfile([(0.1, 1.5, 0.1, 0.1)])
    with pytest.raises(InvalidConfig, match="name a larger card"):
        SharedGpu([SimulatedGpuJob("large", 0, large, large)], NoInterference(), ALIGNED)
    with pytest.raises(InvalidConfig, match="at least one job"):
        SharedGpu([], NoInterference(), ALIGNED)


def test_policies_see_nothing_of_what_is_true() -> None:
    """Poison what only the simulation knows: every decision stays the same."""
    jobs = [SimulatedGpuJob(name, 0, one, one) for name, one in {"P": P, "S": S, "U": U}.items()]
    poisoned = SharedGpu(jobs, NoInterference(), ALIGNED)
    gpu = SharedGpu(jobs, NoInterference(), ALIGNED)
    gpu.start(1)
    poisoned.start(1)
    hidden = GpuUseProfile(S.uses)
    hidden.uses = np.full_like(S.uses, np.nan)
    for one in poisoned._running:
        one.true = hidden
    for make in HEURISTICS.values():
        assert make().choose(poisoned.view()) == make().choose(gpu.view())


def test_a_copy_goes_on_by_itself() -> None:
    gpu = SharedGpu(printed(), NoInterference(), ALIGNED)
    gpu.start(2)
    other = gpu.copy()
    while not other.over:
        while (place := PackedByLength().choose(other.view())) is not None:
            other.start(place)
        other.advance()
    assert gpu.tick == 0 and len(gpu.view().waiting) == 3
    assert gpu.records[0].started == -1
    assert other.result().makespan == 9.0


def test_memory_that_is_believed_too_small_is_believed_a_quarter_greater_next_time() -> None:
    believed = GpuUseProfile([(0.1, 0.1, 0.1, 0.1)] * 3)
    gpu = SharedGpu(two(believed), NoInterference(), ALIGNED)
    while not gpu.records[1].failures:
        while gpu.has_fitting:
            gpu.start(0)
        gpu.advance()
    assert gpu.view().waiting[0].profile.peak[MEMORY] == pytest.approx(0.125)
