"""Which platforms suit which applications, and which company does not: learned while they run.

Recurring applications are known by queue and name, where digits count as one sign: names have
dates and numbers in them. What is observed of each such *kind* is in ``kind_times``; here are all
of them, what queues want of platforms by the applications that they are to run, and what people
see. An application that has never run is taken to be like the queue's others.

Memory is bounded: of the queue with the most kinds, those that have not been seen for the longest
time are forgotten.

Limits: by name, an application that another program gets is the same one; it takes some forty
observations until the change is followed. Tasks are compared that differ in size only as far as
what they read shows it.

Source: HRM paper leaves run times by platform given, as the two-level fairness paper does; the
estimates are this project's own.
"""

from __future__ import annotations

import math
import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hrm.core.tenancy.completion import completed
from hrm.core.tenancy.fading_line import NORMAL_95
from hrm.core.tenancy.kind_times import (
    EXTRA_SPREAD,
    ApplicationKind,
    CompanySlowdown,
    KindTimes,
    TaskTimes,
)
from hrm.core.tenancy.observed_run_times import SLOPE, SLOPE_SPREAD
from hrm.core.vocabulary.columns import Bools, Floats
from hrm.errors import InvalidRequest

__all__ = [
    "CELLS_MAX",
    "KINDS_MAX",
    "Affinities",
    "ApplicationKind",
    "CoRunnerEstimate",
    "PlatformEstimate",
    "kind_of",
]

KINDS_MAX = 4_000
"""Kinds of applications that are followed."""

CELLS_MAX = 60_000
"""Estimates of all kinds together, some 700 bytes each."""

NAME_KEPT = 200
"""Characters of an application's name by which it is known."""

_LOG_MOST = 700.0
_DIGITS = re.compile(r"\d+")


def kind_of(queue: str, name: str) -> ApplicationKind:
    """Of applications of this queue and name; of whatever numbers."""
    return ApplicationKind(queue, _DIGITS.sub("#", name[:NAME_KEPT]))


@dataclass(frozen=True, slots=True, kw_only=True)
class PlatformEstimate:
    """What is known of one kind on one platform.

    ``run_s``: a task's mean run time alone, in seconds; ``relative``: to the kind's fastest
    platform, at least 1. ``factor``, ``relative_factor``: at least 1; the time is between ``run_s /
    factor`` and ``run_s * factor`` with a confidence of 95 %, and so is the relative one; infinite
    where too little is known. ``observations``: how many count, after fading.
    """

    kind: ApplicationKind
    platform: str
    run_s: float
    relative: float
    factor: float
    relative_factor: float
    observations: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CoRunnerEstimate:
    """What it does to tasks of ``kind`` that ``other`` is on all other cores of their node."""

    kind: ApplicationKind
    other: ApplicationKind
    slowdown: CompanySlowdown


