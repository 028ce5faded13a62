"""One task on its node: the life of a subtask, and the small records that the core moves.

A subtask is PENDING until all its predecessors are DONE, READY until a policy chooses a core or GPU
for it, and RUNNING there. A run that fails makes it READY again while attempts are left, else
FAILED, and its task with it. The remaining subtasks of a task that ends early are DROPPED.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from hrm.core.vocabulary.event_table import EventTable, Ignored, Impossible, Lifecycle, to
from hrm.core.vocabulary.model import WorkloadClass
from hrm.pipelines.core.device_memory import PeakMemory
from hrm.pipelines.core.model import (
    Device,
    ReadySubtask,
    Row,
    SubtaskKey,
    SubtaskSpec,
    TaskSpec,
)
from hrm.pipelines.core.node_messages import RunOutcome, SubtaskTiming, TaskOutcome
from hrm.pipelines.core.order import Work, WorkStep

__all__ = ["SUBTASK", "NodeTask", "PlacedSubtask", "Run", "SubtaskHappening", "SubtaskState"]


class SubtaskState(enum.Enum):
    """``SUBTASK`` is their table."""

    __hash__ = object.__hash__

    PENDING = "pending"
    READY = "ready"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    DROPPED = "dropped"


class SubtaskHappening(enum.Enum):
    """What happens to a subtask."""

    __hash__ = object.__hash__

    INPUTS_DONE = "inputs-done"
    """All its predecessors are DONE."""
    STARTED = "started"
    """A policy has chosen a device for it."""
    NO_DEVICE = "no-device"
    """No device that could run it is left on the node."""
    RETURNED = "returned"
    RUN_FAILED = "run-failed"
    RUN_STOPPED = "run-stopped"
    """Its run has ended without returning, and so has its task."""
    TASK_ENDED = "task-ended"


_S, _H = SubtaskState, SubtaskHappening
_RELEASED = Ignored("it was ready before")
_NOT_READY = Impossible("only what is ready is started")
_NO_RUN = Impossible("it has no run")
_OVER = Ignored("it is over")
_OVER_ROW: dict[SubtaskHappening, Ignored | Impossible] = {
    _H.INPUTS_DONE: _OVER,
    _H.STARTED: _NOT_READY,
    _H.NO_DEVICE: _NOT_READY,
    _H.RETURNED: _NO_RUN,
    _H.RUN_FAILED: _NO_RUN,
    _H.RUN_STOPPED: _NO_RUN,
    _H.TASK_ENDED: _OVER,
}

SUBTASK: EventTable[SubtaskState, SubtaskHappening] = {
    _S.PENDING: {
        _H.INPUTS_DONE: to(_S.READY),
        _H.STARTED: _NOT_READY,
        _H.NO_DEVICE: _NOT_READY,
        _H.RETURNED: _NO_RUN,
        _H.RUN_FAILED: _NO_RUN,
        _H.RUN_STOPPED: _NO_RUN,
        _H.TASK_ENDED: to(_S.DROPPED),
    },
    _S.READY: {
        _H.INPUTS_DONE: _RELEASED,
        _H.STARTED: to(_S.RUNNING),
        _H.NO_DEVICE: to(_S.FAILED),
        _H.RETURNED: _NO_RUN,
        _H.RUN_FAILED: _NO_RUN,
        _H.RUN_STOPPED: _NO_RUN,
        _H.TASK_ENDED: to(_S.DROPPED),
    },
    _S.RUNNING: {
        _H.INPUTS_DONE: _RELEASED,
        _H.STARTED: _NOT_READY,
        _H.NO_DEVICE: _NOT_READY,
        _H.RETURNED: to(_S.DONE),
        _H.RUN_FAILED: to(_S.READY, _S.FAILED),
        _H.RUN_STOPPED: to(_S.DROPPED),
        _H.TASK_ENDED: Ignored("its run is stopped first, and moves it when it ends"),
    },
    _S.DONE: _OVER_ROW,
    _S.FAILED: _OVER_ROW,
    _S.DROPPED: _OVER_ROW,
}
_FINAL = frozenset({_S.DONE, _S.FAILED, _S.DROPPED})


class PlacedSubtask:
    """A subtask of a task that is here.

    Invariants: ``ready`` is set iff the state is READY; ``run`` is set iff it is RUNNING.
    """

    def __init__(self, key: SubtaskKey, spec: SubtaskSpec, row: Row) -> None:
        self.key = key
        self.spec = spec
        self.row = row
        self.life = Lifecycle(
            "subtask", f"{key.subtask} of {key.task_id}", SUBTASK, SubtaskState.PENDING
        )
        self.devices = spec.devices
        self.gpu_need_mib = 0.0
        self.out_of_gpu_memory = 0
        self.runs = 0
        self.ready: ReadySubtask | None = None
        self.run: Run | None = None

    @property
    def state(self) -> SubtaskState:
        return self.life.state

    @property
    def over(self) -> bool:
        return self.life.state in _FINAL


@dataclass(slots=True, eq=False)
class NodeTask:
    """A task on this node. ``ending``: how it will end once none of its runs remains."""

    spec: TaskSpec
    attempt: int
    subtasks: dict[str, PlacedSubtask] = field(default_factory=dict)
    ending: TaskOutcome | None = None
    message: str = ""
    timings: list[SubtaskTiming] = field(default_factory=list)

    @property
    def workload_class(self) -> WorkloadClass:
        return self.spec.workload_class

    @property
    def begun(self) -> bool:
        return any(one.runs for one in self.subtasks.values())

    @property
    def running(self) -> list[Run]:
        return [one.run for one in self.subtasks.values() if one.run is not None]

    def work(self) -> Work:
        """What is left, running steps included."""
        left = (one for one in self.subtasks.values() if not one.over)
        return tuple(WorkStep(one.row.kind, one.row.bucket, one.devices) for one in left)


@dataclass(slots=True, eq=False, kw_only=True)
class Run:
    """An attempt that holds a core or a part of a GPU. ``stop``: how its end counts once it has
    been ordered to stop; ``excused``: its deadline was moved, because this process slept through
    it; ``co_runner_s``: the seconds for which it shared its GPU with each row."""

    run: int
    key: SubtaskKey
    row: Row
    device: Device
    number: int
    ready_at_s: float
    started_at_s: float
    expected_s: float
    memory_mib: float
    gpu_memory_mib: float
    gpu_peak: PeakMemory
    deadline: float
    profile: bool
    sm: float = 0.0
    """Share of its GPU's multiprocessors that it was expected to use when it started."""
    placed_by: str = ""
    fallback: str = ""
    stop: RunOutcome | None = None
    excused: bool = False
    co_runner_s: dict[Row, float] = field(default_factory=dict)
    cells: Mapping[str, float] = field(default_factory=dict)
    """What its profile measured."""

    def remaining_s(self, now: float) -> float:
        """An estimate; a run that takes longer than expected is assumed to be nearly done."""
        return max(0.1 * self.expected_s, self.started_at_s + self.expected_s - now)

    def co_runners(self, now: float) -> tuple[Row, ...]:
        half_s = 0.5 * (now - self.started_at_s)
        return tuple(row for row, seconds in self.co_runner_s.items() if seconds >= half_s > 0)
