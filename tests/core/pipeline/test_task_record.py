"""What the master keeps of the runs of a task, whatever a worker says of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hrm.core.vocabulary.model import NodeName
from hrm.pipelines.core import cluster_messages as m
from hrm.pipelines.core.cluster import LeastWait, PipelineCluster
from hrm.pipelines.core.model import Device, Row, SubtaskKey, TaskId, row_of
from hrm.pipelines.core.node_messages import (
    EndTask,
    ReportSubtask,
    RunOutcome,
    SubtaskTiming,
    TaskOutcome,
)
from hrm.pipelines.core.task_record import TIMINGS_BYTES_MAX, TaskRecord, keep_timing
from tests.core.pipeline.building import BOTH, capacity, pipeline, subtask, task
from tests.core.pipeline.running_means import RunningMeans

WORKER, TASK = NodeName("n1"), TaskId("t")
STEP = subtask("a", on=BOTH, attempts=2)
SPEC = task("t", pipeline(STEP, subtask("b", on=BOTH, attempts=3)))
TIMING = SubtaskTiming(
    key=SubtaskKey(TASK, "a"),
    row=row_of(STEP, 10.0, "P4"),
    device=Device.GPU,
    number=0,
    run=1,
    outcome=RunOutcome.DONE,
    ready_at_s=0.0,
    started_at_s=0.0,
    waited_s=0.0,
    ran_s=3.0,
    memory_mib=100.0,
    gpu_memory_mib=200.0,
    message="m",
    co_runners=(Row("kind/b", 0, "P4"),) * 1_000,
    cells={"sm": 0.5},
)
IMPOSSIBLE = replace(TIMING, key=SubtaskKey(TASK, "no such step"))
KEPT = replace(TIMING, co_runners=(), cells={})


def placed() -> tuple[PipelineCluster, int]:
    """A cluster with the task at its worker, and the attempt."""
    cluster = PipelineCluster(LeastWait(), RunningMeans())
    cluster.handle(m.NodeJoined(now=0.0, capacity=capacity(gpus=1)))
    commands = cluster.handle(m.TaskSubmitted(now=0.0, task=SPEC))
    (attempt,) = [x.attempt for x in commands if isinstance(x, m.PlaceTask)]
    return cluster, attempt


def test_an_end_keeps_runs_of_the_tasks_steps_without_what_only_estimates_read() -> None:
    cluster, attempt = placed()
    end = EndTask(
        task_id=TASK,
        attempt=attempt,
        outcome=TaskOutcome.FAILED,
        message="x",
        timings=(IMPOSSIBLE, *(TIMING,) * 10_000),
    )
    (finish,) = cluster.handle(m.TaskEnded(now=9.0, name=WORKER, end=end))
    assert isinstance(finish, m.FinishTask)
    assert finish.timings == (KEPT,) * (4 * (2 + 3))
    assert cluster.ended[TASK].kept_bytes == cluster.order.held_bytes < 10_000


def test_live_reports_are_kept_and_passed_on_likewise() -> None:
    cluster, attempt = placed()
    passed_on = []
    for timing in (IMPOSSIBLE, *(TIMING,) * 100):
        report = ReportSubtask(task_id=TASK, attempt=attempt, timing=timing)
        passed_on += cluster.handle(m.SubtaskReported(now=1.0, name=WORKER, report=report))
    assert [x.report.timing for x in passed_on if isinstance(x, m.ReportTiming)] == [KEPT] * 20
    assert cluster.tasks[TASK].timings == [KEPT] * 20


def test_what_an_end_replaces_is_not_counted_twice() -> None:
    cluster, attempt = placed()
    report = ReportSubtask(task_id=TASK, attempt=attempt, timing=TIMING)
    cluster.handle(m.SubtaskReported(now=1.0, name=WORKER, report=report))
    before = cluster.tasks[TASK].timing_bytes
    end = EndTask(
        task_id=TASK, attempt=attempt, outcome=TaskOutcome.DONE, message="", timings=(TIMING,)
    )
    cluster.handle(m.TaskEnded(now=9.0, name=WORKER, end=end))
    assert cluster.ended[TASK].timing_bytes == before > 256


@pytest.mark.parametrize("field", ["message", "placed_by", "fallback"])
def test_the_texts_of_all_runs_are_bounded_and_their_numbers_come_first(field: str) -> None:
    long = TIMINGS_BYTES_MAX // 3
    record = TaskRecord(SPEC)
    timing = replace(TIMING, **{field: "x" * long})  # type: ignore[arg-type]
    kept = [keep_timing(record, timing) for _ in range(20)]
    texts = [len(getattr(one, field)) for one in kept if one is not None]
    assert texts[:2] == [long, long]
    assert texts[2:] == [0] * 18
    assert 2 * long < record.timing_bytes <= TIMINGS_BYTES_MAX


def test_a_run_for_which_there_is_no_space_is_left_out() -> None:
    record = TaskRecord(SPEC)
    huge = replace(TIMING, row=TIMING.row._replace(gpu_model="x" * (TIMINGS_BYTES_MAX // 2)))
    assert [keep_timing(record, huge) is None for _ in range(3)] == [False, True, True]
    assert len(record.timings) == 1
