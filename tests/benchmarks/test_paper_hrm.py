"""The paper's benchmark: its report and plots, and its live mode against a real, small master."""

from __future__ import annotations

import json
import re
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

pytest.importorskip("matplotlib", reason="pip install 'hrm-spark[bench]'")

from benchmarks.common import provenance
from benchmarks.paper import hrm, live, plots
from benchmarks.paper.report import report
from benchmarks.simulation import CENTRALISED, Point, run_points
from benchmarks.simulation.timed import Setup
from benchmarks.simulation.workload import JobPlan, burst

SVG_BYTES_MAX = 100_000


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    points = [
        Point(system, "measured", 6, Setup(nodes=20, schedulers=count), lambda s: burst(6, s))
        for system, count in ((CENTRALISED, 0), ("HRM, 6 schedulers", 6))
    ]
    return run_points(points, runs=2)


def test_the_short_names_are_means_of_the_runs_ratios(rows: list[dict[str, Any]]) -> None:
    short = hrm.short_names(rows, "HRM, 6 schedulers", "_x")

    delays = {row["system"]: row["runs"]["delay_ms"] for row in rows}
    pairs = zip(delays["HRM, 6 schedulers"], delays[CENTRALISED], strict=True)
    assert short == {"delay_ratio_6_x": pytest.approx(fmean(x / y for x, y in pairs), abs=1e-4)}


def test_calibrated_costs_are_in_no_short_name_and_in_a_table_of_their_own(
    rows: list[dict[str, Any]],
) -> None:
    fitted = [{**row, "charging": "choice-bound"} for row in rows]
    document = {
        "runs": 2, "seed": 0, "provenance": provenance("benchmarks.paper.hrm"),
        "points": hrm.thin([*rows, *fitted]),
    }  # fmt: skip

    assert hrm.short_names(fitted, "HRM, 6 schedulers") == {}
    headline, shape, *_ = report({"delay": document}).split("| 6 jobs |")
    assert "choice-bound" not in headline
    assert "calibrated costs" in shape
    assert "choice-bound |" in shape


@pytest.mark.parametrize("name", ["delay", "saturated", "live"])
@pytest.mark.parametrize("charging", ["scaled", "choice-bound", "live, choice-bound", "made up"])
def test_the_headline_has_no_cell_whose_costs_are_not_those_of_hrm(
    rows: list[dict[str, Any]], name: str, charging: str
) -> None:
    declared = [{**row, "charging": charging, "x": 77.0} for row in rows]
    document: dict[str, Any] = {
        "runs": 2, "seed": 0, "provenance": provenance("benchmarks.paper.hrm"),
        "points": hrm.thin([*rows, *declared]),
    }  # fmt: skip
    if name == "live":
        for point in document["points"][: len(rows)]:
            point["charging"] = live.LIVE

    headline, shape, *_ = report({name: document}).split("\n##")[1:]

    assert "Delay, HRM over centralised" in headline
    assert "| 6 jobs |" in headline
    assert "77 jobs" not in headline
    assert "choice-bound" not in headline
    assert "scaled" not in headline
    assert "made up" not in headline
    assert shape.startswith("# The shape, with calibrated costs")
    assert f"| {charging}" in shape
    assert "| 77 jobs |" in shape
    assert "| 6 jobs |" not in shape
    assert ("pauses for each choice" in shape) is charging.startswith("live")


def test_a_report_has_every_point_and_where_it_comes_from(rows: list[dict[str, Any]]) -> None:
    document = {
        "runs": 2, "seed": 0, "provenance": provenance("benchmarks.paper.hrm"),
        "points": hrm.thin(rows),
    }  # fmt: skip

    text = report({"delay": json.loads(json.dumps(document))})

    (ratio,) = re.findall(r"^\| 6 jobs \| - \| - \| ([0-9.]+) ± [0-9.]+ \|$", text, re.MULTILINE)
    (expected,) = hrm.short_names(rows, "HRM, 6 schedulers", "_x").values()
    assert float(ratio) == pytest.approx(expected, rel=0.005)
    assert text.count("| centralised | measured |") == 1
    assert "2 runs a point" in text
    assert "±" in text


