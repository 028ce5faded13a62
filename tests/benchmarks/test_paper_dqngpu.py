"""The workloads of the DqnGPU paper, what is measured of a run, and where the data is missing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("gymnasium")

from benchmarks.fairness import measured
from benchmarks.fairness.measured import Pairs
from benchmarks.paper.dqngpu import (
    FIRST_SEED,
    VARIATIONS,
    Size,
    decision_times,
    main,
    measure,
    share_of,
    summarised,
    unslowed,
    vary,
)
from benchmarks.paper.dqngpu_methods import (
    REFERENCE,
    believing,
    classes_of,
    methods,
    trained_gradients,
    trained_models,
)
from benchmarks.paper.dqngpu_report import body_of
from benchmarks.paper.dqngpu_search import simulate
from benchmarks.paper.dqngpu_workloads import (
    APPLICATIONS,
    JOBS,
    POOLS,
    Kinds,
    job_set,
    kinds_of,
    noisy,
    rank_kinds,
)
from hrm.learn import dqngpu as trainer
from hrm.learn.dqngpu import DqnGpuArgs
from hrm.learn.dqngpu_pg import PolicyGradientArgs
from hrm.learn.shared_gpu import SimulatedGpuJob
from hrm.policies.shared_gpu.interference import NoInterference
from hrm.policies.shared_gpu.look_ahead import LookAhead
from hrm.policies.shared_gpu.profiles import GPU, MEMORY, CapacityRule, GpuUseProfile
from hrm.policies.shared_gpu.registry import HEURISTICS

DATA = Path(__file__).parents[2].parent / "shared" / "data" / "gavel"


def by_hand() -> Kinds:
    names = tuple(f"kind-{n}" for n in range(4))
    others = np.linspace(0.9, 0.5, 4)
    return Kinds(names, np.tile(others, (4, 1)))


def test_slowdowns_fall_into_the_classes_of_figure_8() -> None:
    over = np.array([0.0, 0.019, 0.02, 0.021, 0.0999, 0.10, 0.1999, 0.20])
    assert classes_of(1.0 + over) == [3, 2, 2, 1]


@pytest.mark.parametrize(
    ("pool", "resource", "heavy"),
    [("GPU_heavy", GPU, True), ("GPU_light", GPU, False), ("memory_heavy", MEMORY, True),
     ("memory_light", MEMORY, False)],
)  # fmt: skip
def test_a_pool_has_the_applications_that_its_rule_names(
    pool: str, resource: int, heavy: bool
) -> None:
    limit = 0.4 if resource == GPU else 0.5
    for name in POOLS[pool]:
        assert bool(APPLICATIONS[name].mean[resource] >= limit) is heavy, name
    assert len(POOLS["random"]) == 11


def test_profiles_have_the_printed_shapes() -> None:
    lammps, qmcpack = APPLICATIONS["lammps"], APPLICATIONS["qmcpack"]
    assert lammps.mean[GPU] == pytest.approx(0.4, abs=0.02)
    assert lammps.uses[[0, -1], MEMORY] * 12_288 == pytest.approx([363, 8_499])
    assert lammps.uses[-1, GPU] == 1.0
    assert len(set(qmcpack.uses[:, GPU])) == 3
    assert (qmcpack.uses[:9, MEMORY] < 0.05).all()
    assert qmcpack.uses[-1, MEMORY] * 12_288 == pytest.approx(5_135)
    three = CapacityRule(memory="aligned").used([(APPLICATIONS["gromacs"], 0)] * 3, 9)
    assert three[-1, MEMORY] * 12_288 == pytest.approx(11_755)
    heavy = [len(APPLICATIONS[name]) * 10 for name in POOLS["GPU_heavy"]]
    assert np.mean(heavy) == pytest.approx(4_807 / 30, rel=0.02)


def test_sets_of_jobs_follow_from_their_seed() -> None:
    one, again, other = (job_set("random", seed, by_hand()) for seed in (3, 3, 4))
    assert [job.name for job in one] == [job.name for job in again]
    assert [job.name for job in one] != [job.name for job in other]
    assert len(one) == JOBS and all(job.arrives == 0 for job in one)
    late = job_set("GPU_light", 3, None, load=0.7)
    assert late[0].arrives == 0
    assert 20 * 7.5 / 0.7 / 2 < late[-1].arrives < 20 * 7.5 / 0.7 * 3


def test_an_application_that_uses_more_gets_a_kind_that_slows_more_but_for_chance() -> None:
    profiles = list(APPLICATIONS.values())
    ranks = [rank_kinds(profiles, 24, np.random.default_rng(seed)) for seed in range(200)]
    assert len({tuple(each) for each in ranks}) > 100
    mean = np.mean(ranks, axis=0)
    assert np.corrcoef(mean, [one.mean[GPU] for one in profiles])[0, 1] > 0.9


def test_a_noisy_profile_is_off_by_little() -> None:
    rng = np.random.default_rng(1)
    for _ in range(50):
        made = noisy(APPLICATIONS["qmcpack"], rng)
        assert 15 <= len(made) <= 19
        assert made.peak[GPU] == pytest.approx(0.75, rel=0.11)


def test_constant_beliefs_leave_what_is_true_alone() -> None:
    jobs = job_set("random", 1, None)
    means = believing(jobs, "mean")
    assert all(len(set(one.believed.uses[:, GPU])) == 1 for one in means)
    assert [one.true for one in means] == [one.true for one in jobs]
    assert believing(jobs, "true") == jobs


def test_measured_kinds_are_in_the_order_of_what_they_do_to_others() -> None:
    pairs = Pairs(
        ("mild", "harsh"),
        np.array([[2.0, 4.0], [2.0, 4.0]]),
        np.array([[[1.8, 1.0], [3.6, 2.0]]] * 2),
    )
    kinds = kinds_of(pairs)
    assert kinds.names == ("mild", "harsh")
    assert kinds.factors == pytest.approx(np.array([[0.9, 0.5], [0.9, 0.5]]))


def test_the_tables_of_a_small_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(trainer, "VALIDATION_SETS", range(20_000, 20_001))
    monkeypatch.setattr(trainer, "KNOWN_SETS", range(21_000, 21_001))
    args = DqnGpuArgs(start_sets=1, start_steps=2, steps=0, validate_every=1)
    few = PolicyGradientArgs(start_sets=1, start_steps=2, iterations=1, sets=1, episodes=2)
    size = Size(
        sets=2, jobs=6, tries=8, trainings=(args,), gradients=(few,),
        workloads=("random",), varied=("random",),
    )  # fmt: skip
    models = trained_models(size.trainings, tmp_path)
    assert trained_models(size.trainings, tmp_path)[0].meta == models[0].meta
    compared = methods(models, trained_gradients(size.gradients, CapacityRule()))
    kinds = by_hand()
    found = measure(kinds, compared, size)
    for held in (found["pairs"]["random"], found["none"]["random"]):
        assert {each["seed"] for each in held["oracle"]} == {FIRST_SEED, FIRST_SEED + 1}
        for name, runs in held.items():
            assert len(runs) == 2
            for run, best in zip(runs, held["oracle"], strict=True):
                assert run["makespan_s"] >= best["makespan_s"], name
                assert best["makespan_s"] >= best["bound_s"] - 1e-6
    assert "dqngpu-ddqn, pairs" not in found["none"]["random"]
    headline = summarised(found["pairs"])
    assert headline["headroom"]["random"]["mean"] >= headline["makespan_gain"]["random"]["mean"]
    assert headline["ships"] == "look-ahead, pairs"
    for suffix in ("", "_learned", "_learned_pairs", "_guarded", "_guarded_pairs"):
        share = headline[f"share_of_headroom{suffix}"]["random"]
        if share is not None:
            low, high = headline[f"share_of_headroom_interval{suffix}"]["random"]
            assert low <= share <= high and share <= 1.0
    document = {
        **headline, "unslowed": {"random": unslowed(found["pairs"]["random"])},
        "decision_ms": decision_times(kinds, size),
        "sets": 2, "jobs": 6, "tries": 8, "trained": [{}],
        "trained_s": {m.name: m.trained_s for m in compared if m.training >= 0},
        "runs": found, "variations": vary(kinds, kinds, compared, size),
    }  # fmt: skip
    assert set(document["variations"]) == set(VARIATIONS)
    body = body_of(document)
    for name in (REFERENCE, "dqngpu-pg", "deeprm, mean", "Figure 10"):
        assert name in body


def test_a_share_is_a_ratio_of_sums_with_an_interval_over_sets() -> None:
    oracle = [0.10, 0.20, 0.00, 0.10]
    assert share_of(oracle, oracle) == pytest.approx((1.0, 1.0, 1.0))
    found = share_of([0.05, 0.20, 0.00, -0.05], oracle)
    assert found is not None
    share, low, high = found
    assert share == pytest.approx(0.5)
    assert low < 0.2 and 0.8 < high <= 1.0
    assert share_of([0.001] * 4, [0.004] * 4) is None


def test_a_least_gain_leaves_more_jobs_as_fast_as_alone() -> None:
    """And all of them, where nothing can join."""
    found: dict[str, list[int]] = {}
    kinds = by_hand()
    world = kinds.world()
    for seed in range(3):
        jobs = job_set("memory_light", seed, kinds, jobs=10)
        for least in (None, 0.7, 1.01):
            run = simulate(jobs, LookAhead(gain_min=least), world, CapacityRule(), world)
            found.setdefault(str(least), []).append(classes_of(run.slowdowns)[0])
    assert sum(found["None"]) <= sum(found["0.7"]) < sum(found["1.01"]) == 30


def test_without_data_nothing_is_made_up(tmp_path: Path) -> None:
    assert main(["--data", str(tmp_path)]) == 2


@pytest.mark.skipif(not DATA.is_dir(), reason="the measured pairs are not on this machine")
def test_all_measured_kinds_fit_with_each_other() -> None:
    for gpu in ("p100", "k80"):
        kinds = kinds_of(measured.load(DATA), gpu)
        assert len(kinds.names) == 24
        assert (kinds.factors > 0.2).all()


def test_each_attempt_that_is_over_is_reported() -> None:
    """Three that are believed to need little memory: together they run out of it."""
    true, believed = (GpuUseProfile(np.full((5, 4), use)) for use in (0.7, 0.1))
    jobs = [SimulatedGpuJob(f"job-{n}", 0, true, believed) for n in range(3)]
    ends = list[tuple[int, bool]]()

    def ended(job: int, now: float, ran: float, ok: bool) -> None:
        assert 0.0 <= ran <= now
        ends.append((job, ok))

    policy = HEURISTICS["sjf-packed"]()
    run = simulate(jobs, policy, NoInterference(), CapacityRule(), None, ended)
    assert sorted(job for job, ok in ends if ok) == [0, 1, 2]
    assert sum(not ok for _, ok in ends) == run.failures > 0
