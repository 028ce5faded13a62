"""What a worker's report of a run adds to the estimates, and what it cannot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from hrm.core.vocabulary.gpu_use import USE_PARTS, GpuUsePart
from hrm.core.vocabulary.model import NodeName
from hrm.pipelines.core import cluster_messages as m
from hrm.pipelines.core.cluster import LeastWait, PipelineCluster
from hrm.pipelines.core.model import Device, Row, SubtaskKey, TaskId, row_of
from hrm.pipelines.core.node_messages import ReportSubtask, RunOutcome, SubtaskTiming
from hrm.pipelines.core.reported_runs import CO_RUNNERS_MAX, ROWS_MAX, RowsOfWorker
from tests.core.pipeline.building import BOTH, capacity, pipeline, subtask, task
from tests.core.pipeline.running_means import RunningMeans

WORKER = NodeName("n1")
SPEC = pipeline(subtask("a", on=BOTH), *(subtask(f"b{number}", on=BOTH) for number in range(9)))
ROWS = {one.name: row_of(one, 10.0, "P4") for one in SPEC.subtasks}
TIMING = SubtaskTiming(
    key=SubtaskKey(TaskId("t"), "a"),
    row=ROWS["a"],
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
)
USE = (GpuUsePart(0.5, 700.0, 0.4, 0.1),) * USE_PARTS


class Recorded(RunningMeans):
    """Keeps what it was given to learn."""

    def __init__(self) -> None:
        super().__init__()
        self.runs: list[tuple[object, ...]] = []
        self.cells: list[tuple[Row, Mapping[str, float]]] = []
        self.uses: list[tuple[Row, tuple[GpuUsePart, ...]]] = []

    def observe_run(self, *run: object) -> None:
        self.runs.append(run)

    def observe_cells(self, row: Row, cells: Mapping[str, float]) -> None:
        self.cells.append((row, cells))

    def observe_gpu_use(self, row: Row, use: Sequence[GpuUsePart]) -> None:
        self.uses.append((row, tuple(use)))


def reported(
    timing: SubtaskTiming,
    *,
    now: float = 50.0,
    gpus: int = 1,
    gpu_use: tuple[GpuUsePart, ...] = (),
) -> Recorded:
    """What is learned of ``timing`` at the worker that runs its task."""
    learned = Recorded()
    cluster = PipelineCluster(LeastWait(), learned)
    cluster.handle(m.NodeJoined(now=0.0, capacity=capacity(gpus=gpus)))
    (placed,) = [
        one
        for one in cluster.handle(m.TaskSubmitted(now=0.0, task=task("t", SPEC)))
        if isinstance(one, m.PlaceTask)
    ]
    report = ReportSubtask(
        task_id=TaskId("t"), attempt=placed.attempt, timing=timing, gpu_use=gpu_use
    )
    cluster.handle(m.SubtaskReported(now=now, name=WORKER, report=report))
    return learned


def test_a_run_is_learned_with_those_that_ran_next_to_it() -> None:
    timing = replace(TIMING, co_runners=(ROWS["b1"],), cells={"sm": 0.5, "cpu": 0.9})
    learned = reported(timing)
    assert learned.runs == [(ROWS["a"], Device.GPU, 3.0, 100.0, 200.0, (ROWS["b1"],))]
    assert learned.cells == [(ROWS["a"], {"sm": 0.5, "cpu": 0.9})]


@pytest.mark.parametrize(
    "co_runners",
    [
        (Row("someone else's", 1, "P4"),),
        (ROWS["b1"], Row("kind/b2", 5, "P4")),
        (ROWS["b1"], Row("kind/b2", 0, "H100")),
        tuple(ROWS[f"b{number}"] for number in range(CO_RUNNERS_MAX + 1)),
    ],
    ids=["never there", "another size", "another GPU", "more than fit"],
)
def test_a_run_next_to_what_cannot_have_been_there_is_not_learned(
    co_runners: tuple[Row, ...],
) -> None:
    assert reported(replace(TIMING, co_runners=co_runners)).runs == []


def test_what_fits_is_not_too_much() -> None:
    most = tuple(ROWS[f"b{number}"] for number in range(CO_RUNNERS_MAX))
    assert len(reported(replace(TIMING, co_runners=most)).runs) == 1


def test_memory_is_at_most_the_workers_and_a_time_at_most_the_tasks() -> None:
    huge = replace(TIMING, memory_mib=1e15, gpu_memory_mib=1e15, ran_s=1e15)
    assert reported(huge).runs == [(ROWS["a"], Device.GPU, 50.0, 4096.0, 8000.0, ())]
    on_core = replace(huge, device=Device.CPU, row=ROWS["a"]._replace(gpu_model=""))
    assert reported(on_core, gpus=0).runs == [(on_core.row, Device.CPU, 50.0, 4096.0, 0.0, ())]


@pytest.mark.parametrize("row", [Row("kind/a", 3, "P4"), Row("kind/a", 0, "none of its GPUs")])
def test_a_row_is_the_steps(row: Row) -> None:
    learned = reported(replace(TIMING, row=row, cells={"sm": 0.5}), gpu_use=USE)
    assert (learned.runs, learned.cells, learned.uses) == ([], [], [])


def test_a_run_that_ran_out_of_device_memory_had_at_most_its_card() -> None:
    failed = replace(TIMING, outcome=RunOutcome.OUT_OF_GPU_MEMORY, gpu_memory_mib=300.0)
    assert reported(failed).out_of_memory == [(ROWS["a"], 300.0)]
    told = replace(failed, gpu_memory_reserved_mib=900.0)
    assert reported(told).out_of_memory == [(ROWS["a"], 900.0)]
    huge = replace(failed, gpu_memory_reserved_mib=1e15)
    assert reported(huge).out_of_memory == [(ROWS["a"], 8000.0)]
    on_core = replace(huge, device=Device.CPU, row=ROWS["a"]._replace(gpu_model=""))
    assert reported(on_core, gpus=0).out_of_memory == []


def test_a_profile_has_shares_alone() -> None:
    cells = {"sm": 1e9, "memory": 1e15, "speedup": 1e9, "size": 1.0, "anything": 1.0}
    assert reported(replace(TIMING, cells=cells)).cells == [(ROWS["a"], {"sm": 1.0})]


def test_what_a_run_used_of_its_gpu_is_learned_as_far_as_the_card_has_it() -> None:
    assert reported(TIMING, gpu_use=USE).uses == [(ROWS["a"], USE)]
    assert reported(TIMING).uses == []
    too_much = (GpuUsePart(1e9, 1e15, 2.0, 1.5),) * USE_PARTS
    most = (GpuUsePart(1.0, 8000.0, 1.0, 1.0),) * USE_PARTS
    assert reported(TIMING, gpu_use=too_much).uses == [(ROWS["a"], most)]


@pytest.mark.parametrize(
    "timing",
    [
        replace(TIMING, outcome=RunOutcome.OUT_OF_MEMORY),
        replace(TIMING, device=Device.CPU),
        replace(TIMING, co_runners=(ROWS["b1"],)),
    ],
    ids=["failed", "on a core", "not alone"],
)
def test_a_run_that_leaves_no_profile_of_a_gpu_adds_none(timing: SubtaskTiming) -> None:
    assert reported(timing, gpu_use=USE).uses == []


def test_a_worker_without_gpus_adds_no_run_on_one() -> None:
    timing = replace(TIMING, row=ROWS["a"]._replace(gpu_model=""), cells={"sm": 0.5})
    learned = reported(timing, gpus=0, gpu_use=USE)
    assert (learned.runs, learned.cells, learned.uses) == ([], [], [])


def test_the_latest_rows_of_a_worker_are_remembered() -> None:
    rows = RowsOfWorker()
    for number in range(ROWS_MAX + 5):
        rows.add(task(f"t{number}", pipeline(subtask(f"s{number}", on=BOTH))), "P4")
    assert rows.has([Row(f"kind/s{number}", 0, "P4") for number in range(5, ROWS_MAX + 5)])
    assert not rows.has([Row("kind/s4", 0, "P4")])
