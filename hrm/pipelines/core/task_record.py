"""What the master's core keeps of a task, and how it is described to people."""

from __future__ import annotations

from dataclasses import dataclass, field

from hrm.core.vocabulary.model import NodeName
from hrm.pipelines.core import cluster_messages as m
from hrm.pipelines.core.model import TaskSpec
from hrm.pipelines.core.node_messages import SubtaskTiming, TaskOutcome

__all__ = ["TaskRecord", "choices_in_words", "is_possible", "outcome_in_words"]

_TIMINGS_FACTOR = 16
"""Runs of a task that are kept, to those that its steps may have in one placement."""

_CHOSEN_MAX = 20
"""The latest steps that ``choices_in_words`` reports."""


@dataclass(slots=True, eq=False)
class TaskRecord:
    """The state of a task. ``arrival``: its number among those that came here; ``node``: where it
    is placed, None in the queue and at the end; ``attempt`` counts placements; ``losses``: those of
    them that failed; ``refused_at``: machines that could not run it; ``before``: why its latest
    placement failed; ``placed_by``, ``fallback``: of its node, as in ``Choice``."""

    spec: TaskSpec
    arrival: int = 0
    node: NodeName | None = None
    attempt: int = 0
    losses: int = 0
    given_back: int = 0
    why: str = "it is in the queue"
    placed_by: str = ""
    fallback: str = ""
    before: str = ""
    refused_at: set[str] = field(default_factory=set)
    timings: list[SubtaskTiming] = field(default_factory=list)
    outcome: TaskOutcome | None = None
    message: str = ""

    @property
    def number(self) -> int:
        """Of its latest placement, for people."""
        return m.placement_number(self.attempt)


def outcome_in_words(record: TaskRecord) -> str:
    """How a task has ended."""
    assert record.outcome is not None, "it has ended"
    return f"{record.outcome.value}{': ' if record.message else ''}{record.message}"


def choices_in_words(record: TaskRecord) -> list[str]:
    """Lines: the policies that chose the task's node and its steps' devices, and why not the
    learned ones."""
    lines = [_by("its worker was chosen", record.placed_by, record.fallback)]
    lines += [
        _by(f"{x.key.subtask} on {x.device.value} {x.number}", x.placed_by, x.fallback)
        for x in record.timings[-_CHOSEN_MAX:]
    ]
    return [line for line in lines if line]


def _by(what: str, decided_by: str, fallback: str) -> str:
    if not decided_by:
        return ""
    return (
        f"{what} by {decided_by}{', not by the policy in charge: ' if fallback else ''}{fallback}"
    )


def is_possible(record: TaskRecord, timing: SubtaskTiming) -> bool:
    """Whether a step of the task can have run so. Users' code runs beside a worker, and may say
    what it wants; what it says is kept until the task ends."""
    steps = record.spec.pipeline.subtasks
    step = next((x for x in steps if x.name == timing.key.subtask), None)
    if step is None or timing.device not in step.devices or timing.row.kind != step.kind:
        return False
    return len(record.timings) < _TIMINGS_FACTOR * sum(x.attempts for x in steps)
