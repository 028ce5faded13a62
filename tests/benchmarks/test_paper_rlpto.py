"""RLPTO's tables by the beta rule alone, and the methods around it."""

from __future__ import annotations

import csv
import gzip
import json
import statistics
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("gymnasium")

from benchmarks.paper import rlpto
from benchmarks.paper.rlpto_curves import drawing_measured, load_measured
from benchmarks.paper.rlpto_measured import (
    Entry,
    World,
    bootstrap,
    cluster_of,
    compare,
    gain,
    oracle_entry,
)
from benchmarks.paper.rlpto_methods import (
    BETAS,
    REPORTED,
    SETUPS,
    SIMULATED,
    Method,
    baselines,
    beta_method,
    run_twelve,
)
from benchmarks.paper.rlpto_source import by_workers, checked, combined, first_of
from hrm.core.elasticity.beta_rule import BetaRule
from hrm.learn.training_curves import drawn_curve
from hrm.learn.training_jobs import TrainingRun

SEEDS = range(12)
DATA = Path(__file__).parents[2].parent / "shared" / "data" / "pollux"


@cache
def methods(table: str) -> dict[str, Method]:
    found = [*baselines(SETUPS[table]), *map(beta_method, BETAS)]
    return {method.name: method for method in found}


@cache
def runs(table: str, name: str, seeds: int = len(SEEDS)) -> list[TrainingRun]:
    return [run_twelve(methods(table)[name], SETUPS[table], seed) for seed in range(seeds)]


def mean_of(table: str, name: str, seeds: int = len(SEEDS)) -> tuple[float, float]:
    """Accuracy, %, and total time, s."""
    held = runs(table, name, seeds)
    return (
        100.0 * statistics.fmean(run.accuracy for run in held),
        statistics.fmean(run.total_s for run in held),
    )


@pytest.mark.parametrize("name", SIMULATED)
def test_the_simulator_is_the_one_of_the_specification(name: str) -> None:
    """Within its own spread over seeds of what the fit gave where it was made."""
    accuracy, total_s = mean_of("II", name)
    wanted, spread, wanted_s, spread_s = SIMULATED[name]
    assert accuracy == pytest.approx(wanted, abs=spread)
    assert total_s == pytest.approx(wanted_s, abs=spread_s)


@pytest.mark.parametrize("table", SETUPS)
def test_accuracy_and_time_fall_as_beta_grows(table: str) -> None:
    found = [mean_of(table, f"beta-{beta:g}") for beta in BETAS]
    assert [x for x, _ in found] == sorted((x for x, _ in found), reverse=True)
    assert [x for _, x in found] == sorted((x for _, x in found), reverse=True)


def test_the_baselines_are_ordered_as_published() -> None:
    accuracy, total_s = (
        {name: mean_of("II", name, 2)[part] for name in ("fs", "fcfs", "slaq", "dolphin", "tradl")}
        for part in (0, 1)
    )
    assert min(accuracy, key=accuracy.__getitem__) == "fcfs"
    assert max(accuracy, key=accuracy.__getitem__) == "slaq"
    assert max(total_s, key=total_s.__getitem__) == "fcfs"
    assert min(total_s, key=total_s.__getitem__) == "tradl"


def test_jobs_of_fixed_slots_are_never_resized() -> None:
    for name in ("fs", "fcfs"):
        assert all(x.resizes == 0 for run in runs("II", name, 2) for x in run.outcomes)


def test_the_claims_of_the_source_hold_of_its_tables_as_the_specification_found() -> None:
    """TRADL is the fastest of the baselines alone: RLPTO is faster at large betas."""
    assert all(checked(REPORTED["II"]).values())
    assert all(checked(REPORTED["III"]).values())
    worse = {**REPORTED["II"], "fs": (88.3, 4_000.0)}
    assert sum(checked(worse).values()) < len(checked(worse)) - 2


@pytest.mark.timeout(900)
def test_mixes_are_told_apart_by_method_and_queue() -> None:
    rows = combined([], range(1))
    assert {row["queue"] for row in rows} == {"own", "one"}
    fcfs = {
        row["queue"]: row for row in rows if row["method"] == "fcfs" and row["combination"] == 3
    }
    assert fcfs["one"]["mean_points"]["mean"] > fcfs["own"]["mean_points"]["mean"]
    assert not first_of(rows, ["constant-1"], 1, "one")
    assert all(row["points"] == sorted(row["points"]) for row in rows)


def test_figure_9_falls_in_both() -> None:
    rows = by_workers(range(3))
    assert [row["accuracy"] for row in rows] == sorted((r["accuracy"] for r in rows), reverse=True)
    assert rows[0]["time_s"] > 1.5 * rows[2]["time_s"] > 1.5 * rows[-1]["time_s"] * 0.8


def test_an_interval_covers_the_mean_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    covered = 0
    for draw in range(60):
        found = bootstrap(rng.normal(0.3, 1.0, (1, 40)), seed=draw)
        covered += found["low"] <= 0.3 <= found["high"]
    assert 50 <= covered <= 60


def test_a_gain_is_paired_by_seed() -> None:
    rows = {"a": [{"delivery_s": x} for x in (100.0, 900.0, 500.0)],
            "b": [{"delivery_s": 0.9 * x} for x in (100.0, 900.0, 500.0)]}  # fmt: skip
    found = gain({"0.5": rows}, ["b"], "a")
    assert found["mean"] == pytest.approx(0.1)
    assert found["low"] > 0.0


def test_the_oracle_is_above_the_rule() -> None:
    entries = [Entry(name="beta", policy=lambda c: BetaRule()), oracle_entry()]
    found = compare(entries, drawn_curve, 9)
    assert gain(found, ["oracle"], "beta")["low"] > 0.0


