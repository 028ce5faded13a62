"""No more workers than have some work each: a start costs, and short tasks do not pay for it."""

from __future__ import annotations

import math

from hrm.pipelines.core.resizing import WorkloadView

__all__ = ["FewStarts"]

WORK_S = 10.0
"""What each worker is to have to do, seconds: several times what its start takes."""


class FewStarts:
    """One worker for each ``WORK_S`` seconds of work; as ``one-per-task`` while the run time of the
    workload's tasks is not known."""

    name = "few-starts"

    def workers(self, view: WorkloadView) -> int:
        if not view.tasks or math.isnan(view.run_s):
            return view.enough
        return max(1, min(view.enough, math.ceil(view.tasks * view.run_s / WORK_S)))
