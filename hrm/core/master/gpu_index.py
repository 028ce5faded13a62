"""The live containers that use GPUs, counted by application, by what each requests, and by state.

Shares of GPUs are computed in every round for a job that wants some, and after every end of a
container. An application may have thousands of containers; what the shares need of them are a few
counts and those that wait at units. These are kept up to date instead, one container at a time.

What a node returns from a queue its application requests again, a little later. Meanwhile it wants
as much as before; did it count for nothing, others would take in that moment what is due to it, as
places in queues, to be returned in their turn as soon as it requests again, without end. So what is
returned counts as wanted until it is requested again, for a while at most (``expect_again``). One
that has not requested it by then is *late*: until it requests something, what it has queued is left
where it is, and nothing is kept for it. It may be that it needs less than before, and waits for
what it has queued; so it is late for no longer than ``late_s``, and gets another chance then.

What yields uses what is idle, and has no share of it: it is not counted.

Limits: the order of those that wait at units is found by sorting them, in each round.
"""

from __future__ import annotations

import itertools
from collections import deque
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
    granted a place in a unit's queue. ``withheld``: it does not count yet, for its queue of
    applications keeps it: what others use is not shared with it."""

    container_id: ContainerId
    application_id: ApplicationId
    request: ContainerRequest
    number: int
    queued: bool
    withheld: bool

    @property
    def state(self) -> ContainerState: ...


class GpuUse:
    """Of one application's live containers of one demand: how many there are (``live``), how many
    are PENDING, and the numbers of those that wait at units, or are about to. ``returned_until_s``:
    for each that is no more, and expected to be requested again, until when; in this order."""

    __slots__ = ("live", "pending", "returned_until_s", "waiting")

    def __init__(self) -> None:
        self.live = self.pending = 0
        self.returned_until_s: deque[float] = deque()
        self.waiting: dict[ContainerId, int] = {}

    @property
    def placed(self) -> int:
        """How many hold GPUs, or are about to."""
        return self.live - self.pending - len(self.waiting)

    @property
    def returned(self) -> int:
        """How many are expected to be requested again."""
        return len(self.returned_until_s)

    @property
    def queued(self) -> list[ContainerId]:
        """Those that wait at units, in order of request."""
        return sorted(self.waiting, key=self.waiting.__getitem__)

    def counts(self) -> tuple[int, int, list[ContainerId]]:
        return self.live, self.pending, self.queued


class GpuIndex:
    """Invariants, if ``changed`` is called as it says: ``uses`` has all and only the applications
    with containers that use GPUs, and live or are expected to be requested again, in the order in
    which they got the first of them; of each all and only the demands of these, with what a count
    of all containers gives (``violations`` compares). ``numbers`` are in that order. ``version``
    rises with every change, and ``renewed`` gets the application, for the owner of the shares to
    empty. ``late``: those of ``uses`` that have let what was returned to them go by, each with when
    that is over, in this order."""

    def __init__(self, late_s: float) -> None:
        self.uses: dict[ApplicationId, dict[Vector, GpuUse]] = {}
        self.numbers: dict[ApplicationId, int] = {}
        self.renewed: dict[ApplicationId, None] = {}
        self.late: dict[ApplicationId, float] = {}
        self.version = 0
        self._late_s = late_s
        self._arrivals = itertools.count(1)
        self._known: dict[ContainerId, tuple[ContainerState, Vector]] = {}
        self._expected: dict[tuple[ApplicationId, Vector], None] = {}

    def changed(self, container: _Container) -> None:
        """To be called after each change of its state, of what it requests, or of whether its queue
        keeps it, and when it is new. A container without GPUs may be left out."""
        container_id, state = container.container_id, container.state
        resources = container.request.resources
        if container.request.yields:
            return
        before = self._known.pop(container_id, None)
        counts = resources.gpu_memory_mib > 0 and state is not ContainerState.ENDED
        counts = counts and not container.withheld
        if before is None and not counts:
            return
        application_id = container.application_id
        self._note(application_id)
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
            if before is None:
                self.late.pop(application_id, None)
                if use.returned_until_s:
                    use.returned_until_s.popleft()
        if before is not None:
            old_state, old_demand = before
            use = uses[old_demand]
            use.live -= 1
            use.pending -= old_state is ContainerState.PENDING
            use.waiting.pop(container_id, None)
            self._drop_unused(application_id, old_demand)
        if counts and _waits(container):
            uses[demand].waiting[container_id] = container.number

    def expect_again(self, container: _Container, until_s: float) -> None:
        """Its node has returned it, and it is about to end: its application is expected to request
        such a one again by then."""
        known = self._known.get(container.container_id)
        if known is not None:
            application_id, (_, demand) = container.application_id, known
            self.uses[application_id][demand].returned_until_s.append(until_s)
            self._expected[application_id, demand] = None

    def expire(self, now: float) -> None:
        """What has not been requested again by now is not expected any more."""
        while self.late:
            longest, until_s = next(iter(self.late.items()))
            if until_s > now:
                break
            del self.late[longest]
            self._note(longest)
        for application_id, demand in list(self._expected):
            use = self.uses.get(application_id, {}).get(demand)
            if use is not None and use.returned and use.returned_until_s[0] <= now:
                while use.returned and use.returned_until_s[0] <= now:
                    use.returned_until_s.popleft()
                self.late.pop(application_id, None)
                self.late[application_id] = now + self._late_s
                self._note(application_id)
                self._drop_unused(application_id, demand)
            if use is None or not use.returned:
                del self._expected[application_id, demand]

    def forget(self, application_id: ApplicationId) -> None:
        """It has ended, and requests nothing again."""
        for demand, use in list(self.uses.get(application_id, {}).items()):
            if use.returned:
                use.returned_until_s.clear()
                self._note(application_id)
                self._drop_unused(application_id, demand)

    def _note(self, application_id: ApplicationId) -> None:
        self.version += 1
        self.renewed[application_id] = None

    def _drop_unused(self, application_id: ApplicationId, demand: Vector) -> None:
        uses = self.uses[application_id]
        if not uses[demand].live and not uses[demand].returned:
            del uses[demand]
        if not uses:
            del self.uses[application_id], self.numbers[application_id]
            self.late.pop(application_id, None)

    def renew(self, application_id: ApplicationId) -> None:
        """Something else has changed that its share of GPUs depends on."""
        if application_id in self.uses:
            self.renewed[application_id] = None

    def violations(self, containers: Iterable[_Container]) -> list[str]:
        """What the index states otherwise than ``containers``, all that live, those of an
        application in order of request; for tests and simulators, linear."""
        walked: dict[tuple[ApplicationId, Vector], GpuUse] = {}
        for place, container in enumerate(containers):
            yields = container.request.yields
            if container.request.resources.gpu_memory_mib and not (container.withheld or yields):
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
            if not _agree(mine, true)
        ]


def _agree(mine: GpuUse | None, true: GpuUse | None) -> bool:
    """Is what is counted what there is? Of what is only expected again there is none."""
    if mine is not None and true is None:
        return mine.returned > 0 and mine.counts() == GpuUse().counts()
    return mine is not None and true is not None and mine.counts() == true.counts()


def _waits(container: _Container) -> bool:
    state = container.state
    return state is ContainerState.WAITING or (
        container.queued and state is ContainerState.ASSIGNED
    )
