"""Figures from Spark's own event logs and progress reports. No clock, no processes.

*Utilisation* is the time that tasks which succeeded held a slot within the window, over slots times
the window's length. A task that waits for its input holds its slot. A task that more competition
for real cores makes longer would hold it longer, too, without doing more: so ``cpu_s`` counts the
processor time of the same tasks, and ``stretch`` compares the slot time of the same jobs.
"""

from __future__ import annotations

import datetime
import json
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.common import Ratio
from benchmarks.scheduling.cells import percentile

__all__ = [
    "MicroBatch",
    "Task",
    "Use",
    "at_work_s",
    "delays",
    "events_of",
    "micro_batches",
    "percentile_ratio",
    "read_tasks",
    "slot_seconds",
    "stream_complaints",
    "use",
]

_RESAMPLES = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One attempt of a task; seconds since the epoch, processor seconds of its thread."""

    launched_s: float
    finished_s: float
    cpu_s: float
    succeeded: bool

    def within(self, begin_s: float, end_s: float) -> float:
        """Seconds of it between these two moments."""
        return max(0.0, min(self.finished_s, end_s) - max(self.launched_s, begin_s))


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """Of some slots in a window: seconds that tasks held them, by tasks that succeeded
    (``slot_s``) and others (``wasted_s``); the former's processor time."""

    slot_s: float
    wasted_s: float
    cpu_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """``files``: those counted in all after it. ``top``: the result after it."""

    begun_s: float
    seconds: float
    files: int
    top: list[list[Any]] | None


def events_of(directory: Path, kind: str) -> Iterator[dict[str, Any]]:
    """Events of this kind in all event logs below ``directory``; a line cut short is left out."""
    prefix = f'{{"Event":"{kind}"'
    for path in sorted(p for p in directory.rglob("*") if p.is_file() and p.suffix != ".crc"):
        with path.open(errors="replace") as lines:
            for line in lines:
                if line.startswith(prefix) and line.endswith("}\n"):
                    yield json.loads(line)


def read_tasks(directory: Path) -> list[Task]:
    """Every attempt that ended, from the event logs below ``directory``."""
    found = []
    for event in events_of(directory, "SparkListenerTaskEnd"):
        info, metrics = event["Task Info"], event.get("Task Metrics") or {}
        found.append(
            Task(
                launched_s=info["Launch Time"] / 1000,
                finished_s=info["Finish Time"] / 1000,
                cpu_s=metrics.get("Executor CPU Time", 0) / 1e9,
                succeeded=event["Task End Reason"]["Reason"] == "Success",
            )
        )
    return found


def use(tasks: Sequence[Task], begin_s: float, end_s: float) -> Use:
    """What ``tasks`` held and used between two moments; processor time in proportion."""
    slot_s = wasted_s = cpu_s = 0.0
    for task in tasks:
        held_s = task.within(begin_s, end_s)
        if not task.succeeded:
            wasted_s += held_s
            continue
        slot_s += held_s
        if held_s:
            cpu_s += task.cpu_s * held_s / (task.finished_s - task.launched_s)
    return Use(slot_s=slot_s, wasted_s=wasted_s, cpu_s=cpu_s)


def at_work_s(tasks: Sequence[Task], batch: MicroBatch) -> float:
    """Seconds of a micro-batch in which at least one of ``tasks`` ran: reading and counting. The
    rest is its driver's: planning, writing what it has done, and waiting for a slot."""
    end_s = batch.begun_s + batch.seconds
    spans = sorted(
        (max(task.launched_s, batch.begun_s), min(task.finished_s, end_s))
        for task in tasks
        if task.within(batch.begun_s, end_s) > 0
    )
    found, reached_s = 0.0, batch.begun_s
    for launched_s, finished_s in spans:
        found += max(0.0, finished_s - max(launched_s, reached_s))
        reached_s = max(reached_s, finished_s)
    return found


def slot_seconds(tasks: Sequence[Task]) -> float:
    """Seconds that those which succeeded held a slot: what a job costs."""
    return sum(task.finished_s - task.launched_s for task in tasks if task.succeeded)


def _epoch_s(text: str) -> float:
    return datetime.datetime.fromisoformat(text).timestamp()


def micro_batches(result: Mapping[str, Any], rows_per_file: int) -> list[MicroBatch]:
    """The stream's micro-batches, from the last line that it printed."""
    found, files = [], 0
    for each in result["micro_batches"]:
        files += math.ceil(each["rows"] / rows_per_file)
        found.append(
            MicroBatch(
                begun_s=_epoch_s(each["trigger"]),
                seconds=each["ms"] / 1000,
                files=files,
                top=each["top"],
            )
        )
    return found


def delays(batches: Sequence[MicroBatch], delivered_s: Sequence[float]) -> list[float]:
    """Of each file, seconds from its delivery to the end of the micro-batch that counted it."""
    found: list[float] = []
    for batch in batches:
        ended_s = batch.begun_s + batch.seconds
        found += [ended_s - at_s for at_s in delivered_s[len(found) : batch.files]]
    return found


def stream_complaints(
    batches: Sequence[MicroBatch], expected: Sequence[Any], delivered: int
) -> list[str]:
    """Compare the result after every micro-batch with the exact one after as many files; in the
    end, all that were delivered."""
    complaints = [
        f"after {batch.files} files: {batch.top}, expected {expected[batch.files - 1]}"
        for batch in batches
        if batch.files > len(expected) or batch.top != expected[batch.files - 1]
    ]
    counted = batches[-1].files if batches else 0
    if counted != delivered:
        complaints.append(f"{counted} files counted of {delivered}")
    return complaints


def percentile_ratio(
    ours: Sequence[float], peers: Sequence[float], share: float, seed: int = 0
) -> Ratio:
    """``percentile(ours) / percentile(peers)`` with a percentile bootstrap interval."""
    if not ours or not peers:
        raise ValueError("a ratio needs at least one value on either side")
    generator = random.Random(seed)
    resampled = sorted(
        percentile(generator.choices(ours, k=len(ours)), share)
        / percentile(generator.choices(peers, k=len(peers)), share)
        for _ in range(_RESAMPLES)
    )
    last = len(resampled) - 1
    return Ratio(
        value=percentile(ours, share) / percentile(peers, share),
        low=resampled[round(0.025 * last)],
        high=resampled[round(0.975 * last)],
    )
