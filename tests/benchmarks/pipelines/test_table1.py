"""Table 1: all images are done with any number of executors; a failure is reported, not hung."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.paper import table1
from benchmarks.paper.table1 import Shape
from hrm.errors import Unavailable

SMALL = Shape(images=5, side=(64, 64), width=8, depth=1)


def test_two_executors_share_the_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(table1, "QUICK_CPU", SMALL)
    monkeypatch.setattr(table1, "QUICK_GPU", SMALL)
    target = tmp_path / "table.json"
    options = ["--quick", "--json", str(target), "--cache-dir", str(tmp_path)]
    assert table1.main([*options, "--executors", "1", "2"]) == 0
    found = json.loads(target.read_text())
    one, two = found["rows"]
    assert one["images"] == two["images"] == 5
    assert one["boxes"] == two["boxes"] > 0
    assert found["on_gpu"] or "On a CPU" in capsys.readouterr().out


def test_an_executor_that_fails_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HRM_BENCH_CACHE", str(tmp_path))
    broken = Shape(images=2, side=(65, 65), width=8, depth=1)
    with pytest.raises(Unavailable, match="executor"):
        table1.measure(broken, 1)


@pytest.mark.spark
@pytest.mark.timeout(400)
def test_executors_of_an_application_share_the_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table1, "QUICK_CPU", SMALL)
    monkeypatch.setattr(table1, "QUICK_GPU", SMALL)
    monkeypatch.delenv("HRM_AGENT_GPUS", raising=False)  # restored if the benchmark declares one
    target = tmp_path / "table.json"
    options = ["--on", "hrm", "--quick", "--json", str(target), "--cache-dir", str(tmp_path)]
    assert table1.main([*options, "--executors", "2"]) == 0
    found = json.loads(target.read_text())
    assert found["executors_are"] == "hrm"
    (two,) = found["rows"]
    assert two["executors"] == 2 and two["images"] == 5 and two["boxes"] > 0
