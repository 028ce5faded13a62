"""How many cores each queue has on each platform."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from hrm.core.master.entities import Container
from hrm.core.scheduling.shared_state import SharedState
from hrm.core.tenancy.queue_spec import QueueName
from hrm.core.vocabulary.model import ContainerId

__all__ = ["PlatformUse"]


class PlatformUse:
    """A container counts where it is, or, before it is anywhere, on the platform that was chosen
    for it; one for which none was does not count yet.

    Invariant: ``_held`` has the sums of ``_counted`` by leaf and platform, and no zeros.
    """

    def __init__(self, state: SharedState) -> None:
        self._state = state
        self._held: dict[QueueName, dict[str, float]] = {}
        self._counted: dict[ContainerId, tuple[QueueName, str, float]] = {}

    def held(self, name: QueueName, platform: str) -> float:
        """Cores of a leaf on a platform."""
        return self._held.get(name, {}).get(platform, 0.0)

    def note(
        self, name: QueueName, some: Iterable[Container], cores: float, *, holds: bool
    ) -> None:
        """These, of one size, hold ``cores`` each of the leaf ``name``, or hold nothing."""
        counted = self._counted
        for container in some:
            container_id = container.container_id
            platform = self._platform(container) if holds else ""
            now = (name, platform, cores)
            before = counted.get(container_id)
            if before is not None:
                if before == now:
                    continue
                self._change(before[0], before[1], -before[2])
                del counted[container_id]
            if platform and cores:
                self._change(name, platform, cores)
                counted[container_id] = now

    def _change(self, name: QueueName, platform: str, cores: float) -> None:
        of_leaf = self._held.setdefault(name, {})
        left = of_leaf.get(platform, 0.0) + cores
        if left:
            of_leaf[platform] = left
            return
        del of_leaf[platform]
        if not of_leaf:
            del self._held[name]

    def _platform(self, container: Container) -> str:
        row = self._state.rows.get(container.unit_id)
        if row is None:
            return container.request.platform
        return self._state.properties[row].platform

    def violations(self, holding: Collection[ContainerId]) -> list[str]:
        """What is counted and holds nothing, or is summed up wrongly; for tests and simulators."""
        found = [f"{x} holds nothing, and counts" for x in self._counted if x not in holding]
        sums: dict[QueueName, dict[str, float]] = {}
        for name, platform, cores in self._counted.values():
            of_leaf = sums.setdefault(name, {})
            of_leaf[platform] = of_leaf.get(platform, 0.0) + cores
        if sums != self._held:
            found.append(f"queues count {self._held} on platforms, their containers are {sums}")
        return found
