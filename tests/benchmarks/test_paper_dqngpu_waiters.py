"""Jobs through a node's queue, worked out by hand; and where the data is missing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.paper.dqngpu_waiters import LINE, NodeRun, main, run_set, summarised
from hrm.learn.shared_gpu import SimulatedGpuJob
from hrm.policies.shared_gpu.interference import AdditiveOverload, NoInterference
from hrm.policies.shared_gpu.profiles import GpuUseProfile


def job(
    name: str, gpu: float, memory: float, *, ticks: int = 10, arrives: int = 0
) -> SimulatedGpuJob:
    profile = GpuUseProfile(np.tile((gpu, memory, 0.0, 0.0), (ticks, 1)))
    return SimulatedGpuJob(name, 0, profile, profile, arrives)


JOBS = [job("heavy", 0.9, 0.5), job("other", 0.9, 0.5), job("light", 0.05, 0.5)]


def test_the_line_starts_two_that_slow_each_other_down() -> None:
    """Both want 0.9 of the GPU: 1.8 times as long, then the light one; two fit at once."""
    run = run_set(JOBS, AdditiveOverload(), LINE)
    assert run.makespan_s == pytest.approx(180.0 + 100.0)
    assert run.response == pytest.approx((1.8 + 1.8 + 2.8) / 3)
    assert run.passed_max == 0


def test_recorded_uses_put_the_light_one_next_to_a_heavy_one() -> None:
    run = run_set(JOBS, AdditiveOverload(), "look-ahead")
    assert run.makespan_s == pytest.approx(200.0)
    assert run.response == pytest.approx((1.0 + 1.0 + 2.0) / 3)
    assert run.passed_max == 1


def test_jobs_that_arrive_later_count_from_then() -> None:
    jobs = [job("a", 0.1, 0.6), job("b", 0.1, 0.6, arrives=4)]
    run = run_set(jobs, NoInterference(), LINE)
    assert run.makespan_s == 200.0
    assert run.response == pytest.approx((1.0 + 1.6) / 2)


def test_gains_are_over_the_line_set_by_set() -> None:
    line = [NodeRun(100.0, 4.0, 0), NodeRun(200.0, 2.0, 0)]
    ours = [NodeRun(90.0, 2.0, 3), NodeRun(220.0, 2.0, 1)]
    found = summarised({LINE: line, "look-ahead": ours})
    assert found["look-ahead"]["makespan_gain"]["mean"] == pytest.approx(0.0)
    assert found["look-ahead"]["response_gain"]["mean"] == pytest.approx(0.25)
    assert found["look-ahead"]["passed_max"] == 3
    assert found[LINE]["makespan_gain"] == {"mean": 0.0, "low": 0.0, "high": 0.0, "runs": 2}


def test_without_data_nothing_is_made_up(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--quick", "--data", str(tmp_path)]) == 2
    assert "--data" in capsys.readouterr().err
