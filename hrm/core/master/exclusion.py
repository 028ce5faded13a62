"""Nodes on which whatever starts fails, and how long they get nothing more.

A node with a full disk or a broken Java is the emptiest of a cluster: whatever it gets ends at
once, so it gets the next container. Each container that *fails quickly* (it ended badly, by itself,
soon after its start, or could not be started) counts against its node, twice:

- per application: after ``node_failures`` of them within ``node_failure_window_s`` the node is
  excluded for that application;
- per cluster: after that has happened to ``node_failing_applications`` applications, it is excluded
  for all.

An exclusion ends by itself. If the node then fails once more, the next one follows at once and is
twice as long, from ``node_exclusion_s`` to ``node_exclusion_max_s``; a node without failures for
the latter time starts again at the former. What fails during an exclusion, for one application or
for all, was there before it and does not count for the next one: the node is tried first.

A node that lacks what an application needs (its user, its version of Spark or Python, a file) is
excluded for that application, at the first such end, and for no other.

Where the application is at fault, its failures do not count before those of others: one that fails
on more than half of the nodes, or that has ended badly ``CONFIRM_S`` later (executors whose driver
died end like those of a bad node). Failures of drivers never count against a node for others.

The last node is never excluded: where none of the others could ever hold a container, it goes to an
excluded one all the same (``ClusterView.avoid``), and ``hrm app why`` reports it.

Observation, not intent: the next master begins without any. Spark's ``spark.excludeOnFailure``
counts failures of tasks and needs a live executor; this one counts failures of executors.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from hrm.core.vocabulary.bounds import Bounds
from hrm.core.vocabulary.ends import end_rule
from hrm.core.vocabulary.event_table import Watch
from hrm.core.vocabulary.history import ExclusionState
from hrm.core.vocabulary.model import ApplicationId, ContainerEnd, NodeName

__all__ = ["CONFIRM_S", "Exclusion", "ExclusionTracker"]

CONFIRM_S = 5.0
"""How long an application must outlive its report against a node, for the report to count."""
NO_NODES: frozenset[NodeName] = frozenset()


@dataclass(frozen=True, slots=True)
class Exclusion:
    """One exclusion in force; ``why`` is the reason as text."""

    node: NodeName
    until_s: float
    why: str


@dataclass(slots=True)
class _Standing:
    """A node's failures and exclusions, for one application or for all.

    ``level``: exclusions in a row. ``strikes``: times of the failures that still count.
    ``announced``: its exclusion has been reported, its end has not. ``due_s``: when a tick is to
    look at it.
    """

    strikes: list[float] = field(default_factory=list)
    level: int = 0
    until_s: float = 0.0
    why: str = ""
    announced: bool = False
    due_s: float = math.inf


@dataclass(slots=True)
class _FailureReport:
    """An application has excluded a node. ``confirmed``: it counts, whatever happens. ``due_s``:
    when it is confirmed or dropped; when confirmed, when it is too old to count."""

    at_s: float
    due_s: float
    confirmed: bool = False


class ExclusionTracker:
    """The exclusions per application and for all.

    Invariants: an exclusion is in force iff ``now < until_s``, which is never further away than
    ``node_exclusion_max_s``. What can no longer matter is forgotten at the next ``tick``. ``watch``
    is called once when an exclusion begins, and once, at a ``tick``, when it is over. ``version``
    rises then, and ``changed`` gets the application, if it was about one, for the owner to empty.

    A tick costs what is due at it, however many failures are kept: ``_due`` is a heap with one
    valid entry of each standing and report, at its ``due_s``. ``_reports`` are those since the
    node's last exclusion for all. ``_announced`` holds the standings that are announced, by
    application, "" for all.
    """

    def __init__(self, bounds: Bounds, watch: Watch | None = None) -> None:
        self._bounds = bounds
        self._watch = watch
        self._applications: dict[ApplicationId, dict[NodeName, _Standing]] = {}
        self._nodes: dict[NodeName, _Standing] = {}
        self._reports: dict[NodeName, dict[ApplicationId, _FailureReport]] = {}
        self._announced: dict[str, dict[NodeName, _Standing]] = {}
        self._due: list[tuple[float, int, str, NodeName, _Standing | _FailureReport]] = []
        self._entries = itertools.count(1)
        self._admitted = False
        self.changed: dict[ApplicationId, None] = {}
        self.version = 0

    @property
    def open(self) -> bool:
        """Is there anything to evaluate or to forget?"""
        return bool(self._applications or self._nodes or self._reports)

    def failed(
        self, application_id: ApplicationId, node: NodeName, end: ContainerEnd, now: float
    ) -> bool:
        """A container has failed quickly. True: the node is excluded for its application now."""
        bounds = self._bounds
        shared = end_rule(end).against_node
        if not bounds.node_failures or (shared and self._is_excluded_for_all(node, now)):
            return False
        standing = self._applications.setdefault(application_id, {}).setdefault(node, _Standing())
        self._age(standing, now)
        if now < standing.until_s:
            return False
        standing.strikes.append(now)
        self._set_due(application_id, node, standing)
        strikes = len(standing.strikes)
        if strikes < (1 if standing.level or not shared else bounds.node_failures):
            return False
        how = end.message or f"exit code {end.exit_code}"
        some = f"{strikes} of its containers" if strikes > 1 else "another of its containers"
        why = f"{some} failed there at once, the last: {how}" if shared else how
        self._exclude(node, application_id, standing, now, why)
        if shared:
            self._report(application_id, node, now)
        return True

    def take_admitted(self) -> bool:
        """Has any exclusion ended since the last call? What waits may be tried there at once."""
        admitted, self._admitted = self._admitted, False
        return admitted

    def tick(
        self, now: float, in_order: Callable[[ApplicationId], bool], nodes_alive: Callable[[], int]
    ) -> list[NodeName]:
        """Evaluate the reports, and forget old ones; returns the nodes newly excluded for all.

        ``in_order``: is there no sign that this application itself is at fault? It lives with an
        AppMaster, or it succeeded.
        """
        due, reported = self._take_due(now)
        for application_id, node, standing in due:
            if standing.announced and now >= standing.until_s:
                self._admit(node, application_id, standing, now, "its time is over")
        at_fault = _Faults(self._applications, in_order, nodes_alive)
        for application_id, node, report in reported:
            self._confirm_or_drop(application_id, node, report, at_fault)
        nodes = dict.fromkeys(node for _, node, _ in reported)
        found = [node for node in nodes if self._exclude_for_all(node, now)]
        for application_id, node, standing in due:
            self._forget_or_keep(application_id, node, standing, now)
        return found

    def avoided(self, application_id: ApplicationId, now: float) -> frozenset[NodeName]:
        """The nodes that are to get no container of this application."""
        if not self._announced:
            return NO_NODES
        return self._in_force("", now) | self._in_force(application_id, now)

    def avoided_alone(self, application_id: ApplicationId, now: float) -> frozenset[NodeName]:
        """The nodes that are excluded for this application, whether or not for all."""
        return self._in_force(application_id, now)

    def next_end_s(self, now: float) -> float:
        """When the next exclusion in force will end; infinite without any."""
        announced = (x for standings in self._announced.values() for x in standings.values())
        return min((x.until_s for x in announced if now < x.until_s), default=math.inf)

    def avoided_by_all(self, now: float) -> frozenset[NodeName]:
        """The nodes that are to get no container of any application."""
        return self._in_force("", now)

    def _in_force(self, application_id: str, now: float) -> frozenset[NodeName]:
        announced = self._announced.get(application_id)
        if not announced:
            return NO_NODES
        return frozenset(node for node, x in announced.items() if now < x.until_s)

    @property
    def applications(self) -> Iterable[ApplicationId]:
        """Those that have exclusions of their own, in force or over since the last tick."""
        return (ApplicationId(x) for x in self._announced if x)

    def of_application(self, application_id: ApplicationId, now: float) -> list[Exclusion]:
        """Those in force for this application alone."""
        return _listed(self._announced.get(application_id, {}), now)

    def of_all(self, now: float) -> list[Exclusion]:
        """Those in force for every application."""
        return _listed(self._announced.get("", {}), now)

    def applications_without(
        self, node: NodeName, now: float, among: Container[ApplicationId]
    ) -> int:
        """For how many of these applications alone this node is excluded."""
        own = (x.get(node) for name, x in self._announced.items() if name and name in among)
        return sum(now < standing.until_s for standing in own if standing is not None)

    def clear(self, node: NodeName, now: float, why: str) -> None:
        """Forget all reports against a node: it is another machine, or an operator cleared it."""
        for application_id, standings in list(self._announced.items()):
            if node in standings:
                self._admit(node, application_id, standings[node], now, why)
        self._nodes.pop(node, None)
        self._reports.pop(node, None)
        for application, standings in list(self._applications.items()):
            standings.pop(node, None)
            if not standings:
                del self._applications[application]

    def _report(self, application_id: ApplicationId, node: NodeName, now: float) -> None:
        """Have it count against the node for all."""
        report = _FailureReport(now, now + CONFIRM_S)
        self._reports.setdefault(node, {})[application_id] = report
        self._push(application_id, node, report)

    def _is_excluded_for_all(self, node: NodeName, now: float) -> bool:
        for_all = self._nodes.get(node)
        return for_all is not None and now < for_all.until_s

    def _confirm_or_drop(
        self,
        application_id: ApplicationId,
        node: NodeName,
        report: _FailureReport,
        at_fault: _Faults,
    ) -> None:
        if report.confirmed or at_fault.has(application_id):
            reports = self._reports[node]
            del reports[application_id]
            if not reports:
                del self._reports[node]
        else:
            report.confirmed = True
            report.due_s = report.at_s + self._bounds.node_failure_window_s
            self._push(application_id, node, report)

    def _exclude_for_all(self, node: NodeName, now: float) -> bool:
        """Exclude it if as many confirmed reports as are needed say so; returns whether."""
        reports = self._reports.get(node, {})
        confirmed_by = [x for x, report in reports.items() if report.confirmed]
        standing = self._nodes.get(node) or _Standing()
        self._age(standing, now)
        needed = 1 if standing.level else self._bounds.node_failing_applications
        if len(confirmed_by) < needed:
            return False
        self._nodes[node] = standing
        shown, many = ", ".join(confirmed_by[-3:]), len(confirmed_by)
        who = f"executors of {many} applications" if many > 1 else "executors"
        self._exclude(node, "", standing, now, f"{who} failed there at once: {shown}")
        del self._reports[node]
        return True

    def _exclude(
        self, node: NodeName, application_id: str, standing: _Standing, now: float, why: str
    ) -> None:
        if standing.announced:  # it was over, but no tick has come since
            self._admit(node, application_id, standing, now, "its time is over")
        bounds = self._bounds
        doubled_s = bounds.node_exclusion_s * 2.0 ** min(standing.level, 30)
        length_s = min(doubled_s, bounds.node_exclusion_max_s)
        standing.until_s = now + length_s
        standing.level += 1
        standing.why = why
        standing.strikes.clear()
        standing.announced = True
        self._announced.setdefault(application_id, {})[node] = standing
        self._set_due(application_id, node, standing)
        self._note_change(application_id)
        if self._watch is not None:
            until = datetime.fromtimestamp(standing.until_s, UTC).strftime("%Y-%m-%d %H:%M:%S")
            announced = f"{_for(application_id)} for {length_s:g} s, until {until} UTC: {why}"
            self._watch(
                ("node", node, application_id, None, ExclusionState.EXCLUDED, now, announced)
            )

    def _admit(
        self, node: NodeName, application_id: str, standing: _Standing, now: float, why: str
    ) -> None:
        standing.announced = False
        others = self._announced[application_id]
        del others[node]
        if not others:
            del self._announced[application_id]
        self._admitted = True
        self._note_change(application_id)
        if self._watch is not None:
            was, announced = ExclusionState.EXCLUDED, f"{_for(application_id)}: {why}"
            self._watch(
                ("node", node, application_id, was, ExclusionState.ADMITTED, now, announced)
            )

    def _note_change(self, application_id: str) -> None:
        self.version += 1
        if application_id:
            self.changed[ApplicationId(application_id)] = None

    def _age(self, standing: _Standing, now: float) -> None:
        while standing.strikes and standing.strikes[0] <= now - self._bounds.node_failure_window_s:
            del standing.strikes[0]
        if standing.level and now - standing.until_s > self._bounds.node_exclusion_max_s:
            standing.level = 0

    def _set_due(self, application_id: str, node: NodeName, standing: _Standing) -> None:
        """Have a tick look at it no later than something about it ends."""
        ends_s = [standing.until_s] if standing.announced else []
        if standing.strikes:
            ends_s.append(standing.strikes[0] + self._bounds.node_failure_window_s)
        if standing.level:
            ends_s.append(standing.until_s + self._bounds.node_exclusion_max_s)
        first_s = min(ends_s)
        if first_s < standing.due_s:
            standing.due_s = first_s
            self._push(application_id, node, standing)

    def _push(
        self, application_id: str, node: NodeName, subject: _Standing | _FailureReport
    ) -> None:
        entry = (subject.due_s, next(self._entries), application_id, node, subject)
        heapq.heappush(self._due, entry)

    def _take_due(
        self, now: float
    ) -> tuple[
        list[tuple[str, NodeName, _Standing]], list[tuple[ApplicationId, NodeName, _FailureReport]]
    ]:
        """The standings and the reports that are due, in the order of that; none is from now on."""
        standings, reports = [], []
        while self._due and self._due[0][0] <= now:
            due_s, _, name, node, subject = heapq.heappop(self._due)
            if due_s != subject.due_s:
                continue
            application_id = ApplicationId(name)
            if isinstance(subject, _Standing):
                if self._find(name, node) is subject:
                    subject.due_s = math.inf
                    standings.append((name, node, subject))
            elif self._reports.get(node, {}).get(application_id) is subject:
                subject.due_s = math.inf
                reports.append((application_id, node, subject))
        return standings, reports

    def _find(self, application_id: str, node: NodeName) -> _Standing | None:
        if not application_id:
            return self._nodes.get(node)
        return self._applications.get(ApplicationId(application_id), {}).get(node)

    def _forget_or_keep(
        self, application_id: str, node: NodeName, standing: _Standing, now: float
    ) -> None:
        self._age(standing, now)
        if standing.strikes or standing.level:
            self._set_due(application_id, node, standing)
        elif not application_id:
            del self._nodes[node]
        else:
            standings = self._applications[ApplicationId(application_id)]
            del standings[node]
            if not standings:
                del self._applications[ApplicationId(application_id)]


class _Faults:
    """Which applications are at fault themselves, each looked at once in a tick."""

    def __init__(
        self,
        applications: dict[ApplicationId, dict[NodeName, _Standing]],
        in_order: Callable[[ApplicationId], bool],
        nodes_alive: Callable[[], int],
    ) -> None:
        self._applications = applications
        self._in_order = in_order
        self._count_alive = nodes_alive
        self._alive: int | None = None
        self._known: dict[ApplicationId, bool] = {}

    def has(self, application_id: ApplicationId) -> bool:
        """Is there a sign that it is, or does it fail on more than half of the nodes?"""
        known = self._known.get(application_id)
        if known is None:
            if self._alive is None:
                self._alive = self._count_alive()
            own = self._applications.get(application_id, {}).values()
            many = 2 * sum(standing.level > 0 for standing in own) > self._alive
            known = self._known[application_id] = many or not self._in_order(application_id)
        return known


def _for(application_id: str) -> str:
    return f"for {application_id or 'every application'}"


def _listed(standings: dict[NodeName, _Standing], now: float) -> list[Exclusion]:
    return [
        Exclusion(node, standing.until_s, standing.why)
        for node, standing in standings.items()
        if now < standing.until_s
    ]
