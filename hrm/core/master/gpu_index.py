"""The live containers that use GPUs, counted by application, by what each requests, and by state.

Shares of GPUs are computed in every round for a job that wants some, and after every end of a
container. An application may have thousands of containers; what the shares need of them are a few
counts and those that wait at units. These are kept up to date instead, one container at a time.

Limits: the order of those that wait at units is found by sorting them, in each round.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Protocol

from hrm.core.vocabulary.feasibility import Vector, demand_vector
from hrm.core.vocabulary.model import (
    ApplicationId,
    ContainerId,
    ContainerRequest,
    ContainerState,
)

__all__ = ["GpuIndex", "GpuUse"]


class _Container(Protocol):
    """What counts of a container. ``number``: greater in the later request. ``queued``: it was
    granted a place in a unit's queue."""

    container_id: ContainerId
    application_id: ApplicationId
    request: ContainerRequest
    number: int
    queued: bool

    @property
    def state(self) -> ContainerState: ...


class GpuUse:
    """Of one application's live containers of one demand: how many there are (``live``), how many
    are PENDING, and the numbers of those that wait at units, or are about to."""

    __slots__ = ("live", "pending", "waiting")

    def __init__(self) -> None:
        self.live = self.pending = 0
        self.waiting: dict[ContainerId, int] = {}

    @property
    def placed(self) -> int:
        """How many hold GPUs, or are about to."""
        return self.live - self.pending - len(self.waiting)

    @property
    def queued(self) -> list[ContainerId]:
        """Those that wait at units, in order of request."""
        return sorted(self.waiting, key=self.waiting.__getitem__)

    def counts(self) -> tuple[int, int, list[ContainerId]]:
        return self.live, self.pending, self.queued


class GpuIndex:
    """Invariants, if ``changed`` is called as it says: ``uses`` has all and only the applications
    with live containers that use GPUs, in the order in which they got the first of them; of each
    all and only the demands of these, with what a count of all containers gives (``violations``
    compares). ``numbers`` are in that order. ``version`` rises with every change, and ``renewed``
    gets the application, for the owner of the shares to empty."""

    def __init__(self) -> None:
        self.uses: dict[ApplicationId, dict[Vector, GpuUse]] = {}
        self.numbers: dict[ApplicationId, int] = {}
        self.renewed: dict[ApplicationId, None] = {}
        self.version = 0
        self._arrivals = itertools.count(1)
        self._known: dict[ContainerId, tuple[ContainerState, Vector]] = {}

    def changed(self, container: _Container) -> None:
        """To be called after each change of its state or of what it requests, and when it is new. A
        container without GPUs may be left out."""
        container_id, state = container.container_id, container.state
        resources = container.request.resources
        before = self._known.pop(container_id, None)
        counts = resources.gpu_memory_mib > 0 and state is not ContainerState.ENDED
        if before is None and not counts:
            return
        self.version += 1
        application_id = container.application_id
        self.renewed[application_id] = None
        uses = self.uses.get(application_id)
        if uses is None:
            uses = self.uses[application_id] = {}
            self.numbers[application_id] = next(self._arrivals)
        demand = demand_vector(resources)
        if counts:
            self._known[container_id] = (state, demand)
            use = uses.setdefault(demand, GpuUse())
            use.live += 1
            use.pending += state is ContainerState.PENDING
        if before is not None:
            old_state, old_demand = before
            use = uses[old_demand]
            use.live -= 1
            use.pending -= old_state is ContainerState.PENDING
            use.waiting.pop(container_id, None)
            if not use.live:
                del uses[old_demand]
        if counts and _waits(container):
            uses[demand].waiting[container_id] = container.number
        if not uses:
            del self.uses[application_id], self.numbers[application_id]

    def renew(self, application_id: ApplicationId) -> None:
        """Something else has changed that its share of GPUs depends on."""
        if application_id in self.uses:
            self.renewed[application_id] = None

    def violations(self, containers: Iterable[_Container]) -> list[str]:
        """What the index states otherwise than ``containers``, all that live, those of an
        application in order of request; for tests and simulators, linear."""
        walked: dict[tuple[ApplicationId, Vector], GpuUse] = {}
        for place, container in enumerate(containers):
            if container.request.resources.gpu_memory_mib:
                demand = demand_vector(container.request.resources)
                use = walked.setdefault((container.application_id, demand), GpuUse())
                use.live += 1
                use.pending += container.state is ContainerState.PENDING
                if _waits(container):
                    use.waiting[container.container_id] = place
        counted = {
            (name, demand): use for name, uses in self.uses.items() for demand, use in uses.items()
        }
        return [
            f"the GPUs of {name} for {demand} are counted as {mine and mine.counts()}, and are "
            f"{true and true.counts()}"
            for name, demand in dict.fromkeys([*counted, *walked])
            for mine, true in [(counted.get((name, demand)), walked.get((name, demand)))]
            if mine is None or true is None or mine.counts() != true.counts()
        ]


def _waits(container: _Container) -> bool:
    state = container.state
    return state is ContainerState.WAITING or (
        container.queued and state is ContainerState.ASSIGNED
    )
