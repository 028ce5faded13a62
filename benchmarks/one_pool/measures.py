"""Figures of an arm from spans of time. No clock, no processes.

Slots are *used* while a Spark task that succeeded or a step of a pipeline runs. There is a
*backlog* while work waits for a slot: a task of a Spark stage that has been submitted, or a
pipeline task that has not begun. Slots that are free then are what a better division would use.

Cores are *held* while a container has them. What no container asks for no manager can give: so how
many are held is measured while one waits that has been requested.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.sharing.measures import Task, events_of

__all__ = [
    "Held",
    "Span",
    "covered_s",
    "held_part",
    "overlap_s",
    "stage_waits",
    "task_spans",
    "union",
]

Span = tuple[float, float]
"""From when until when, seconds since the epoch."""
_PLACED_S = 1.0
"""Longer than the way of a request through an idle cluster."""


def union(spans: Iterable[Span]) -> list[Span]:
    """The moments that are in at least one of them, as spans that do not touch."""
    found: list[Span] = []
    for begun_s, ended_s in sorted(each for each in spans if each[1] > each[0]):
        if found and begun_s <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], ended_s))
        else:
            found.append((begun_s, ended_s))
    return found


def covered_s(spans: Iterable[Span], within: Span) -> float:
    """Seconds of all of them, each for itself, in ``within``."""
    begin_s, end_s = within
    return sum(max(0.0, min(end, end_s) - max(begun, begin_s)) for begun, end in spans)


def overlap_s(spans: Sequence[Span], windows: Iterable[Span]) -> float:
    """Seconds of all spans in windows that do not touch."""
    return sum(covered_s(spans, window) for window in windows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A container of ``vcores``; moments are seconds since the epoch, None: not yet."""

    vcores: int
    requested_s: float
    started_s: float | None
    ended_s: float | None


def held_part(containers: Iterable[Held], within: Span, capacity: int) -> float | None:
    """Part of ``capacity`` cores that containers held while one waited that had been requested more
    than ``_PLACED_S`` before; None: none did."""
    known, (begin_s, end_s) = list(containers), within
    waits = [
        (each.requested_s + _PLACED_S, each.started_s or each.ended_s or end_s) for each in known
    ]
    inside = [(max(a, begin_s), min(b, end_s)) for a, b in union(waits)]
    inside = [(a, b) for a, b in inside if b > a]
    waited_s = covered_s(inside, within)
    if not waited_s:
        return None
    held_s = sum(
        each.vcores * overlap_s([(each.started_s, each.ended_s or end_s)], inside)
        for each in known
        if each.started_s
    )
    return held_s / waited_s / capacity


def task_spans(tasks: Iterable[Task]) -> list[Span]:
    """When Spark tasks that succeeded held their slots."""
    return [(task.launched_s, task.finished_s) for task in tasks if task.succeeded]


def stage_waits(directory: Path) -> list[Span]:
    """From an application's event log: of each attempt of a stage, from its submission until the
    last of its tasks was launched."""
    submitted: dict[tuple[int, int], float] = {}
    for event in events_of(directory, "SparkListenerStageSubmitted"):
        info = event["Stage Info"]
        if "Submission Time" in info:
            key = info["Stage ID"], info["Stage Attempt ID"]
            submitted[key] = info["Submission Time"] / 1000
    launched: dict[tuple[int, int], float] = {}
    for event in events_of(directory, "SparkListenerTaskEnd"):
        key = event["Stage ID"], event["Stage Attempt ID"]
        at_s = event["Task Info"]["Launch Time"] / 1000
        launched[key] = max(launched.get(key, 0.0), at_s)
    return [(at_s, launched[key]) for key, at_s in submitted.items() if key in launched]