class Affinities:
    """``version`` rises with each observation: what was computed at one stays right while it does.

    Invariant: ``_queues`` has all and only the kinds of ``_kinds``, by queue.
    """

    def __init__(self, kinds_max: int = KINDS_MAX, cells_max: int = CELLS_MAX) -> None:
        self.version = 0
        self._kinds_max = kinds_max
        self._cells_max = cells_max
        self._cells = 0
        self._kinds: OrderedDict[ApplicationKind, KindTimes] = OrderedDict()
        self._queues: dict[str, dict[ApplicationKind, None]] = {}

    def __len__(self) -> int:
        """How many kinds are known."""
        return len(self._kinds)

    def observe(
        self,
        queue: str,
        name: str,
        stage: str,
        platform: str,
        tasks: int,
        mean_s: float,
        load: float,
        company: Mapping[ApplicationKind, float],
        input_bytes: float = 0.0,
    ) -> None:
        """``tasks`` tasks of one stage, of an application called ``name``, took ``mean_s`` seconds
        each on one node.

        They count as one observation, however many they are: they ran at one time, on one node and
        in one company, and what that did to one it did to all. What they took in all is their
        weight among the stages.

        Args:
            load: the part of the node's other cores that running containers held, 0 to 1.
            company: of those cores, the parts by kind; tasks of the same kind are company, too.
            input_bytes: what one task read, on average; 0 where it is not known.

        Raises:
            InvalidRequest: a time or a number of tasks that is not above 0, or a load outside of 0
                to 1.
        """
        if not (0 < mean_s < math.inf and tasks > 0 and 0 <= load <= 1 and input_bytes >= 0):
            raise InvalidRequest(
                f"{tasks} tasks of {name} took {mean_s} s at a load of {load} for {input_bytes} "
                "bytes; times and numbers are above 0, loads from 0 to 1"
            )
        kind = kind_of(queue, name)
        known = self._kinds.get(kind)
        if known is None:
            known = self._kinds[kind] = KindTimes()
            self._queues.setdefault(queue, {})[kind] = None
        self._kinds.move_to_end(kind)
        before = known.cells
        known.observe(stage, TaskTimes(platform, tasks, mean_s, load, company, input_bytes))
        self._cells += known.cells - before
        while len(self._kinds) > self._kinds_max or self._cells > self._cells_max:
            if len(self._kinds) == 1:
                break
            self._forget_oldest()
        self.version += 1

    def run_times(
        self, queues: Mapping[str, Mapping[str, float]], platforms: Sequence[str]
    ) -> Floats:
        """Mean run times of each queue's tasks alone on a node, in seconds, by queue and platform:
        for ``hrm.policies.sharing.platform_affinity``.

        ``queues``: of each, the names of the applications that are to run and the cores that each
        wants; means are geometric, weighted by these. A name that has never run counts as the
        queue's other kinds do. What one queue has not run on a platform is inferred from the
        others; NaN where that is not possible.
        """
        shares = [self._shares(queue, names) for queue, names in queues.items()]
        kinds = list(dict.fromkeys(kind for share in shares for kind in share))
        of_kinds = completed(self._logs(kinds, platforms))
        rows = {kind: row for row, kind in enumerate(kinds)}
        logs = np.full((len(shares), len(platforms)), np.nan)
        for row, share in enumerate(shares):
            if share:
                weights = np.array(list(share.values()))
                logs[row] = weights @ of_kinds[[rows[kind] for kind in share]] / weights.sum()
        times: Floats = np.exp(np.clip(logs, -_LOG_MOST, _LOG_MOST))
        return times

    def has_run(self, queues: Mapping[str, Mapping[str, float]], platforms: Sequence[str]) -> Bools:
        """Where ``run_times`` rests on what has run there, of any of these applications; the same
        shape."""
        found = np.zeros((len(queues), len(platforms)), np.bool_)
        for row, (queue, names) in enumerate(queues.items()):
            kinds = self._shares(queue, names)
            there = {x for kind in kinds for x in self._kinds[kind].platforms}
            found[row] = [platform in there for platform in platforms]
        return found

    def table(self, kinds: Sequence[ApplicationKind], platforms: Sequence[str]) -> Floats:
        """The same by kind and platform, for kinds that are known."""
        logs = completed(self._logs(kinds, platforms))
        times: Floats = np.exp(np.clip(logs, -_LOG_MOST, _LOG_MOST))
        return times

    def speed(self, kind: ApplicationKind, platform: str) -> float | None:
        """Of its tasks alone on this platform, relative to the fastest of those that are known: at
        most 1. None: how long they take is known of no other, or not of this."""
        known = self._kinds.get(kind)
        times = {} if known is None else known.times()
        logs = {name: time.log for name, time in times.items() if time.half < math.inf}
        if len(logs) < 2 or platform not in logs:
            return None
        return _exp(min(logs.values()) - logs[platform])

    def slowdown(self, kind: ApplicationKind, other: ApplicationKind) -> CompanySlowdown:
        """Of tasks of ``kind`` where ``other`` is on all other cores of the node, relative to
        alone; that may be the same kind. Where little is known, what other company does to it, and
        what company does anywhere."""
        known = self._kinds.get(kind)
        if known is None:
            half = NORMAL_95 * math.hypot(SLOPE_SPREAD, EXTRA_SPREAD)
            return CompanySlowdown(math.exp(SLOPE), half, 0.0)
        return known.slowdown(other)

    def sensitivity(self, kind: ApplicationKind) -> CompanySlowdown:
        """Of tasks of ``kind`` on a full node, relative to alone, in company as it has had."""
        known = self._kinds.get(kind)
        if known is None:
            return CompanySlowdown(math.exp(SLOPE), NORMAL_95 * SLOPE_SPREAD, 0.0)
        return known.sensitivity()

    def kinds(self, queue: str | None = None) -> list[ApplicationKind]:
        """Those known of one queue, or of all; in order."""
        return sorted(self._kinds if queue is None else self._queues.get(queue, ()))

    def platforms(self) -> list[str]:
        """On which any has run; in order."""
        return sorted({platform for known in self._kinds.values() for platform in known.platforms})

    def estimates(self, kind: ApplicationKind) -> list[PlatformEstimate]:
        """Of one kind that is known, by platform, in order; only where it has run."""
        times = self._kinds[kind].times()
        fastest = min(times.values())
        return [
            PlatformEstimate(
                kind=kind,
                platform=platform,
                run_s=_exp(time.log),
                relative=_exp(time.log - fastest.log),
                factor=_factor(time.half),
                relative_factor=1.0 if time is fastest else _factor(time.half_to(fastest)),
                observations=time.observations,
            )
            for platform, time in sorted(times.items())
        ]

    def co_runners(self, kind: ApplicationKind) -> list[CoRunnerEstimate]:
        """Of one kind that is known, by what has been on its nodes; the worst first."""
        known = self._kinds[kind]
        rows = [
            CoRunnerEstimate(kind=kind, other=other, slowdown=known.slowdown(other))
            for other in known.co_runners
        ]
        return sorted(rows, key=lambda x: (-x.slowdown.factor, x.other))

    def _shares(self, queue: str, names: Mapping[str, float]) -> dict[ApplicationKind, float]:
        """How much each kind that is known counts for a queue that wants these."""
        ours = self._queues.get(queue)
        if not ours:
            return {}
        share: dict[ApplicationKind, float] = {}
        unknown = 0.0 if names else 1.0
        even = 0.0 if any(cores > 0 for cores in names.values()) else 1.0
        for name, cores in names.items():
            kind = kind_of(queue, name)
            wanted = max(cores, 0.0) or even
            if kind in ours:
                share[kind] = share.get(kind, 0.0) + wanted
            else:
                unknown += wanted
        if unknown > 0:
            run_s = {kind: self._kinds[kind].run_s for kind in ours}
            whole = sum(run_s.values())
            for kind, each_s in run_s.items():
                part = each_s / whole if whole > 0 else 1 / len(run_s)
                share[kind] = share.get(kind, 0.0) + unknown * part
        return {kind: each for kind, each in share.items() if each > 0}

    def _logs(self, kinds: Sequence[ApplicationKind], platforms: Sequence[str]) -> Floats:
        logs = np.full((len(kinds), len(platforms)), np.nan)
        columns = {platform: column for column, platform in enumerate(platforms)}
        for row, kind in enumerate(kinds):
            for platform, time in self._kinds[kind].times().items():
                column = columns.get(platform)
                if column is not None:
                    logs[row, column] = time.log
        return logs

    def _forget_oldest(self) -> None:
        """Of the queue that has the most: names without end of one push out none of others."""
        largest = max(self._queues, key=lambda queue: len(self._queues[queue]))
        kind = next(kind for kind in self._kinds if kind.queue == largest)
        known = self._kinds.pop(kind)
        self._cells -= known.cells
        ours = self._queues[kind.queue]
        del ours[kind]
        if not ours:
            del self._queues[kind.queue]


def _exp(log: float) -> float:
    return math.exp(min(max(log, -_LOG_MOST), _LOG_MOST))


def _factor(half: float) -> float:
    return math.exp(half) if half < _LOG_MOST else math.inf
