"""The benchmark of traces: windows, sizes of clusters, intervals, and one small run."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from benchmarks.traces import Shape, interval, main
from tests.sim.traces.samples import write


def test_intervals_are_students() -> None:
    mean, half = interval([1.0, 2.0, 3.0])
    assert mean == 2.0
    assert half == pytest.approx(4.303 / math.sqrt(3), rel=1e-3)
    assert math.isnan(interval([1.0])[1])


def test_a_shape_is_three_numbers() -> None:
    assert Shape.parse("8:1024:2") == Shape(8, 1024, 2)
    assert Shape(8, 1024, 2).nodes(2)[1].gpus == 2


def test_a_quick_run_replays_under_every_policy_and_writes_the_numbers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = write(tmp_path, "alibaba-v2018-dag"), tmp_path / "out.json"
    arguments = ["--format", "alibaba_v2018_dag", "--path", str(path), "--quick"]
    assert main([*arguments, "--policies", "min-wait,fifo", "--json", str(out)]) == 0
    told = json.loads(out.read_text())
    assert set(told["results"]) == {"min-wait", "fifo"}
    (run,) = told["results"]["fifo"]
    assert (run["jobs"], run["containers"]) == (3, 9)
    assert told["rows"]["rows_read"] == 5
    assert {"machine", "versions", "date"} <= set(told["provenance"])
    assert "| min-wait |" in capsys.readouterr().out


def test_errors_are_told_and_end_with_a_status(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--format", "philly", "--path", str(tmp_path / "nowhere"), "--quick"]) == 1
    assert "nowhere" in capsys.readouterr().err
