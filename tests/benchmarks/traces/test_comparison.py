"""The benchmark of traces: windows, sizes of clusters, intervals, and one small run."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from benchmarks.traces.comparison import (
    Shape,
    _read,
    _windows,
    interval,
    main,
    parse_arguments,
    ratio,
)
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


def test_errors_are_reported_and_end_with_a_status(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--format", "philly", "--path", str(tmp_path / "nowhere"), "--quick"]) == 1
    assert "nowhere" in capsys.readouterr().err
