"""The drivers that wait for a place, in order: which are with their schedulers, and which are not.

A driver that may not start yet (``core.master.driver_places``) is kept from its scheduler. There it
would cost a round after each of which it is refused, and under a policy with a strict order it
would hold up the executors for whose sake it waits.

Drivers get their turn in order of request. One that could start if all drivers of batch ended keeps
later ones from taking what it waits for; one that waits for more, such as the end of a stream,
holds up none. One that is with its scheduler counts as if it had its place, if it will get one once
batch has ended.

Nothing says when a driver of batch will end, and a server (Spark Connect, Thrift) never does. So
the first one holds up the others for a minute, then lets those pass that fit for a minute, holds
them up for two, and so on, up to an hour: small ones are not kept waiting for a driver that runs
for ever, and a large one gets its place as soon as what is there has ended within one of its turns.

What is proposed is checked again when it is committed: several schedulers may have chosen on the
same state. A driver that came too late goes back into the queue.

One that no node could hold now, as while all are drained, holds up none. If none ever could, it is
refused once nodes have had time to join.

Thousands may wait, and whenever a container ends some of them might start. Drivers that request the
same are in one line, of which none can start where its first cannot: what those before it will hold
only becomes more. So the queue is looked at by the first of each line, and the others of it cost
nothing, not even a word: what a driver waits for is said when it is asked for.

Limits: a driver whose application is there already has a line of its own, since what it needs is
seen from what that requests. Where no two request the same, all are looked at.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, field
from typing import TypeAlias

from hrm.core.master import admission, driver_places
from hrm.core.master.driver_places import DriverPlaces, Verdict
from hrm.core.master.entities import Application, Container
from hrm.core.master.state import MasterState
from hrm.core.vocabulary.advice import DRIVER
from hrm.core.vocabulary.feasibility import Vector, demand_vector, plus
from hrm.core.vocabulary.model import ApplicationId, ContainerId, ContainerState, FirstExecutors
from hrm.core.vocabulary.node_requirement import NodeRequirement, lasting

__all__ = ["DriverQueue", "holds_up"]

TURN_S, TURN_MAX_S = 60.0, 3_600.0
"""How long the first one holds up those after it: at first, and at most."""
PASS_S = 60.0
"""How long it then lets them pass."""

_RECOVERING = "the master has restarted, and does not know yet which drivers its nodes run"
_SLACK = 32
"""So many entries of drivers that have left a line may always stay in it."""

_Kind: TypeAlias = tuple[Vector, FirstExecutors | None, NodeRequirement | None, ContainerId | None]
"""What a driver requests, what it is to start with, what its node must meet; and which it is, if
its application is there already."""


@dataclass(slots=True, eq=False)
class _Line:
    """Drivers of one kind, in order of request. ``why``: why the first may not start, empty until
    it has been looked at.

    ``entries`` has the number of each of the ``members``, and may have those of others that have
    left. These are removed when they come up, or when one joins and they are most of all.
    """

    kind: _Kind
    why: str = ""
    members: dict[ContainerId, Container] = field(default_factory=dict)
    entries: list[tuple[int, ContainerId]] = field(default_factory=list)

    def add(self, container: Container) -> None:
        self.members[container.container_id] = container
        heapq.heappush(self.entries, (container.number, container.container_id))
        if len(self.entries) > 2 * len(self.members) + _SLACK:
            self.entries = sorted((x.number, x.container_id) for x in self.members.values())

    def first(self) -> Container | None:
        while self.entries:
            number, container_id = self.entries[0]
            known = self.members.get(container_id)
            if known is not None and known.number == number:
                return known
            heapq.heappop(self.entries)
        return None


@dataclass(slots=True, eq=False)
class _Waits:
    """A driver's wait. ``said``: why it waits, until its line has been looked at."""

    queue: DriverQueue
    container: Container
    line: _Line
    said: str

    @property
    def why(self) -> str:
        return self.queue.why(self)


