"""Units of one node that share cores and memory, as one pool of queues."""

from __future__ import annotations

from collections.abc import Iterable

from hrm.core.queue.resource_unit import UnitQueue
from hrm.core.vocabulary.model import ResourceUnit, ResourceUnitId

__all__ = ["queues_of"]


def queues_of(units: Iterable[ResourceUnit]) -> dict[ResourceUnitId, UnitQueue]:
    """Empty queues of a node's units, those that share joined to one pool."""
    queues: dict[ResourceUnitId, UnitQueue] = {}
    for unit in units:
        queue = queues[unit.unit_id] = UnitQueue(unit)
        if unit.pool in queues:
            queue.join(queues[unit.pool])
    return queues
