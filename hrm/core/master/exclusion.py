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
the latter time starts again at the former.

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

import math
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator
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
    ``announced``: its exclusion has been reported, its end has not.
    """

    strikes: deque[float] = field(default_factory=deque)
    level: int = 0
    until_s: float = 0.0
    why: str = ""
    announced: bool = False


@dataclass(slots=True)
class _FailureReport:
    """An application has excluded a node. ``confirmed``: it counts, whatever happens."""

    at_s: float
    confirmed: bool = False


class ExclusionTracker:
    """The exclusions per application and for all.

    Invariants: an exclusion is in force iff ``now < until_s``, which is never further away than
    ``node_exclusion_max_s``. What can no longer matter is forgotten at the next ``tick``. ``watch``
    is called once when an exclusion begins, and once, at a ``tick``, when it is over. ``version``
    rises then, and ``changed`` gets the application, if it was about one, for the owner to empty.
    """

    def __init__(self, bounds: Bounds, watch: Watch | None = None) -> None:
        self._bounds = bounds
        self._watch = watch
        self._applications: dict[ApplicationId, dict[NodeName, _Standing]] = {}
        self._nodes: dict[NodeName, _Standing] = {}
        self._reports: dict[NodeName, dict[ApplicationId, _FailureReport]] = {}
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
        if not bounds.node_failures:
            return False
        standing = self._applications.setdefault(application_id, {}).setdefault(node, _Standing())
        self._age(standing, now)
        if now < standing.until_s:
            return False
        standing.strikes.append(now)
        strikes = len(standing.strikes)
        shared = end_rule(end).against_node
        if strikes < (1 if standing.level or not shared else bounds.node_failures):
            return False
        how = end.message or f"exit code {end.exit_code}"
        some = f"{strikes} of its containers" if strikes > 1 else "another of its containers"
        why = f"{some} failed there at once, the last: {how}" if shared else how
        self._exclude(node, application_id, standing, now, why)
        if shared:
            self._reports.setdefault(node, {})[application_id] = _FailureReport(now)
        return True

    def take_admitted(self) -> bool:
        """Has any exclusion ended since the last call? What waits may be tried there at once."""
        admitted, self._admitted = self._admitted, False
        return admitted

    def tick(
        self, now: float, in_order: Callable[[ApplicationId], bool], nodes_alive: int
    ) -> list[NodeName]:
        """Evaluate the reports, and forget old ones; returns the nodes newly excluded for all.

        ``in_order``: is there no sign that this application itself is at fault? It lives with an
        AppMaster, or it succeeded.
        """
        for node, application_id, standing in self._standings():
            if standing.announced and now >= standing.until_s:
                self._admit(node, application_id, standing, now, "its time is over")
        found: list[NodeName] = []
        for node, reports in list(self._reports.items()):
            self._confirm(reports, now, in_order, nodes_alive)
            confirmed_by = [x for x, report in reports.items() if report.confirmed]
            standing = self._nodes.setdefault(node, _Standing())
            self._age(standing, now)
            needed = 1 if standing.level else self._bounds.node_failing_applications
            if len(confirmed_by) >= needed and now >= standing.until_s:
                shown = ", ".join(confirmed_by[-3:])
                many = (
                    f"executors of {len(confirmed_by)} applications"
                    if len(confirmed_by) > 1
                    else ""
                )
                why = f"{many or 'executors'} failed there at once: {shown}"
                self._exclude(node, "", standing, now, why)
                found.append(node)
                del self._reports[node]
            elif not reports:
                del self._reports[node]
        self._forget_old(now)
        return found

    def avoided(self, application_id: ApplicationId, now: float) -> frozenset[NodeName]:
        """The nodes that are to get no container of this application."""
        own = self._applications.get(application_id)
        if not own and not self._nodes:
            return NO_NODES
        found = [node for node, x in self._nodes.items() if now < x.until_s]
        found += [node for node, x in (own or {}).items() if now < x.until_s]
        return frozenset(found) if found else NO_NODES

    def avoided_alone(self, application_id: ApplicationId, now: float) -> frozenset[NodeName]:
        """The nodes that are excluded for this application, whether or not for all."""
        own = self._applications.get(application_id)
        return frozenset(node for node, x in own.items() if now < x.until_s) if own else NO_NODES

    def next_end_s(self, now: float) -> float:
        """When the next exclusion in force will end; infinite without any."""
        ends_s = (x.until_s for _, _, x in self._standings() if now < x.until_s)
        return min(ends_s, default=math.inf)

    def avoided_by_all(self, now: float) -> frozenset[NodeName]:
        """The nodes that are to get no container of any application."""
        if not self._nodes:
            return NO_NODES
        return frozenset(node for node, x in self._nodes.items() if now < x.until_s)

    @property
    def applications(self) -> Iterable[ApplicationId]:
        """Those that may have exclusions of their own."""
        return self._applications.keys()

    def of_application(self, application_id: ApplicationId, now: float) -> list[Exclusion]:
        """Those in force for this application alone."""
        return _in_force(self._applications.get(application_id, {}), now)

    def of_all(self, now: float) -> list[Exclusion]:
        """Those in force for every application."""
        return _in_force(self._nodes, now)

    def applications_without(
        self, node: NodeName, now: float, among: Container[ApplicationId]
    ) -> int:
        """For how many of these applications alone this node is excluded."""
        own = (x.get(node) for name, x in self._applications.items() if name in among)
        return sum(now < standing.until_s for standing in own if standing is not None)

    def clear(self, node: NodeName, now: float, why: str) -> None:
        """Forget all reports against a node: it is another machine, or an operator cleared it."""
        for name, application_id, standing in self._standings():
            if name == node and standing.announced:
                self._admit(node, application_id, standing, now, why)
        self._nodes.pop(node, None)
        self._reports.pop(node, None)
        for standings in self._applications.values():
            standings.pop(node, None)

    def _standings(self) -> Iterator[tuple[NodeName, str, _Standing]]:
        """Of each application and of all; the application is empty for the latter."""
        for node, standing in self._nodes.items():
            yield node, "", standing
        for application_id, standings in self._applications.items():
            for node, standing in standings.items():
                yield node, application_id, standing

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
            standing.strikes.popleft()
        if standing.level and now - standing.until_s > self._bounds.node_exclusion_max_s:
            standing.level = 0

    def _confirm(
        self,
        reports: dict[ApplicationId, _FailureReport],
        now: float,
        in_order: Callable[[ApplicationId], bool],
        nodes_alive: int,
    ) -> None:
        for application_id, report in list(reports.items()):
            age_s = now - report.at_s
            if report.confirmed:
                if age_s > self._bounds.node_failure_window_s:
                    del reports[application_id]
            elif age_s >= CONFIRM_S:
                own = self._applications.get(application_id, {}).values()
                excluded = sum(standing.level > 0 for standing in own)
                if in_order(application_id) and 2 * excluded <= nodes_alive:
                    report.confirmed = True
                else:
                    del reports[application_id]

    def _forget_old(self, now: float) -> None:
        for application_id, standings in list(self._applications.items()):
            self._forget(standings, now)
            if not standings:
                del self._applications[application_id]
        self._forget(self._nodes, now)

    def _forget(self, standings: dict[NodeName, _Standing], now: float) -> None:
        for node, standing in list(standings.items()):
            self._age(standing, now)
            if not standing.strikes and not standing.level:
                del standings[node]


def _for(application_id: str) -> str:
    return f"for {application_id or 'every application'}"


def _in_force(standings: dict[NodeName, _Standing], now: float) -> list[Exclusion]:
    return [
        Exclusion(node, standing.until_s, standing.why)
        for node, standing in standings.items()
        if now < standing.until_s
    ]
