"""What the master's core keeps of a task, and how it is described to people."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from hrm.core.vocabulary.model import NodeName
from hrm.pipelines.core import cluster_messages as m
from hrm.pipelines.core.model import SubtaskKey, TaskSpec
from hrm.pipelines.core.node_messages import SubtaskTiming, TaskOutcome

__all__ = [
    "TIMINGS_BYTES_MAX",
    "TaskRecord",
    "choices_in_words",
    "is_possible",
    "keep_timing",
    "outcome_in_words",
]

_TIMINGS_FACTOR = 4
"""Runs of a task that are kept, to the attempts of its steps. A placement has three times as many
at most: two runs of a step that find too little device memory are no attempts."""
TIMINGS_BYTES_MAX = 512 << 10
"""What is kept of the runs of one task, as ``_timing_bytes`` counts: a hundred steps with long
names and errors are some 100 KiB."""
_TIMING_BYTES = 256
"""Of a run's numbers."""

_CHOSEN_MAX = 20
"""The latest steps that ``choices_in_words`` reports."""


@dataclass(slots=True, eq=False)
class TaskRecord:
    """The state of a task. ``arrival``: its number among those that came here; ``node``: where it
    is placed, None in the queue and at the end; ``attempt`` counts placements; ``losses``: those of
    them that failed; ``refused_at``: machines that could not run it; ``before``: why its latest
    placement failed; ``placed_by``, ``fallback``: of its node, as in ``Choice``; ``timings``,
    ``timing_bytes``: its runs and what they take, which ``keep_timing`` adds to."""

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
    timing_bytes: int = 0
    outcome: TaskOutcome | None = None
    message: str = ""

    @property
    def number(self) -> int:
        """Of its latest placement, for people."""
        return m.placement_number(self.attempt)

    @property
    def kept_bytes(self) -> int:
        """About what it takes in the memory and the store, once it has ended."""
        steps = self.spec.pipeline.subtasks
        texts = sum(len(x.name) + len(x.kind) + sum(map(len, x.after)) for x in steps)
        return texts + self.timing_bytes + len(self.message)

    def drop_timings(self) -> None:
        """It is placed again, or they are about to be replaced by what its worker has of them."""
        self.timings, self.timing_bytes = [], 0


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


def keep_timing(record: TaskRecord, timing: SubtaskTiming) -> SubtaskTiming | None:
    """Add a run to ``record``, and return what is kept of it; None: nothing, because it is not
    possible or there is no space.

    Co-runners and cells are for the estimates, which have them by then: nothing reads them later.
    Where the texts of a run would exceed ``TIMINGS_BYTES_MAX``, its numbers are kept alone.
    """
    if not is_possible(record, timing):
        return None
    step = next(x for x in record.spec.pipeline.subtasks if x.name == timing.key.subtask)
    kept = replace(
        timing,
        key=SubtaskKey(record.spec.task_id, step.name),
        row=timing.row._replace(kind=step.kind),
        co_runners=(),
        cells={},
    )
    if record.timing_bytes + _timing_bytes(kept) > TIMINGS_BYTES_MAX:
        kept = replace(kept, message="", placed_by="", fallback="")
    size = _timing_bytes(kept)
    if record.timing_bytes + size > TIMINGS_BYTES_MAX:
        return None
    record.timings.append(kept)
    record.timing_bytes += size
    return kept


def _timing_bytes(timing: SubtaskTiming) -> int:
    names = (timing.key.subtask, timing.row.kind, timing.row.gpu_model)
    texts = (timing.message, timing.placed_by, timing.fallback)
    return _TIMING_BYTES + sum(map(len, names)) + sum(map(len, texts))
