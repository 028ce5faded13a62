"""The comparisons of the pipeline experiments, by hand; and one of its jobs end to end."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.paired_runs import Paired, holm, paired, ship, version_of
from benchmarks.paper.ldwp import QUICK, cases_of, cells_of
from benchmarks.paper.ldwp_cases import (
    SPANS,
    Case,
    Found,
    bound_per_min,
    run_case,
    scenario_of,
    window_of,
)
from benchmarks.paper.ldwp_document import document_of as document_of_cases
from benchmarks.paper.ldwp_learning import Online, online, plateau, summed
from benchmarks.paper.ldwp_learning import report as learning_report
from benchmarks.paper.ldwp_report import changes, document_of, report
from benchmarks.paper.ldwp_runs import Job, Run, Setting, run_all
from benchmarks.paper.ldwp_summary import report as summary
from benchmarks.simulation.figures import Interval
from hrm.pipelines.policies.cluster.features import Layout
from hrm.pipelines.sim.scenario import arrivals, workers
from hrm.policies import model_files
from hrm.policies.model_files import Model

pytest.importorskip("scipy")


def test_differences_are_paired_by_seed() -> None:
    """The note's differences 2, 4, 3, 5, 1 over a base of 10: 30 % ± 19.63 %."""
    ours = dict(enumerate((12.0, 14.0, 13.0, 15.0, 11.0)))
    found = paired(ours, dict.fromkeys(range(5), 10.0))
    assert found.difference.mean == pytest.approx(0.3)
    assert found.difference.high - found.difference.mean == pytest.approx(0.1963, abs=5e-5)
    assert found.p == pytest.approx(0.013236, abs=5e-6)
    assert paired(ours, {3: 15.0}).difference.mean == 0.0
    assert paired(ours, dict.fromkeys(range(5), 0.0)).p == 1.0


def test_holm() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([]) == []


def _difference(low: float, mean: float, high: float) -> Paired:
    return Paired(Interval(mean, low, high, 10), 0.01)


def test_what_ships_wins_eight_of_ten_and_loses_none() -> None:
    win, even = _difference(0.01, 0.02, 0.03), _difference(-0.01, 0.0, 0.01)
    loss = _difference(-0.04, -0.03, -0.02)
    assert ship([win] * 8 + [even] * 2) == (True, 8, 0)
    assert ship([win] * 7 + [even] * 3) == (False, 7, 0)
    assert ship([win] * 9 + [loss]) == (False, 9, 1)


def test_a_case_becomes_a_document_and_a_report() -> None:
    plan = replace(QUICK, cells=2, scales=(12.0,), cores=(2,), cold_tasks=12, minutes=3.0)
    planned = cases_of(plan, ("cells", "cold", "overload"), {"2 cores, time x 12": 12})
    cases = [case for case, _ in planned]
    assert [case.tasks for case in cases] == [12, 12, 144]
    runs = [
        one
        for case, seeds in planned
        for seed in range(1000, 1000 + seeds)
        for one in run_case(case, seed)
    ]
    document = document_of_cases(runs, cases)
    (cell,) = document["cells"]
    assert cell["best"] in {"least-loaded+mct", "min-wait+mct", "ect+mct"}
    own = [one for one in document["points"] if one["experiment"] == "cells"]
    assert cell["theirs"]["mean"] == min(
        one["figures"]["slowdown"]["mean"] for one in own if not one["pair"].startswith("ldwp")
    )
    assert cell["spans"] == min(one["figures"]["spans"]["mean"] for one in own)
    assert cell["short"] and document["cells_short"] == 1, "twelve tasks are few"
    assert document["equal_node_policy_gain"] == pytest.approx(-cell["difference"]["mean"])
    for one in document["overload"]:
        assert one["pair"] in {"min-wait+mct", "ldwp-set+mct"}
        assert 0.0 < one["work_of_bound"]["ours"]["mean"] < 3.0
    default = next(one for one in document["overload"] if one["pair"] == "min-wait+mct")
    assert document["overload_share_of_bound"] == default["work_of_bound"]["ours"]["mean"]
    assert document["overload_rival_share"] == default["work_of_bound"]["theirs"]["mean"]
    assert document["cells_better"] <= document["cells_better_unadjusted"]
    learned = [one for one in runs if one.mode]
    assert learned and all(one.pair.startswith("ldwp-set") for one in learned)
    decided = [one.values["decided"] for one in learned if one.case == cell["case"]]
    assert document["decided_least"] == min(decided)
    assert document["modes_at_end"] == {"on": len(learned)}
    counted = sum(sum(counts.values()) for counts in document["fallbacks"].values())
    assert counted == sum(one.values["fallbacks"] for one in learned)
    assert document["fallbacks"]["cold"]["unmeasured"] > 0
    text = summary(document)
    assert "## Cells, at equal node policy" in text and "## Cold cells" in text
    assert ", short |" in text and "| work | ldwp-set+mct |" in text


