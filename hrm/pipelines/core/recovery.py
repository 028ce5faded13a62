"""What a new master takes over from an earlier one: the workloads of tasks that had not ended."""

from __future__ import annotations

from collections.abc import Iterable

from hrm.core.master.state import MasterState
from hrm.core.messages import events as e
from hrm.core.messages.hosted import SubmitToMaster
from hrm.core.vocabulary.model import WORKLOAD_PREFIX, ApplicationId, ApplicationState
from hrm.pipelines.core.model import TaskSpec
from hrm.pipelines.core.pipelines_core import PipelinesCore
from hrm.pipelines.core.workload import WorkloadKey
from hrm.pipelines.core.workload_steps import WorkloadStep

__all__ = ["take_over"]


def take_over(
    workloads: PipelinesCore,
    tasks: Iterable[tuple[ApplicationId, WorkloadKey, TaskSpec]],
    master_state: MasterState,
    now: float,
) -> list[WorkloadStep]:
    """``tasks`` are placed again, once their workers have had time to come back; workloads that had
    none left when their master died end. To be called once, before anything is opened."""
    of_workload: dict[tuple[ApplicationId, WorkloadKey], list[TaskSpec]] = {}
    for app_id, key, task in tasks:
        of_workload.setdefault((app_id, key), []).append(task)
    steps: list[WorkloadStep] = []
    for (app_id, key), some in of_workload.items():
        app = master_state.applications.get(app_id)
        known = None if app is None else app.record
        steps += workloads.recover(app_id, key, some, now, known=known)
    for app_id in list(master_state.live):
        if app_id.startswith(WORKLOAD_PREFIX) and app_id not in workloads.live:
            finished = e.ApplicationFinished(
                now=now, application_id=app_id, state=ApplicationState.SUCCEEDED,
                message="it has no task any more",
            )  # fmt: skip
            steps.append(SubmitToMaster(finished))
    return steps