def test_a_report_calls_a_missed_target_missed(rows: list[dict[str, Any]]) -> None:
    where = {"runs": 2, "seed": 0, "provenance": provenance("benchmarks.paper.hrm")}

    def at(x: float, times: float) -> list[dict[str, Any]]:
        """HRM's delay is so many times that of the central system."""
        return [
            {**row, "x": x, "runs": {"delay_ms": [times if "HRM" in row["system"] else 1.0] * 2}}
            for row in rows
        ]

    text = report({"delay": {**where, "points": [*at(60.0, 0.9), *at(180.0, 1.8)]}})

    assert "60 jobs 0.90 against 1.0, met; 180 jobs 1.80 against 0.5, missed." in text


def test_a_plot_is_small_and_names_its_systems(rows: list[dict[str, Any]], tmp_path: Path) -> None:
    path = tmp_path / "plot.svg"

    plots.draw(path, rows, figure="delay_ms", x_name="jobs at once", y_name="delay, ms")

    drawn = path.read_text()
    assert len(drawn) < SVG_BYTES_MAX
    assert CENTRALISED in drawn
    assert "jobs at once" in drawn


def test_a_real_master_places_runs_and_ends_the_jobs_of_emulated_agents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(live.SYSTEMS, "a pair", live.System(inside=1, processes=1))
    systems = [CENTRALISED, "a pair"]

    rows = live.run_bursts(systems, 1, tmp_path, nodes=30, jobs=(2, 3), hold_s=0.3)

    assert [(row["system"], row["x"]) for row in rows] == [
        (system, jobs) for jobs in (2, 3) for system in systems
    ]
    for row in rows:
        figures = {name: figure["mean"] for name, figure in row["figures"].items()}
        assert 0 < figures["container_delay_ms"] <= figures["delay_ms"] <= figures["makespan_ms"]
        assert figures["told_ms"] >= figures["container_delay_ms"]
        assert figures["completion_s"] > 0.3
        assert figures["rounds"] >= row["x"]


def test_jobs_that_fill_the_cluster_run_in_waves_and_are_those_of_the_seed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeds = []

    def drawn(count: int, seed: int, *, run_s: float) -> list[JobPlan]:
        seeds.append(seed)
        return burst(count, seed, run_s=run_s)

    monkeypatch.setattr(live, "burst", drawn)

    rows = live.run_bursts([CENTRALISED], 1, tmp_path, nodes=3, jobs=(2,), hold_s=0.5, seed=7)

    assert seeds == [0, 7], "the warm-up's, and the run's"
    figures = {name: figure["mean"] for name, figure in rows[0]["figures"].items()}
    assert figures["queued"] == 80 - 3 * 16
    assert figures["completion_s"] >= (0.5 + 2 * 0.5) / 2  # one job of one wave, one of two


def test_streams_among_batch_are_counted_apart_for_each_lease(tmp_path: Path) -> None:
    leases = list(live.LEASES)

    rows = live.run_mixed(leases, 1, tmp_path, nodes=20, jobs=4, streams_per_s=(20,))

    assert [row["system"] for row in rows] == leases
    for row in rows:
        figures = {name: figure["mean"] for name, figure in row["figures"].items()}
        assert 0 < figures["stream_delay_ms"] <= figures["stream_delay_p99_ms"]
        assert figures["delay_ms"] > 0


def test_a_report_and_plots_of_all_that_is_there(
    rows: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hrm, "RESULTS_DIR", tmp_path)
    where = {"runs": 2, "seed": 0, "provenance": provenance("benchmarks.paper.hrm")}
    points = hrm.thin(rows)
    for point in points:
        point["charging"] = live.LIVE
        point["figures"]["stream_delay_p99_ms"] = point["figures"]["delay_p99_ms"]
    for name in ("live", "live-mixed"):
        document = {**where, "points": points}
        (tmp_path / f"paper-hrm-{name}.json").write_text(json.dumps(document))

    written = {path.name for path in hrm.write_report()}

    assert written == {"paper-hrm-live.svg", "paper-hrm-live-mixed.svg", "paper-hrm.md"}
    text = (tmp_path / "paper-hrm.md").read_text()
    assert "| system | costs | streams a second |" in text
    assert "live, HRM, 6 schedulers" in text


def test_an_unknown_experiment_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        hrm.main(["--only", "speed"])
    assert "no experiment 'speed'" in capsys.readouterr().err
