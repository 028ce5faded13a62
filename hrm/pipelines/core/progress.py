"""What a workload has done, as the master's core counts it of any application.

A task of a pipeline counts as one task; what was run of it counts by step, as the stages of a Spark
application do, so that run times are learned by pipeline, step, platform and company.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from hrm.core.vocabulary.model import ExecutorTasks, Progress
from hrm.pipelines.core import cluster_messages as m
from hrm.pipelines.core.node_messages import RunOutcome, TaskOutcome
from hrm.pipelines.core.task_record import TaskRecord

__all__ = ["Tally"]


@dataclass(slots=True, eq=False)
class Tally:
    """Of one workload, since it began; ``_runs``: since the latest report, by worker and step."""

    completed: int = 0
    failed: int = 0
    ran_s: float = 0.0
    _runs: dict[tuple[str, str], tuple[int, float]] = field(default_factory=dict)
    _reported: Progress | None = None

    def take(self, command: m.ClusterCommand, executor_of: Callable[[str], str]) -> None:
        """``executor_of``: the number of a worker, by its name; empty: it has ended."""
        match command:
            case m.ReportTiming():
                timing, executor_id = command.report.timing, executor_of(command.node)
                if timing.outcome is RunOutcome.DONE and executor_id and timing.ran_s > 0:
                    key = executor_id, timing.key.subtask
                    many, ran_s = self._runs.get(key, (0, 0.0))
                    self._runs[key] = many + 1, ran_s + timing.ran_s
            case m.FinishTask():
                if command.outcome is TaskOutcome.DONE:
                    self.completed += 1
                    self.ran_s += sum(x.ran_s for x in command.timings)
                else:
                    self.failed += 1

    def recover(self, records: Iterable[TaskRecord]) -> None:
        """Count what had ended under an earlier master, as far as it is known."""
        for record in records:
            if record.outcome is TaskOutcome.DONE:
                self.completed += 1
                self.ran_s += sum(x.ran_s for x in record.timings)
            else:
                self.failed += 1

    def verdict(self) -> tuple[TaskOutcome, str]:
        """How a workload that has no task any more has ended: it has failed if all of them have."""
        if not self.failed:
            return TaskOutcome.DONE, "it has no task any more"
        tasks = self.completed + self.failed
        said = f"{self.failed} of {tasks} tasks failed or were cancelled"
        if self.completed:
            return TaskOutcome.DONE, f"it has no task any more: {said}"
        return TaskOutcome.FAILED, said

    def report(self, live: int, running: int) -> tuple[Progress, tuple[ExecutorTasks, ...]] | None:
        """What has changed since the latest report, with ``live`` tasks of which so many are at
        workers; None: nothing has."""
        progress = Progress(
            active_jobs=int(live > 0),
            active_stages=int(live > 0),
            tasks_total=live + self.completed + self.failed,
            tasks_running=running,
            tasks_completed=self.completed,
            tasks_failed=self.failed,
            mean_task_s=self.ran_s / self.completed if self.completed else 0.0,
        )
        if progress == self._reported and not self._runs:
            return None
        runs, self._runs, self._reported = self._runs, {}, progress
        return progress, tuple(
            ExecutorTasks(executor_id=executor_id, stage=step, tasks=many, run_s=ran_s)
            for (executor_id, step), (many, ran_s) in runs.items()
        )
