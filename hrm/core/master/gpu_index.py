"""The live containers that use GPUs, counted by application and state.

Shares of GPUs are computed in every round for a job that wants some, and after every end of a
container. An application may have thousands of containers; what the shares need of them are a few
counts and those that wait at units. These are kept up to date instead, one container at a time.

Limits: the order of those that wait at units is found by sorting them, in each round.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from hrm.core.vocabulary.model import (
    ApplicationId,
    ContainerId,
    ContainerRequest,
    ContainerState,
)

__all__ = ["GpuIndex", "GpuUse"]


class _Container(Protocol):
    """What counts of a container. ``number``: greater in the later request."""

    container_id: ContainerId
    application_id: ApplicationId
    request: ContainerRequest
    number: int

    @property
    def state(self) -> ContainerState: ...


class GpuUse:
    """Of one application's live containers that use GPUs: how many there are (``live``), their
    device memory together (``mib``), how many are PENDING, and the numbers of those that are
    WAITING."""

    __slots__ = ("live", "mib", "pending", "waiting")

    def __init__(self) -> None:
        self.live = self.mib = self.pending = 0
        self.waiting: dict[ContainerId, int] = {}

    @property
    def queued(self) -> list[ContainerId]:
        """Those that wait at units, in order of request."""
        return sorted(self.waiting, key=self.waiting.__getitem__)

    def counts(self) -> tuple[int, int, int, list[ContainerId]]:
        return self.live, self.mib, self.pending, self.queued


class GpuIndex:
    """Invariants, if ``changed`` is called as it says: ``uses`` has all and only the applications
    with live containers that use GPUs, in the order in which they got the first of them; its values
    are what a count of all containers gives (``violations`` compares)."""

    def __init__(self) -> None:
        self.uses: dict[ApplicationId, GpuUse] = {}
        self._known: dict[ContainerId, tuple[ContainerState, int]] = {}

    def changed(self, container: _Container) -> None:
        """To be called after each change of its state or of the device memory that it requests, and
        when it is new. A container without GPUs may be left out."""
        container_id, application_id = container.container_id, container.application_id
        mib, state = container.request.resources.gpu_memory_mib, container.state
        before = self._known.pop(container_id, None)
        counts = mib > 0 and state is not ContainerState.ENDED
        if before is None and not counts:
            return
        use = self.uses.setdefault(application_id, GpuUse())
        if before is not None:
            old_state, old_mib = before
            use.live -= 1
            use.mib -= old_mib
            use.pending -= old_state is ContainerState.PENDING
            use.waiting.pop(container_id, None)
        if counts:
            self._known[container_id] = (state, mib)
            use.live += 1
            use.mib += mib
            use.pending += state is ContainerState.PENDING
            if state is ContainerState.WAITING:
                use.waiting[container_id] = container.number
        if not use.live:
            del self.uses[application_id]

    def violations(self, containers: Iterable[_Container]) -> list[str]:
        """What the index states otherwise than ``containers``, all that live, those of an
        application in order of request; for tests and simulators, linear."""
        walked: dict[ApplicationId, GpuUse] = {}
        for place, container in enumerate(containers):
            mib = container.request.resources.gpu_memory_mib
            if mib:
                use = walked.setdefault(container.application_id, GpuUse())
                use.live += 1
                use.mib += mib
                use.pending += container.state is ContainerState.PENDING
                if container.state is ContainerState.WAITING:
                    use.waiting[container.container_id] = place
        return [
            f"the GPUs of {name} are counted as {mine and mine.counts()}, and are "
            f"{true and true.counts()}"
            for name in dict.fromkeys([*self.uses, *walked])
            for mine, true in [(self.uses.get(name), walked.get(name))]
            if mine is None or true is None or mine.counts() != true.counts()
        ]
