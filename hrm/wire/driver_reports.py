"""What drivers report of applications, to core types and back: counts, times of tasks, epochs."""

from __future__ import annotations

from typing import Any

from hrm.core.vocabulary.model import ExecutorTasks, Progress, StageProgress, TrainingReport
from hrm.v1 import common_pb2 as common
from hrm.wire import codec

__all__ = ["from_progress", "from_training", "to_executor_tasks", "to_progress", "to_training"]

_TASK_COUNTS = ("tasks_total", "tasks_running", "tasks_completed", "tasks_failed")


def to_progress(message: common.Progress) -> Progress:
    return Progress(
        **_counts(message, "active_jobs", "active_stages", "completed_stages", *_TASK_COUNTS),
        mean_task_s=codec.to_amount(message.mean_task_s, "mean_task_s"),
        streaming_queries=tuple(message.streaming_queries),
        stages=tuple(
            StageProgress(
                stage_id=stage.stage_id,
                attempt=stage.attempt,
                name=stage.name,
                **_counts(stage, *_TASK_COUNTS),
                mean_task_s=codec.to_amount(stage.mean_task_s, "mean_task_s"),
            )
            for stage in message.stages
        ),
    )


def to_executor_tasks(message: common.Progress) -> tuple[ExecutorTasks, ...]:
    return tuple(
        ExecutorTasks(
            executor_id=codec.to_name(each.executor_id, "executor_id"),
            stage=each.stage,
            tasks=each.tasks,
            run_s=codec.to_amount(each.run_s, "run_s"),
            input_bytes=codec.to_whole(each.input_bytes, "input_bytes", 0, codec.COUNT_MAX),
        )
        for each in message.executor_tasks
        if codec.to_whole(each.tasks, "tasks", 0, codec.COUNT_MAX) and each.run_s
    )


def to_training(message: common.Progress) -> tuple[TrainingReport, ...]:
    """As stated, whatever that is: an error here would end the application's session, and with it
    the application, for what its model has come to. ``hrm.core.elasticity.stated_report`` has
    the bounds, and which report does not count is for people to read."""
    return tuple(
        TrainingReport(
            epoch=each.epoch,
            loss=each.loss,
            accuracy=each.accuracy if each.HasField("accuracy") else None,
            seconds=each.seconds,
            epochs=each.epochs,
        )
        for each in message.training
    )


def from_training(value: TrainingReport) -> common.TrainingReport:
    return common.TrainingReport(
        epoch=value.epoch,
        loss=value.loss,
        accuracy=value.accuracy,
        seconds=value.seconds,
        epochs=value.epochs,
    )


def _counts(message: common.Progress | common.StageProgress, *fields: str) -> dict[str, Any]:
    return {x: codec.to_whole(getattr(message, x), x, 0, codec.COUNT_MAX) for x in fields}


def from_progress(value: Progress) -> common.Progress:
    return common.Progress(
        active_jobs=value.active_jobs,
        active_stages=value.active_stages,
        completed_stages=value.completed_stages,
        tasks_total=value.tasks_total,
        tasks_running=value.tasks_running,
        tasks_completed=value.tasks_completed,
        tasks_failed=value.tasks_failed,
        mean_task_s=value.mean_task_s,
        streaming_queries=value.streaming_queries,
        stages=[
            common.StageProgress(
                stage_id=stage.stage_id,
                attempt=stage.attempt,
                name=stage.name,
                tasks_total=stage.tasks_total,
                tasks_running=stage.tasks_running,
                tasks_completed=stage.tasks_completed,
                tasks_failed=stage.tasks_failed,
                mean_task_s=stage.mean_task_s,
            )
            for stage in value.stages
        ],
    )