def test_a_cell_is_better_only_where_holm_leaves_it() -> None:
    """Of twelve cells, each with an interval below zero and p = 0.025, none is left."""
    plan = replace(QUICK, scales=(3.0, 12.0, 48.0, 192.0), cores=(2, 4, 16))
    gains = (0.02, 0.02, 0.02, 0.01, 0.0)
    cases = [case for case, _ in cases_of(plan, ("cells",))]
    runs = [
        Found(
            case=case.name,
            pair=pair,
            seed=seed,
            values={"slowdown": slowdown, "spans": SPANS, "cpu_s": 0.0},
        )
        for case in cases
        for pair in case.pairs
        for seed, gain in enumerate(gains)
        for slowdown in [2.0 * (1.0 - gain) if pair == case.pairs[-1] else 2.0]
    ]
    document = document_of_cases(runs, cases)
    assert len(document["cells"]) == 12
    assert (document["cells_better"], document["cells_better_unadjusted"]) == (0, 12)
    assert document["cells_short"] == 0


def test_tasks_of_a_cell_arrive_for_ten_times_the_slowest_response() -> None:
    pilot = cells_of(QUICK)[0]
    runs = [
        Found(case=pilot.name, pair=pair, seed=100, values={"response_p95_s": p95_s})
        for pair, p95_s in zip(pilot.pairs, (50.0, 80.0, 60.0, 40.0), strict=True)
    ]
    window = window_of(pilot, runs, tasks_most=100_000)
    assert (window.pair, window.response_p95_s) == (pilot.pairs[1], 80.0)
    per_s = scenario_of(pilot, 100).rate_per_min / 60.0
    assert 11.5 * 80.0 <= window.tasks / per_s < 11.5 * 80.0 + 50.0 / per_s
    assert window_of(pilot, runs, tasks_most=60).tasks == 60


def test_another_version_of_the_code_has_another_key(tmp_path: Path) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "a.py").write_text("x = 1")
    alone = tmp_path / "table.json"
    alone.write_text("{}")

    def now() -> str:
        version_of.cache_clear()
        return version_of(code, alone)

    first = now()
    assert now() == first
    (code / "__pycache__").mkdir()
    (code / "__pycache__" / "a.pyc").write_text("compiled")
    assert now() == first
    (code / "a.py").write_text("x = 2")
    second = now()
    (code / "a.py").rename(code / "b.py")
    third = now()
    alone.write_text("[]")
    assert len({first, second, third, now()}) == 4


def test_load_and_length_of_a_cell_are_shares_of_its_bound() -> None:
    base = Case(experiment="", name="", pairs=(), tasks=5, cores=2, load=0.8)
    longest, shorter, shortest = (replace(base, time_scale=one) for one in (192.0, 12.0, 3.0))
    assert bound_per_min(shorter) == pytest.approx(16.0 * bound_per_min(longest))
    assert bound_per_min(shortest) < 64.0 * bound_per_min(longest), "links carry no more"
    assert bound_per_min(replace(shortest, cores=16)) == bound_per_min(shortest)
    assert scenario_of(base, 1).rate_per_min == pytest.approx(0.8 * bound_per_min(base))
    long_work, short_work = (arrivals(scenario_of(one, 1)) for one in (longest, shortest))
    assert long_work.least_s(long_work.tasks[0]) == pytest.approx(
        64.0 * short_work.least_s(short_work.tasks[0])
    )


def test_a_job_becomes_a_report() -> None:
    setting = Setting(name="rates", x=60, rate_per_min=60, tasks=15, nodes=3)
    pairs = ("random+random", "ect+mct")
    jobs = [Job(setting, seed, pairs, None, None) for seed in (1000, 1001)]
    on_progress: list[str] = []
    runs = list(run_all(jobs, processes=1, on_progress=on_progress.append))
    assert [run.pair for run in runs] == [*pairs, *pairs]
    assert len(on_progress) == 2
    context = {
        "provenance": {}, "baseline": "ect+mct", "iawp": "iawp:cosine", "learned": [],
        "random": "random+random", "validation": {"ect+mct": 1.0}, "fluid_bound": 90.0,
        "models": {}, "cpu_s": 1.0,
    }  # fmt: skip
    document = document_of(runs, context)
    assert set(document["pairs"]) == set(pairs)
    for values in document["pairs"].values():
        assert values["throughput"] <= values["bound"] * 1.5
        assert len(values["ci95"]) == 2
    row = next(one for one in document["points"] if one["pair"] == "random+random")
    assert row["paired"]["throughput"]["runs"] == 2
    text = report(document)
    assert "| 60 | ect+mct |" in text and "## Ship rule" in text


