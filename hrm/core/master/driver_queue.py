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
"""

from __future__ import annotations

from hrm.core.master import driver_places
from hrm.core.master.driver_places import DriverPlaces, Verdict
from hrm.core.master.state import Container, MasterState
from hrm.core.vocabulary.feasibility import Vector, demand_vector, plus
from hrm.core.vocabulary.model import ContainerId, ContainerState

__all__ = ["DriverQueue", "holds_up"]

TURN_S, TURN_MAX_S = 60.0, 3_600.0
"""How long the first one holds up those after it: at first, and at most."""
PASS_S = 60.0
"""How long it then lets them pass."""

_RECOVERING = "the master has restarted, and does not know yet which drivers its nodes run"


class DriverQueue:
    """Invariant: ``waiting`` has all and only the PENDING drivers with a ``waits_for``."""

    def __init__(self, master_state: MasterState) -> None:
        self._master_state = master_state
        self.waiting: dict[ContainerId, Container] = {}
        self._first: tuple[ContainerId, float] | None = None
        """Which could start if all drivers of batch ended, and since when it has been the first."""

    def put(self, container: Container, why: str = "it was requested just now") -> None:
        """It waits from now on, until ``take`` returns it."""
        container.waits_for = why
        self.waiting[container.container_id] = container

    def drop(self, container: Container) -> None:
        """It is requested no more."""
        container.waits_for = ""
        self.waiting.pop(container.container_id, None)

    def take(self, now: float) -> tuple[list[Container], list[tuple[Container, str]]]:
        """Those whose turn it is now, in order, which no longer wait here; and those that can never
        start in this cluster, with the reason."""
        if not self.waiting:
            return [], []
        if self._master_state.recovering:
            for container in self.waiting.values():
                container.waits_for = _RECOVERING
            return [], []
        places = DriverPlaces(self._master_state)
        endless = DriverPlaces(self._master_state, endless=True)
        taken: list[Container] = []
        hopeless: list[tuple[Container, str]] = []
        reserved: Vector = (0, 0, 0, 0)
        turn = why = ""
        first: tuple[ContainerId, float] | None = None
        for container in list(self._master_state.drivers.values()):
            if container.state is not ContainerState.PENDING or container.held:
                continue
            is_here = container.container_id in self.waiting
            if is_here and turn:
                container.waits_for = f"{turn} came before it, and waits: {why}"
                continue
            verdict = self._verdict(places, container, reserved)
            if not is_here or not verdict.why:
                if is_here:
                    self.drop(container)
                    taken.append(container)
                demand = demand_vector(container.request.resources)
                if places.could_get_a_place(demand, verdict.rows):
                    reserved = plus(reserved, demand)
                continue
            if not places.held and (never := self._never(container)):
                hopeless.append((container, never))
                continue
            container.waits_for = why = verdict.why
            if first is None and not self._verdict(endless, container).why:
                first = self._first
                if first is None or first[0] != container.container_id:
                    first = (container.container_id, now)
                turn = container.application_id if holds_up(now - first[1]) else ""
        self._first = first
        return taken, hopeless

    def _never(self, container: Container) -> str:
        app = self._master_state.applications[container.application_id]
        return driver_places.refusal(self._master_state, app, container.request.resources)

    def at_commit(self, container: Container) -> Verdict:
        """May a driver that its scheduler has placed start now, and where?"""
        return self._verdict(DriverPlaces(self._master_state), container)

    def _verdict(
        self, places: DriverPlaces, container: Container, reserved: Vector = (0, 0, 0, 0)
    ) -> Verdict:
        app = self._master_state.applications[container.application_id]
        return places.verdict(app, demand_vector(container.request.resources), reserved)


def holds_up(waited_s: float) -> bool:
    """Does a driver that has been the first for so long keep those after it from passing now?"""
    begins_s, turn_s = 0.0, TURN_S
    while waited_s >= begins_s + turn_s:
        begins_s += turn_s + PASS_S
        if waited_s < begins_s:
            return False
        turn_s = min(2 * turn_s, TURN_MAX_S)
    return True
