"""Volumes of the past, from the events of the master's journal.

A *task* is a container that started to run: of Spark an executor or a driver on a node, of
pipelines a worker. Counted are tasks by queue and the time in which nodes were busy, in buckets of
five minutes. What was already running when the journal begins, or was taken over after a restart,
is no new task.

What the journal lacks is *unknown*, not 0: what was dropped, what had been removed before it was
read, and the time between two masters, in which nothing could be written. Silence of one master is
0. An interval of which a tenth or more is unknown counts as unknown; with less, what is known of it
stands for the rest. Clocks that jump are repaired (``clock_repair``). Silence up to the present is
by the reader's clock, and stands only until there are events that say otherwise.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hrm.core.vocabulary.history import StateEvent
from hrm.forecast.clock_repair import repaired_times
from hrm.forecast.series import Floats, VolumeSeries
from hrm.forecast.steps import DAY_S, ForecastStep

__all__ = ["BUCKET_S", "CLOCK_TOLERANCE_S", "HISTORY_KEPT_S", "DemandHistory"]

BUCKET_S = 300
HISTORY_KEPT_S = 400 * DAY_S
UNKNOWN_PART_MAX = 0.1
CLOCK_TOLERANCE_S = 60.0
"""How far the master's clock and the reader's may differ."""
GAPS_KEPT = 10_000
_TIME_MAX_S = 1e11
_EPOCH_BITS = 32
_FORMAT = 1


@dataclass(slots=True)
class DemandHistory:
    """What has been read so far; ``add`` takes what follows.

    Attributes:
        tasks: by bucket (seconds since the epoch over ``BUCKET_S``) and queue.
        busy_s: by bucket, node time with at least one container, in seconds.
        gaps: pairs of times between which nothing is known, in order.
        begun_s: when the history begins; None: nothing has been read.
        until_s: up to when it goes.
        event_s: the time of the last event; what follows up to ``until_s`` is silence.
        last_id: number of the last event; 0: none.
        running: containers that run, each with its node.
        wrong_times: how many events had a time that cannot be right.
    """

    tasks: dict[int, Counter[str]] = field(default_factory=dict)
    busy_s: dict[int, float] = field(default_factory=dict)
    gaps: list[tuple[float, float]] = field(default_factory=list)
    begun_s: float | None = None
    until_s: float = 0.0
    event_s: float = 0.0
    last_id: int = 0
    running: dict[str, str] = field(default_factory=dict)
    wrong_times: int = 0
    _of_nodes: Counter[str] = field(default_factory=Counter)

    def add(
        self,
        events: Sequence[StateEvent],
        now: float,
        queue_of: Callable[[str], str] = lambda _: "",
        *,
        gap: bool = False,
    ) -> None:
        """Events that follow the last ones, in their order. ``queue_of``: of an application;
        empty: unknown. ``gap``: others before them have been removed."""
        events = [each for each in events if each.event_id > self.last_id]
        latest_s = now + CLOCK_TOLERANCE_S
        stated = [each.at_s for each in events]
        times, wrong = repaired_times(stated, min(self.event_s, latest_s), latest_s)
        self.wrong_times += wrong
        if times:
            self._take_back(times[0])
        if gap and events:
            self._lose(times[0])
        for event, at_s in zip(events, times, strict=True):
            self._take(event, at_s, queue_of)

    def reached(self, now: float) -> None:
        """All up to ``now`` has been read."""
        if self.begun_s is not None:
            if now < self.until_s - CLOCK_TOLERANCE_S:
                self._take_back(now)
            self._advance(max(now, self.until_s))
            self._forget()

    # --- one event ----------------------------------------------------------------------------

    def _take(self, event: StateEvent, at_s: float, queue_of: Callable[[str], str]) -> None:
        restarted = self.last_id and event.event_id >> _EPOCH_BITS != self.last_id >> _EPOCH_BITS
        if self.begun_s is None:
            self.begun_s = self.until_s = at_s
        elif event.kind == "journal" or (restarted and at_s - self.until_s > BUCKET_S):
            self._lose(at_s)
        self._advance(at_s)
        self.last_id, self.event_s = event.event_id, self.until_s
        if event.kind != "container":
            return
        name = event.container_id
        if event.to_state == "running" and name not in self.running:
            self.running[name] = event.node
            self._of_nodes[event.node] += 1
            if event.from_state:  # else it was running before, and a new master has learned of it
                queue = queue_of(event.application_id)
                self.tasks.setdefault(int(at_s // BUCKET_S), Counter())[queue] += 1
        elif event.to_state == "ended" and name in self.running:
            node = self.running.pop(name)
            self._of_nodes[node] -= 1
            if not self._of_nodes[node]:
                del self._of_nodes[node]

    def _lose(self, until_s: float) -> None:
        """Nothing is known of what was between the last event and ``until_s``: what ran may have
        ended."""
        if self.begun_s is None:
            return
        if until_s > self.until_s:
            self.gaps.append((self.until_s, until_s))
            del self.gaps[:-GAPS_KEPT]
            self.until_s = until_s
        self.running.clear()
        self._of_nodes.clear()

    def _advance(self, until_s: float) -> None:
        """Count node time up to ``until_s``."""
        busy, at_s = len(self._of_nodes), self.until_s
        while busy and at_s < until_s:
            bucket = int(at_s // BUCKET_S)
            end_s = min(until_s, (bucket + 1) * BUCKET_S)
            self.busy_s[bucket] = self.busy_s.get(bucket, 0.0) + busy * (end_s - at_s)
            at_s = end_s
        self.until_s = max(self.until_s, until_s)

    def _take_back(self, at_s: float) -> None:
        """Silence that lies after ``at_s`` was none: the reader's clock was ahead. Nothing is lost,
        for what is after the last event follows from it."""
        until_s = max(self.event_s, at_s)
        if until_s >= self.until_s:
            return
        for bucket in [bucket for bucket in self.busy_s if (bucket + 1) * BUCKET_S > until_s]:
            begin_s = max(until_s, bucket * BUCKET_S)
            end_s = min(self.until_s, (bucket + 1) * BUCKET_S)
            left_s = self.busy_s.pop(bucket) - len(self._of_nodes) * max(0.0, end_s - begin_s)
            if left_s > 1e-3:
                self.busy_s[bucket] = left_s
        self.until_s = until_s

    def _forget(self) -> None:
        """What is long before the last event. Not by the present: a clock that is ahead for a
        moment would take everything with it."""
        oldest_s = self.event_s - HISTORY_KEPT_S
        if self.begun_s is None or self.begun_s >= oldest_s - DAY_S:
            return
        self.begun_s = oldest_s
        first = int(oldest_s // BUCKET_S)
        self.tasks = {bucket: each for bucket, each in self.tasks.items() if bucket >= first}
        self.busy_s = {bucket: each for bucket, each in self.busy_s.items() if bucket >= first}
        self.gaps = [each for each in self.gaps if each[1] >= oldest_s]

    # --- for forecasts ------------------------------------------------------------------------

    def volumes(self, step: ForecastStep, queue: str = "") -> VolumeSeries:
        """Tasks by whole interval. ``queue``: of this one and those below it; empty: of all."""
        below = f"{queue}."
        counts = {
            bucket: float(
                sum(
                    count
                    for name, count in each.items()
                    if not queue or name == queue or name.startswith(below)
                )
            )
            for bucket, each in self.tasks.items()
        }
        return self._series(step, counts)

    def busy_nodes(self, step: ForecastStep) -> VolumeSeries:
        """Nodes that were busy, means over the same intervals."""
        parts = {bucket: each / step.seconds for bucket, each in self.busy_s.items()}
        return self._series(step, parts)

    @property
    def queues(self) -> list[str]:
        """Those that have had tasks."""
        return sorted({name for each in self.tasks.values() for name in each if name})

    def _series(self, step: ForecastStep, by_bucket: Mapping[int, float]) -> VolumeSeries:
        begun_s = max(self.begun_s or 0.0, self.until_s - HISTORY_KEPT_S - DAY_S)
        first = math.ceil(begun_s / step.seconds)
        count = max(0, int(self.until_s // step.seconds) - first)
        values = np.zeros(count)
        per_step = step.seconds // BUCKET_S
        for bucket, value in by_bucket.items():
            place = bucket // per_step - first
            if 0 <= place < count:
                values[place] += value
        known = 1.0 - self._unknown_parts(step.seconds, first, count)
        with np.errstate(invalid="ignore", divide="ignore"):
            values = np.where(known > 1.0 - UNKNOWN_PART_MAX, values / known, np.nan)
        return VolumeSeries(step=step, start_s=float(first * step.seconds), values=values)

    def _unknown_parts(self, seconds: int, first: int, count: int) -> Floats:
        parts = np.zeros(count)
        for from_s, to_s in self.gaps:
            begin, end = from_s / seconds - first, to_s / seconds - first
            for place in range(max(0, math.floor(begin)), min(count, math.ceil(end))):
                parts[place] += min(end, place + 1) - max(begin, place)
        return np.minimum(parts, 1.0)

    # --- as a document ------------------------------------------------------------------------

    def as_json(self) -> dict[str, Any]:
        return {
            "format": _FORMAT,
            "tasks": {str(bucket): dict(each) for bucket, each in self.tasks.items()},
            "busy_s": {str(bucket): round(each, 3) for bucket, each in self.busy_s.items()},
            "gaps": [list(each) for each in self.gaps],
            "begun_s": self.begun_s,
            "until_s": self.until_s,
            "event_s": self.event_s,
            "last_id": self.last_id,
            "running": self.running,
            "wrong_times": self.wrong_times,
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> DemandHistory:
        """The inverse of ``as_json``.

        Raises:
            ValueError: it is none.
        """
        if document.get("format") != _FORMAT:
            raise ValueError(f"its format is {document.get('format')!r}, not {_FORMAT}")
        try:
            running = {str(name): str(node) for name, node in document["running"].items()}
            begun_s, until_s = document["begun_s"], float(document["until_s"])
            found = cls(
                tasks={
                    int(bucket): Counter({str(q): int(n) for q, n in each.items()})
                    for bucket, each in document["tasks"].items()
                },
                busy_s={int(bucket): float(x) for bucket, x in document["busy_s"].items()},
                gaps=[(float(from_s), float(to_s)) for from_s, to_s in document["gaps"]],
                begun_s=None if begun_s is None else float(begun_s),
                until_s=until_s,
                event_s=float(document.get("event_s", until_s)),
                last_id=int(document["last_id"]),
                running=running,
                wrong_times=int(document["wrong_times"]),
                _of_nodes=Counter(running.values()),
            )
        except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
            raise ValueError(f"it cannot be read: {error!r}") from error
        found._check()
        return found

    def _check(self) -> None:
        """Raises ValueError if there are times that no event can have had."""
        times = [self.begun_s or 0.0, self.until_s, self.event_s]
        times += [each for gap in self.gaps for each in gap]
        times += [float(bucket * BUCKET_S) for bucket in (*self.tasks, *self.busy_s)]
        if not all(0 <= each < _TIME_MAX_S for each in times):
            raise ValueError("it has times of no calendar")
        if not all(0 <= each < math.inf for each in self.busy_s.values()):
            raise ValueError("it has node time that is no number")