class DriverQueue:
    """Invariants: ``waiting`` has all and only the PENDING drivers with a ``waits_for``; each is in
    the one line of its kind, and none is empty. ``_apart`` are those whose application was there
    when they were last looked at. ``_turn``: the number of the one that holds up all after it, and
    what these wait for."""

    def __init__(self, master_state: MasterState) -> None:
        self._master_state = master_state
        self.waiting: dict[ContainerId, _Waits] = {}
        self._lines: dict[_Kind, _Line] = {}
        self._apart: dict[ContainerId, Container] = {}
        self._turn: tuple[int, str] | None = None
        self._first: tuple[ContainerId, float] | None = None
        """Which could start if all drivers of batch ended, and since when it has been the first."""

    def put(self, container: Container, why: str = "it was requested just now") -> None:
        """It waits from now on, until ``take`` returns it."""
        waits = _Waits(self, container, self._enter(container), why)
        self.waiting[container.container_id] = waits
        self._master_state.driver_waits(container, waits)

    def drop(self, container: Container) -> None:
        """It is requested no more, or its turn has come."""
        self._master_state.driver_waits(container, None)
        waits = self.waiting.pop(container.container_id, None)
        if waits is not None:
            self._leave(container, waits.line)

    def changed(self, app: Application) -> None:
        """What its drivers need, or their nodes must meet, may be another from now on."""
        for container in app.containers.values():
            waits = self.waiting.get(container.container_id)
            if waits is not None and waits.line.kind != self._kind(container):
                self._leave(container, waits.line)
                waits.line = self._enter(container)

    def why(self, waits: _Waits) -> str:
        if self._master_state.recovering:
            return _RECOVERING
        if self._turn is not None and waits.container.number > self._turn[0]:
            return self._turn[1]
        return waits.line.why or waits.said

    def take(self, now: float) -> tuple[list[Container], list[tuple[Container, str]]]:
        """Those whose turn it is now, in order, which no longer wait here; and those that can never
        start in this cluster, with the reason."""
        taken: list[Container] = []
        hopeless: list[tuple[Container, str]] = []
        if not self.waiting or self._master_state.recovering:
            return taken, hopeless
        self._follow_applications()
        places = DriverPlaces(self._master_state)
        endless = DriverPlaces(self._master_state, endless=True)
        reserved: Vector = (0, 0, 0, 0)
        first: tuple[ContainerId, float] | None = None
        self._turn = None
        heads = self._heads()
        while heads:
            _, container, line = heapq.heappop(heads)
            verdict = self._verdict(places, container, reserved)
            if line is None or not verdict.why:
                if line is not None:
                    self.drop(container)
                    taken.append(container)
                    _push_first(heads, line)
                if self._could_get_a_place(places, container, verdict):
                    reserved = plus(reserved, demand_vector(container.request.resources))
                continue
            if verdict.lacks_node:
                hopeless += self._too_large(line, now)
                line.why = verdict.why
                continue
            if not places.held and (never := self._never(container)):
                hopeless += [(x, never) for x in line.members.values()]
                continue
            line.why = verdict.why
            if first is None and self._waits_for_batch(endless, container):
                first = self._first
                if first is None or first[0] != container.container_id:
                    first = (container.container_id, now)
                if holds_up(now - first[1]):
                    before = f"{container.application_id} came before it, and waits"
                    self._turn = container.number, f"{before}: {verdict.why}"
                    break
        self._first = first
        last = math.inf if self._turn is None else self._turn[0]
        hopeless = [x for x in hopeless if x[0].number < last]
        hopeless.sort(key=lambda x: x[0].number)
        return taken, hopeless

    def violations(self) -> list[str]:
        """What the lines state otherwise than the drivers do; for tests and simulators, linear."""
        found, members = [], sum(len(x.members) for x in self._lines.values())
        if members != len(self.waiting):
            found.append(f"the lines of drivers have {members}, {len(self.waiting)} wait")
        for container_id, waits in self.waiting.items():
            line = waits.line
            is_there = self._lines.get(line.kind) is line and container_id in line.members
            if not is_there or line.kind[:-1] != self._kind(waits.container)[:-1]:
                found.append(f"{container_id} is in another line than that of its kind")
        return found

    def _heads(self) -> list[tuple[int, Container, _Line | None]]:
        """A heap, by number, of the first of each line, and of all drivers that are with their
        schedulers; not of those that wait for their queue of applications before."""
        pending = ContainerState.PENDING
        heads: list[tuple[int, Container, _Line | None]] = [
            (x.number, x, None)
            for x in self._master_state.unqueued_drivers.values()
            if x.state is pending and not (x.held or x.withheld)
        ]
        heapq.heapify(heads)
        for line in self._lines.values():
            _push_first(heads, line)
        return heads

    def _follow_applications(self) -> None:
        """Drivers whose application is there, or no longer is, change their lines."""
        master_state = self._master_state
        there = [master_state.applications.get(ApplicationId(x)) for x in master_state.driven]
        gone = [master_state.applications[x.application_id] for x in self._apart.values()]
        for app in (*there, *gone):
            if app is not None:
                self.changed(app)

    def _enter(self, container: Container) -> _Line:
        kind = self._kind(container)
        line = self._lines.get(kind)
        if line is None:
            line = self._lines[kind] = _Line(kind)
        if kind[-1] is not None:
            self._apart[container.container_id] = container
        line.add(container)
        return line

    def _leave(self, container: Container, line: _Line) -> None:
        self._apart.pop(container.container_id, None)
        del line.members[container.container_id]
        if not line.members:
            del self._lines[line.kind]

    def _kind(self, container: Container) -> _Kind:
        app = self._master_state.applications[container.application_id]
        is_apart = app.application_id in self._master_state.driven
        one = container.container_id if is_apart else None
        return demand_vector(container.request.resources), app.first_executors, app.requires, one

    def _never(self, container: Container) -> str:
        app = self._master_state.applications[container.application_id]
        return driver_places.refusal(self._master_state, app, container.request.resources)

    def _too_large(self, line: _Line, now: float) -> list[tuple[Container, str]]:
        """Those of a line that no node could ever hold: nodes have had time to join."""
        container = line.first()
        why = "" if container is None else self._no_node_ever(container)
        return [(x, why) for x in line.members.values() if why and self._is_overdue(x, now)]

    def _no_node_ever(self, container: Container) -> str:
        """Why no node that is there could hold it, whatever ends or opens; empty if one could."""
        resources = container.request.resources
        requires = lasting(self._master_state.applications[container.application_id].requires)
        if self._master_state.state.could_hold(demand_vector(resources), requires):
            return ""
        return admission.refusal(self._master_state, resources, advice=DRIVER, requires=requires)

    def _is_overdue(self, container: Container, now: float) -> bool:
        return now - container.requested_at_s >= self._master_state.bounds.retry_delay_max_s

    def at_commit(self, container: Container) -> Verdict:
        """May a driver that its scheduler has placed start now, and where?"""
        return self._verdict(DriverPlaces(self._master_state), container)

    def _waits_for_batch(self, endless: DriverPlaces, container: Container) -> bool:
        """Could it start if all drivers of batch, and batch itself, ended?"""
        verdict = self._verdict(endless, container)
        return not verdict.why and self._could_get_a_place(endless, container, verdict)

    def _could_get_a_place(
        self, places: DriverPlaces, container: Container, verdict: Verdict
    ) -> bool:
        app = self._master_state.applications[container.application_id]
        demand = demand_vector(container.request.resources)
        return places.could_get_a_place(app, demand, verdict.rows)

    def _verdict(
        self, places: DriverPlaces, container: Container, reserved: Vector = (0, 0, 0, 0)
    ) -> Verdict:
        app = self._master_state.applications[container.application_id]
        return places.verdict(app, demand_vector(container.request.resources), reserved)


def _push_first(heads: list[tuple[int, Container, _Line | None]], line: _Line) -> None:
    head = line.first()
    if head is not None:
        heapq.heappush(heads, (head.number, head, line))


def holds_up(waited_s: float) -> bool:
    """Does a driver that has been the first for so long keep those after it from passing now?"""
    begins_s, turn_s = 0.0, TURN_S
    while waited_s >= begins_s + turn_s:
        begins_s += turn_s + PASS_S
        if waited_s < begins_s:
            return False
        turn_s = min(2 * turn_s, TURN_MAX_S)
    return True