def _write(path: Path, header: list[str], rows: list[list[Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt", newline="") as file:
        csv.writer(file).writerows([header, *rows])


@pytest.fixture
def prepared(tmp_path: Path) -> Path:
    """Small data of the same form; an epoch with w workers takes 0.2 + 0.8 / w of one."""
    metrics = {"cifar10": 1.0, "imagenet": 1.0, "deepspeech2": -100.0, "yolov3": -26.0}
    for name, factor in metrics.items():
        rise = [0.1 + 0.8 * (1.0 - 1.0 / (1.0 + e)) for e in range(60)]
        told = [x if factor > 0 else -factor * (1.0 - x) for x in rise]
        rows: list[list[Any]] = [[1.0, n, x, 0.0, 0.0] for n, x in enumerate(told)]
        header = ["progress", "iteration", "metric", "grad_sqr", "grad_var"]
        _write(tmp_path / name / "validation-64.csv.gz", header, rows)
        steps = [
            [placement, 32, (0.2 + 0.8 / w) * w, 0.0]
            for placement, w in (("1", 1), ("2", 2), ("3", 3), ("4", 4), ("11", 2), ("111", 3),
                                 ("1111", 4))
        ]  # fmt: skip
        placements = ["placement", "local_bsz", "step_time", "sync_time"]
        _write(tmp_path / name / "placements.csv.gz", placements, steps)
    return tmp_path


def test_measured_runs_keep_their_shape_and_scaling(prepared: Path) -> None:
    applications = load_measured(prepared)
    assert [x.name for x in applications] == ["cifar10", "imagenet", "deepspeech2", "yolov3"]
    for one in applications:
        assert one.scalings[0] == pytest.approx([0.8, 0.2, 0.0], abs=1e-6)
        assert one.runs[0][0] == pytest.approx(0.1)
        assert one.runs[0][-1] == pytest.approx(0.1 + 0.8 * (1.0 - 1.0 / 60.0))
    draw = drawing_measured(applications)
    for seed in range(20):
        curve = draw(np.random.default_rng(seed))
        assert curve.seconds(4) / curve.seconds(1) == pytest.approx(0.4, abs=1e-6)
        assert curve.gained(1.0) == 0.0
        assert curve.gained(float(curve.epochs_max)) == pytest.approx(1.0, abs=0.02)
        assert 36 <= curve.epochs_max <= 72


def test_without_data_it_says_what_to_pass(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        load_measured(tmp_path)
    assert "validation-*.csv.gz" in str(caught.value.filename)


def test_jobs_of_a_seed_are_the_same_for_all(prepared: Path) -> None:
    draw = drawing_measured(load_measured(prepared))
    one, other = (cluster_of(draw, 5, 0.8, world=World(8), beta=beta) for beta in (0.0003, 0.003))
    for name, held in one.jobs.items():
        theirs = other.jobs[name].job
        assert (held.job.arrives, held.job.points) == (theirs.arrives, theirs.points)
        assert held.job.curve.seconds(2) == theirs.curve.seconds(2)


@pytest.mark.timeout(900)
def test_a_small_run_has_every_figure(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = rlpto.Size(
        seeds=1, mixes=1, tests=3, validations=1, few=1, worlds=1, trainings=1, decisions=256,
        nodes=(8,), ablated=256,
    )  # fmt: skip
    monkeypatch.setattr(rlpto, "QUICK", small)
    monkeypatch.setattr(rlpto, "ABLATIONS", {"clip": {"penalty": "clip"}})
    monkeypatch.setattr("hrm.learn.ppo.VALIDATION_EPISODES", range(900_000, 900_001))
    out = tmp_path / "out.json"
    words = ["--quick", "--json", str(out), "--data", str(prepared), "--cache-dir", str(tmp_path)]
    assert rlpto.main(words) == 0
    found = json.loads(out.read_text())
    assert 0 <= found["mixes_first"] <= 4
    low, high = found["gain_over_beta_ci95"]
    assert low <= found["gain_over_beta"] <= high
    assert np.isfinite(found["oracle_headroom"])
    assert found["gain_by_learning"]["seeds"] == 3.0


def test_ablations_are_a_part_of_their_own(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = rlpto.Size(few=1, trainings=1, decisions=256, ablated=256)
    monkeypatch.setattr(rlpto, "QUICK", small)
    monkeypatch.setattr(rlpto, "ABLATIONS", {"clip": {"penalty": "clip"}})
    monkeypatch.setattr("hrm.learn.ppo.VALIDATION_EPISODES", range(900_000, 900_001))
    out = tmp_path / "out.json"
    words = ["--quick", "--only", "ablations", "--json", str(out), "--data", str(prepared)]
    assert rlpto.main([*words, "--cache-dir", str(tmp_path)]) == 0
    assert set(json.loads(out.read_text())["ablations"]) == {"as it is", "clip"}


@pytest.mark.skipif(not DATA.is_dir(), reason=f"no Pollux data in {DATA}")
def test_the_real_curves_are_as_noisy_as_the_specification_says() -> None:
    by_name = {one.name: one for one in load_measured(DATA)}
    assert [len(one.runs) for one in by_name.values()] == [6, 7, 6, 7]
    for run in by_name["cifar10"].runs:
        changes = np.diff(run)
        assert 0.0008 <= changes[-30:].std() <= 0.0016
        assert 0.3 <= (changes < 0.0).mean() <= 0.5
    for one in by_name.values():
        assert (one.scalings >= 0.0).all()
        assert one.scalings.sum(axis=1)[0] == pytest.approx(1.0, abs=0.1)
