"""Run times corrected while an application runs, by the task times that its driver reports.

Earlier runs had another input. How many tasks are left, how long one takes and how many could run
at once say how long the executors still have to do, and where that is more than was expected, the
units where they run are free later. It is a lower bound, for jobs that the driver has not begun are
not known: nothing is expected to end sooner because of it than without any report. A later report
takes back what an earlier one, from when few of the executors ran, had expected. Estimates of waits
count it, at the master alone: a node starts what waits there by its own clock and rules.
"""

from __future__ import annotations

import math

from hrm.core.master.entities import Application
from hrm.core.master.state import MasterState
from hrm.core.vocabulary.model import Progress, WorkloadClass

__all__ = ["progressed", "work_left_s"]

_LEAST_CHANGE = 0.25
"""Of what is left; corrections below would not change a choice, and each costs every scheduler."""

_LEFT_MAX_S = 30 * 86_400.0


def work_left_s(progress: Progress, cores: int = 0) -> float:
    """Seconds of work that are left if as many tasks as now run on, or one on each of the ``cores``
    that the application has; 0 where that is unknown."""
    if not progress.tasks_running:
        return 0.0
    stages_s = sum(
        max(0, stage.tasks_total - stage.tasks_completed) * stage.mean_task_s
        for stage in progress.stages
    )
    all_s = max(0, progress.tasks_total - progress.tasks_completed) * progress.mean_task_s
    left_s = (stages_s or all_s) / max(progress.tasks_running, cores)
    return min(left_s, _LEFT_MAX_S) if math.isfinite(left_s) else 0.0


def progressed(master_state: MasterState, app: Application, now: float) -> None:
    """An application has reported its progress: expect what it runs to take as long as its tasks
    do, at least."""
    if app.progress is None or app.record.workload_class is not WorkloadClass.BATCH:
        return
    left_s, due_at_s = work_left_s(app.progress), 0.0
    is_idle = not (app.progress.tasks_running or app.progress.active_jobs)
    if not left_s and not (is_idle and app.due_at_s):
        return
    running = [x for x in app.containers.values() if x.started_at_s]
    if left_s:
        left_s = work_left_s(app.progress, sum(x.request.resources.vcores for x in running))
        due_at_s = now + left_s
        if abs(due_at_s - app.due_at_s) <= _LEAST_CHANGE * left_s:
            return
    app.due_at_s = due_at_s
    default_s = master_state.bounds.default_duration_s
    changed: dict[int, None] = {}
    for container in running:
        queue = master_state.state.find(container.unit_id)
        entry = None if queue is None else queue.running.get(container.container_id)
        if queue is None or entry is None or entry.has_no_end:
            continue
        expected_s = container.request.expected_duration_s or default_s
        run_s = max(expected_s, due_at_s - entry.started_at_s)
        if run_s != entry.duration_s:
            queue.expect(container.container_id, run_s)
            changed[master_state.state.rows[container.unit_id]] = None
    master_state.state.refresh_all(changed)