def test_what_was_kept_is_not_run_again(tmp_path: Path) -> None:
    setting = Setting(name="rates", x=60, rate_per_min=60, tasks=8, nodes=2, applications=None)
    jobs = [Job(setting, seed, ("ect+mct",), None, None) for seed in (1000, 1001)]
    kept = tmp_path / "runs.jsonl"
    first = list(run_all(jobs[:1], processes=1, on_progress=lambda words: None, kept=kept))
    text = kept.read_text()
    kept.write_text(text + text[: len(text) // 2])  # interrupted while writing
    both = list(run_all(jobs, processes=1, on_progress=lambda words: None, kept=kept))
    assert both[0] == first[0]
    assert kept.read_text().startswith(text)
    assert [run.seed for run in both] == [1000, 1001]
    text = kept.read_text()
    assert list(run_all(jobs, processes=1, on_progress=lambda words: None, kept=kept)) == both
    assert kept.read_text() == text, "what was written after a line that was cut off is there"


def test_a_dip_counts_whenever_it_comes_and_the_end_is_no_fall() -> None:
    def run(series: list[int]) -> Run:
        return Run(
            setting=Setting(name="changes", x=50, rate_per_min=50), seed=0, pair="p", values={},
            series=series, balance=[], log_hash="", seconds=0.0,
        )  # fmt: skip

    steady = changes([run([50] * 26)])
    for change in ("joined", "left"):
        assert steady[change] == {"level": 50.0, "minutes": 0.0, "dip_tasks": 0.0}
    late = changes([run([50] * 12 + [20] * 2 + [50] * 12)])
    assert late["joined"]["dip_tasks"] == pytest.approx(60.0)
    assert late["left"]["dip_tasks"] == 0.0


def test_the_plateau_of_a_curve() -> None:
    rises = [-1.0, -0.5, -0.02, 0.0, 0.0, 0.0]
    assert plateau([0, 10, 20, 30, 40, 50], rises) == 20
    assert plateau([0, 10, 20], [0.0, 0.0, 0.0]) == 0
    falls_again = [0.0, -1.0, -0.5, 0.0, 0.0, 0.0]
    assert plateau([0, 10, 20, 30, 40, 50], falls_again) == 30


def test_a_network_learns_on_while_nodes_come_and_go(tmp_path: Path) -> None:
    """Both ways run to the end from a model of eight nodes, on the same arrivals."""
    torch = pytest.importorskip("torch")
    from hrm.learn.q_networks import FlatQNetwork

    nodes = [(one.name, one.type.name) for one in workers(8)]
    network = FlatQNetwork(Layout(), nodes, torch.Generator().manual_seed(0))
    arrays = {name: tensor.detach().numpy() for name, tensor in network.weights.items()}
    meta = {**network.meta(), "kappa": 1.0}
    model = tmp_path / "ldwp-1.npz"
    held = Model(kind="ldwp", version=1, schema=network.schema(), arrays=arrays, meta=meta)
    model_files.write(held, model)
    setting = Setting(name="changes", x=50, rate_per_min=2, nodes=8, changes=True, tasks=30)
    job = Online(setting=setting, seed=1000, model=model, profiles=None, weights=None)
    runs = online([job], processes=1, on_progress=lambda words: None)
    assert [run.pair for run in runs][:2] == ["ldwp, transfer", "ldwp, new"]
    assert all(run.values["failed"] == 0 for run in runs)
    assert len({run.log_hash for run in runs}) == len(runs)
    rows, fluctuations = summed(runs, whole=False)
    curve = {"policy": "ldwp", "pretrained": True, "seeds": 1, "decisions": [0, 10],
             "reward": [-1.0, -0.5], "tasks_per_min": [3.0, 4.0], "response_p95_s": [9.0, 8.0],
             "plateau": 10}  # fmt: skip
    text = learning_report({"curves": [curve], "online": rows, "fluctuations": fluctuations})
    assert "| ldwp, transfer |" in text and "| ldwp | yes | 10 | -0.500 | 4.0 | 8 |" in text
