"""The benchmark of traces: windows, sizes of clusters, intervals, and one small run."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from benchmarks.traces import comparison
from benchmarks.traces.comparison import (
    _HEADER,
    Shape,
    _read,
    _row,
    _windows,
    interval,
    main,
    parse_arguments,
    ratio,
)
from benchmarks.traces.replay import Estimates, ReplayResult, Setup, replay
from benchmarks.traces.replay_plan import Assumptions, JobPlan, plan_jobs, uniform_nodes
from benchmarks.traces.trace_records import TraceJob, TraceNode, TraceTask
from hrm import policies
from tests.benchmarks.traces.samples import write


def test_intervals_are_students() -> None:
    mean, half = interval([1.0, 2.0, 3.0])
    assert mean == 2.0
    assert half == pytest.approx(4.303 / math.sqrt(3), rel=1e-3)
    assert math.isnan(interval([1.0])[1])


def test_ratios_are_geometric_means_that_no_large_window_rules() -> None:
    result = ratio([2.0, 5_000.0], [1.0, 10_000.0])
    assert result is not None
    mean, low, high = result
    assert mean == pytest.approx(1.0)
    assert low < 1.0 < high
    assert low * high == pytest.approx(1.0)
    assert ratio([1.0, 0.0], [1.0, 1.0]) is None


def test_a_shape_is_three_numbers() -> None:
    assert Shape.parse("8:1024:2") == Shape(8, 1024, 2)
    assert Shape(8, 1024, 2).nodes(2)[1].gpus == 2


def test_a_quick_run_replays_under_every_policy_and_writes_the_numbers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = write(tmp_path, "alibaba-v2018-dag"), tmp_path / "out.json"
    arguments = ["--format", "alibaba_v2018_dag", "--path", str(path), "--quick"]
    assert main([*arguments, "--policies", "min-wait,fifo", "--json", str(out)]) == 0
    result = json.loads(out.read_text())
    assert set(result["results"]) == {"min-wait", "fifo"}
    (run,) = result["results"]["fifo"]
    assert (run["jobs"], run["containers"]) == (3, 9)
    assert result["rows"]["rows_read"] == 5
    assert {"machine", "versions", "date"} <= set(result["provenance"])
    assert "| min-wait |" in capsys.readouterr().out


def test_windows_of_one_file_share_no_job_and_files_take_turns(tmp_path: Path) -> None:
    def trace(name: str, gpus: int) -> str:
        rows = [f"2020-01-01 00:{m:02d}:00,{90 + m}.0,{gpus},1.0,aaa" for m in range(60)]
        (tmp_path / name).write_text(
            "\n".join(["timestamp,duration,num_gpus,gpu_time,cluster", *rows])
        )
        return str(tmp_path / name)

    paths = [trace("one.csv", 1), trace("two.csv", 2)]
    given = parse_arguments(
        ["--format", "philly", "--jobs", "15", "--seeds", "8", "--path", *paths]
    )
    sources, report = _read(given)
    windows = _windows(given, sources, [])

    assert report.rows_read == 120
    assert [window.plans[0].containers for window in windows] == [1, 2] * 4
    for file in range(2):
        drawn = [plan.job.arrival_s for window in windows[file::2] for plan in window.plans]
        assert len(drawn) == len(set(drawn)) == 60


def test_jobs_are_drawn_from_a_generator_for_each_seed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = write(tmp_path, "deeprm"), tmp_path / "out.json"
    arguments = ["--format", "deeprm", "--path", str(path), "--quick", "--jobs", "40"]
    assert main([*arguments, "--policies", "min-wait,best-fit", "--json", str(out)]) == 0
    (run,) = json.loads(out.read_text())["results"]["best-fit"]
    assert (run["jobs"], run["containers"], run["jobs_refused"]) == (40, 40, 0)


def _waits(*seconds: float) -> list[ReplayResult | None]:
    """Results of as many windows with these mean waits, and ten times that until completion."""
    task = TraceTask(name="t", duration_s=1.0)
    jobs = plan_jobs([TraceJob(job_id="j", arrival_s=0.0, tasks=(task,))], Assumptions())
    setup = Setup(policy=partial(policies.load, "fifo"))
    one = replay(jobs, uniform_nodes(1, 8, 65_536), setup)
    return [
        replace(
            one,
            wait=replace(one.wait, mean=wait_s),
            completion=replace(one.completion, mean=10 * wait_s),
        )
        for wait_s in seconds
    ]


def test_a_row_compares_with_the_first_policy_window_by_window() -> None:
    ours, first = _waits(8.0, 6.0), _waits(2.0, 3.0)
    cells = dict(zip(_HEADER, _row("fifo", ours, first), strict=True))
    assert cells["wait, mean s"] == "7.0 ± 12.7"
    assert str(cells["wait less the first's"]).startswith("4.5 ± "), "6 and 3 more"
    for name in ("wait times the first's", "completion times the first's"):
        mean, low, high = ratio([8.0, 6.0], [2.0, 3.0]) or (0.0, 0.0, 0.0)
        assert mean == pytest.approx(8**0.5), "of 4 and 2"
        assert cells[name] == f"{mean:.2f} [{low:.2f}, {high:.2f}]"
    alone = dict(zip(_HEADER, _row("min-wait", first, first), strict=True))
    assert alone["wait less the first's"] is alone["wait times the first's"] is None
    single = dict(zip(_HEADER, _row("fifo", _waits(1.0), _waits(4.0)), strict=True))
    assert single["wait less the first's"] == "-3.0"
    assert single["wait times the first's"] == "0.25"


def test_every_policy_gets_the_same_estimates_and_the_central_ones_one_scheduler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setups: list[Setup] = []

    def noted(plans: Sequence[JobPlan], nodes: Sequence[TraceNode], setup: Setup) -> ReplayResult:
        setups.append(setup)
        return replay(plans, nodes, setup)

    monkeypatch.setattr(comparison, "replay", noted)
    path = write(tmp_path, "alibaba-v2018-dag")
    for known in Estimates:
        setups.clear()
        arguments = ["--format", "alibaba_v2018_dag", "--path", str(path), "--quick"]
        assert main([*arguments, "--estimates", known.value]) == 0
        assert {setup.estimates for setup in setups} == {known}
        schedulers = dict(zip(comparison.POLICIES, (s.schedulers for s in setups), strict=True))
        assert {name for name, count in schedulers.items() if count == 1} == comparison.CENTRAL
        assert set(schedulers.values()) == {1, 4}
        assert len({setup.bounds for setup in setups}) == 1


def test_errors_are_reported_and_end_with_a_status(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--format", "philly", "--path", str(tmp_path / "nowhere"), "--quick"]) == 1
    assert "nowhere" in capsys.readouterr().err.replace("\n", "")
