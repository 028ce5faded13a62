"""Messages of workers that no worker sends: each is refused by the name of its field."""

from __future__ import annotations

import math
from typing import Any

import pytest

from hrm.errors import InvalidRequest
from hrm.pipelines.core.model import TaskId
from hrm.pipelines.core.reported_runs import CELLS, CO_RUNNERS_MAX
from hrm.pipelines.policies.corun.metrics import METRICS
from hrm.v1 import pipeline_pb2 as pb
from hrm.wire import pipelines as pw

ROW = pb.PipelineRow(kind="k", bucket=0)
TASK = TaskId("t")


def timing(**fields: Any) -> pb.SubtaskTiming:
    return pb.SubtaskTiming(
        subtask="a",
        row=ROW,
        device=pb.SUBTASK_DEVICE_GPU,
        outcome=pb.SUBTASK_OUTCOME_DONE,
        **fields,
    )


def test_a_run_has_no_more_co_runners_than_fit() -> None:
    most = [ROW] * CO_RUNNERS_MAX
    assert len(pw.to_timing(timing(co_runners=most), TASK).co_runners) == CO_RUNNERS_MAX
    with pytest.raises(InvalidRequest, match=r"timing\.co_runners has 7 rows"):
        pw.to_timing(timing(co_runners=[*most, ROW]), TASK)


def test_the_cells_of_a_run_are_metrics() -> None:
    assert set(METRICS) == CELLS
    known = dict.fromkeys(METRICS, 0.5)
    assert pw.to_timing(timing(cells=known), TASK).cells == known
    with pytest.raises(InvalidRequest, match=r"timing\.cells has 'mine'; .*dram, gpu_memory"):
        pw.to_timing(timing(cells={"mine": 0.5}), TASK)


@pytest.mark.parametrize("at_s", [math.nan, math.inf, -1.0, 1e300])
def test_a_load_is_of_a_time(at_s: float) -> None:
    with pytest.raises(InvalidRequest, match=r"load\.at_s"):
        pw.to_load(pb.PipelineLoad(at_s=at_s))


@pytest.mark.parametrize("task_id", ["", "../x", "a b", "x" * 200])
def test_a_load_names_tasks(task_id: str) -> None:
    assert pw.to_load(pb.PipelineLoad(at_s=1.8e9, task_ids=["t.1"])).tasks == {"t.1"}
    with pytest.raises(InvalidRequest, match=r"load\.task_ids"):
        pw.to_load(pb.PipelineLoad(task_ids=[task_id]))
