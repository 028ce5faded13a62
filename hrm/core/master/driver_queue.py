"""The drivers that wait for a place, in order: which are with their schedulers, and which are not.

A driver that may not start yet (``core.master.driver_places``) is kept from its scheduler. There it
would cost a round after each of which it is refused, and under a policy with a strict order it
would hold up the executors for whose sake it waits.

Drivers get their turn in order of request. One that could start if all drivers of batch ended keeps
later ones from taking what it waits for; one that waits for more, such as the end of a stream,
holds up none. One that is with its scheduler counts as if it had its place, if it will get one once
batch has ended.

What is proposed is checked again when it is committed: several schedulers may have chosen on the
same state. A driver that came too late goes back into the queue.
"""

from __future__ import annotations

from hrm.core.master import driver_places
from hrm.core.master.driver_places import DriverPlaces, Verdict
from hrm.core.master.state import Container, MasterState
from hrm.core.vocabulary.feasibility import Vector, demand_vector, plus
from hrm.core.vocabulary.model import ContainerId, ContainerState

__all__ = ["DriverQueue"]

_RECOVERING = "the master has restarted, and does not know yet which drivers its nodes run"


class DriverQueue:
    """Invariant: ``waiting`` has all and only the PENDING drivers with a ``waits_for``."""

    def __init__(self, master_state: MasterState) -> None:
        self._master_state = master_state
        self.waiting: dict[ContainerId, Container] = {}

    def put(self, container: Container, why: str = "it was requested just now") -> None:
        """It waits from now on, until ``take`` returns it."""
        container.waits_for = why
        self.waiting[container.container_id] = container

    def drop(self, container: Container) -> None:
        """It is requested no more."""
        container.waits_for = ""
        self.waiting.pop(container.container_id, None)

    def take(self) -> tuple[list[Container], list[tuple[Container, str]]]:
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
            if not self._verdict(endless, container).why:
                turn = container.application_id
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
