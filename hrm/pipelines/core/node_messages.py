"""Events (past tense, with ``now``) and commands (imperative) of the node's pipeline core.

Times are seconds since the epoch, durations seconds, memory MiB. A *run* is one attempt at a
subtask; its number is the node's own and is never reused. A *claim* is a request for a GPU from
outside of pipelines, such as an operator in a Spark executor.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from hrm.core.vocabulary.gpu_use import GpuUsePart
from hrm.core.vocabulary.model import NodeName
from hrm.pipelines.core.model import Device, Row, SubtaskKey, TaskId, TaskSpec

__all__ = [
    "ClockTicked",
    "DrainAsked",
    "EndTask",
    "GpuCard",
    "LoadSampled",
    "NodeCapacity",
    "NodeCommand",
    "NodeEvent",
    "NodeLoad",
    "ReportSubtask",
    "RunOutcome",
    "StartSubtask",
    "StopSubtask",
    "SubtaskEnded",
    "SubtaskProfiled",
    "SubtaskTiming",
    "TaskOutcome",
    "TaskPlaced",
    "TaskWithdrawn",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuCard:
    """A GPU of the node. ``index`` identifies it to the interpreter."""

    index: int
    model: str
    memory_mib: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCapacity:
    """What a node has for pipelines. Speeds are relative to the reference platform, 1.0.

    ``machine``: where it is, "": on one of its own; what is wrong with a machine's directories is
    so for all nodes there. All rows of a node are keyed by the model of its first GPU.
    """

    name: NodeName
    cores: int
    memory_mib: float
    gpus: tuple[GpuCard, ...] = ()
    platform: str = ""
    cpu_speed: float = 1.0
    gpu_speed: float = 1.0
    machine: str = ""

    @property
    def gpu_model(self) -> str:
        return self.gpus[0].model if self.gpus else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLoad:
    """What a node reports: its part of ``ClusterView``'s columns, in the same units.

    ``expected_wait_p90_s``: what the wait is at most nine times in ten; 0: an older node.
    """

    at: float
    cpu: float
    gpu: float
    memory: float
    gpu_memory: float
    sent: float
    received: float
    running: int
    waiting_batch: int
    waiting_stream: int
    expected_wait_s: float
    free_cores: int
    free_memory_mib: float
    free_gpu_memory_mib: float
    expected_wait_p90_s: float = 0.0
    tasks: frozenset[TaskId] = frozenset()
    """All tasks that the numbers include."""

    def wait_in_words(self) -> str:
        """For the end of a line; empty: not known."""
        if not self.expected_wait_p90_s:
            return ""
        return (
            f"; work for {self.expected_wait_s:.1f} s is there, nine times in ten for at most "
            f"{self.expected_wait_p90_s:.1f} s"
        )


class RunOutcome(enum.Enum):
    """How one run ended."""

    __hash__ = object.__hash__

    DONE = "done"
    RAISED = "raised"
    CRASHED = "crashed"
    OUT_OF_MEMORY = "out of memory"
    OUT_OF_GPU_MEMORY = "out of device memory"
    TIMED_OUT = "timed out"
    NOT_IMPORTABLE = "not importable"
    STOPPED = "stopped"


class TaskOutcome(enum.Enum):
    """How a task ended on a node, or finally. GIVEN_BACK: not begun, another node may have it.
    REFUSED: it cannot begin on this node, which counts as a failed placement; others may be able
    to run it. No task ends finally with either."""

    __hash__ = object.__hash__

    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    GIVEN_BACK = "given back"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class SubtaskTiming:
    """One run: where, how long it had waited since it was ready, how long it ran, what it took.

    ``placed_by``, ``fallback``: the policy that chose the device, as in ``Start``.
    ``gpu_memory_reserved_mib``: what was set aside for it on a GPU.
    """

    key: SubtaskKey
    row: Row
    device: Device
    number: int
    run: int
    outcome: RunOutcome
    ready_at_s: float
    started_at_s: float
    waited_s: float
    ran_s: float
    memory_mib: float = 0.0
    gpu_memory_mib: float = 0.0
    gpu_memory_reserved_mib: float = 0.0
    co_runners: tuple[Row, ...] = ()
    message: str = ""
    placed_by: str = ""
    fallback: str = ""
    cells: Mapping[str, float] = field(default_factory=dict)
    """Of a run that was a profile: what it measured, shares 0..1 by metric."""


# --- events -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPlaced:
    """The master orders the task to run here; ``attempt`` is its placement's number."""

    now: float
    task: TaskSpec
    attempt: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskWithdrawn:
    """The task (of this placement) is no longer wanted."""

    now: float
    task_id: TaskId
    attempt: int
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubtaskEnded:
    """A run is over and holds nothing. Peaks in MiB, 0 if not measured.

    ``ran_s`` is the time in the function alone where the interpreter knows it; None: the time
    between start and end.
    """

    now: float
    key: SubtaskKey
    run: int
    outcome: RunOutcome
    message: str = ""
    ran_s: float | None = None
    memory_mib: float = 0.0
    gpu_memory_mib: float = 0.0
    gpu_use: tuple[GpuUsePart, ...] = ()
    """Of its GPU over its life; empty: not measured, or not alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubtaskProfiled:
    """The first seconds of a run measured metrics of its row: shares 0..1 by name."""

    now: float
    key: SubtaskKey
    run: int
    cells: Mapping[str, float] = field(hash=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSampled:
    """Telemetry: shares 0..1 of the node, and of each GPU in the order of its cards.

    ``gpu_utilisation`` is that of all who share the card, ``gpu_memory_used_mib`` what is used of
    the node's own part of its memory. Empty tuples: not available.
    """

    now: float
    cpu: float = 0.0
    memory: float = 0.0
    sent: float = 0.0
    received: float = 0.0
    gpu_utilisation: tuple[float, ...] = ()
    gpu_memory_used_mib: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockTicked:
    """Time has passed; due at ``NodeCore.next_deadline``."""

    now: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainAsked:
    """Accept nothing new; return tasks that have not begun, and with ``after_step`` those that
    have, too, as soon as no step of theirs runs: no other is started."""

    now: float
    after_step: bool = False


NodeEvent = (
    TaskPlaced
    | TaskWithdrawn
    | SubtaskEnded
    | SubtaskProfiled
    | LoadSampled
    | ClockTicked
    | DrainAsked
)


# --- commands ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class StartSubtask:
    """Run this version of the subtask on core or GPU ``number``; report its end once.

    ``memory_limit_mib``: 0 for none. ``profile``: its row is little known, so measure its first
    seconds and report them as ``SubtaskProfiled``; the run continues.
    """

    key: SubtaskKey
    run: int
    attempt: int
    device: Device
    number: int
    memory_limit_mib: int
    timeout_s: float
    profile: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StopSubtask:
    """End the run and all of its processes; report the end as of any other."""

    key: SubtaskKey
    run: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportSubtask:
    """Report a run that is over to the master. ``gpu_use``: of its GPU, which it had alone; it is
    no part of the timing, which clients get and the master keeps."""

    task_id: TaskId
    attempt: int
    timing: SubtaskTiming
    gpu_use: tuple[GpuUsePart, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EndTask:
    """The task is over on this node: report it to the master, then remove its data."""

    task_id: TaskId
    attempt: int
    outcome: TaskOutcome
    message: str
    timings: tuple[SubtaskTiming, ...]


NodeCommand = StartSubtask | StopSubtask | ReportSubtask | EndTask
