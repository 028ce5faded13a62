"""What the report of one run may add to the estimates of its user.

Users' code runs beside a worker, and may report what it wants. It can only mislead its own user,
since estimates are kept by user, but a peak of memory stays, and a pair takes the place of another.
So nothing is learned that cannot have been: a row that is not the step's, co-runners of tasks that
the worker never had or more than fit, memory that the worker does not have, shares above 1, a run
that took longer than its task exists, one on a GPU where there is none, a GPU's use by a run that
failed or shared it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hrm.core.vocabulary.gpu_use import GpuUsePart
from hrm.pipelines.core.feasibility import CAPS
from hrm.pipelines.core.model import (
    CO_RUN_FEATURES,
    Device,
    LearningEstimates,
    Row,
    TaskSpec,
    row_of,
)
from hrm.pipelines.core.node_messages import NodeCapacity, ReportSubtask, RunOutcome

__all__ = ["CELLS", "CO_RUNNERS_MAX", "ROWS_MAX", "RowsOfWorker", "learn"]

CO_RUNNERS_MAX = 2 * (CAPS.co_runners_max - 1)
"""All that can have shared a GPU with a run for half of its time each."""
ROWS_MAX = 1_024
"""What a worker has had is remembered up to so many rows, the latest."""
CELLS = frozenset(("cpu", "memory", "gpu_memory", "speedup", *CO_RUN_FEATURES))
"""Names of what a worker may report to have measured of a step."""
_SHARES = ("cpu", *CO_RUN_FEATURES[:-1])
"""What a profile measures: all but the size."""


class RowsOfWorker:
    """Rows of the steps that a worker has had, which alone can have run next to each other there.

    What ended there before this master began is not among them.
    """

    def __init__(self) -> None:
        self._rows: dict[Row, None] = {}

    def add(self, task: TaskSpec, gpu_model: str) -> None:
        """The task is placed there."""
        for one in task.pipeline.subtasks:
            if Device.GPU in one.devices:
                row = row_of(one, task.size_mb, gpu_model)
                self._rows.pop(row, None)
                self._rows[row] = None
        while len(self._rows) > ROWS_MAX:
            del self._rows[next(iter(self._rows))]

    def has(self, rows: Iterable[Row]) -> bool:
        """All of these?"""
        return all(row in self._rows for row in rows)


def learn(
    estimates: LearningEstimates,
    report: ReportSubtask,
    task: TaskSpec,
    capacity: NodeCapacity,
    rows: RowsOfWorker,
    now: float,
) -> None:
    """Add what can be true of this run of ``task`` on a worker of ``capacity``. Times become those
    of a speed of 1. Next to co-runners that are not known its time says nothing."""
    timing = report.timing
    step = next(one for one in task.pipeline.subtasks if one.name == timing.key.subtask)
    co_runners, on_cpu = timing.co_runners, timing.device is Device.CPU
    possible = on_cpu or bool(capacity.gpus)
    if not possible or timing.row != row_of(step, task.size_mb, capacity.gpu_model):
        return
    known = len(co_runners) <= CO_RUNNERS_MAX and rows.has(co_runners)
    card_mib = max((gpu.memory_mib for gpu in capacity.gpus), default=0.0)
    if timing.outcome is RunOutcome.DONE and known:
        exists_s = now - task.submitted_at_s
        ran_s = min(timing.ran_s, exists_s) if exists_s > 0 else timing.ran_s
        estimates.observe_run(
            timing.row,
            timing.device,
            ran_s * (capacity.cpu_speed if on_cpu else capacity.gpu_speed),
            min(timing.memory_mib, capacity.memory_mib),
            min(timing.gpu_memory_mib, card_mib),
            () if on_cpu else co_runners,
        )
    elif timing.outcome is RunOutcome.OUT_OF_GPU_MEMORY and not on_cpu:
        had_mib = max(timing.gpu_memory_mib, timing.gpu_memory_reserved_mib)
        estimates.observe_out_of_gpu_memory(timing.row, min(had_mib, card_mib))
    cells = timing.cells
    shares = {name: min(1.0, cells[name]) for name in _SHARES if name in cells}
    estimates.observe_cells(timing.row, shares)
    alone = timing.outcome is RunOutcome.DONE and not on_cpu and not co_runners
    if report.gpu_use and alone:
        estimates.observe_gpu_use(timing.row, _on_card(report.gpu_use, card_mib))


def _on_card(use: Sequence[GpuUsePart], card_mib: float) -> tuple[GpuUsePart, ...]:
    """``use`` as far as a card of ``card_mib`` has it."""
    most = GpuUsePart(1.0, card_mib, 1.0, 1.0)
    return tuple(GpuUsePart(*map(min, part, most)) for part in use)
