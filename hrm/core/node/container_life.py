"""What happens to containers at their node: one table, state by event.

A container is ASSIGNED only while the event that brings it is handled: by its end the container
waits in its unit's queue, or has ended because it may not. The node keeps it until the master has
acknowledged its end. What the master makes of the node's reports is another table, in
``hrm.core.vocabulary.transitions``.
"""

from __future__ import annotations

from enum import Enum

from hrm.core.vocabulary.event_table import EventTable, Ignored, Impossible, to
from hrm.core.vocabulary.model import ContainerState as C

__all__ = ["CONTAINER_AT_NODE", "ContainerOccurrence"]


class ContainerOccurrence(Enum):
    """What happens to a container at its node."""

    __hash__ = object.__hash__

    ORDERED = "ordered"
    """The master orders it to be started."""
    ADOPTED = "adopted"
    """An agent that has restarted finds its process."""
    STARTED = "started"
    """Its unit has capacity for it."""
    WITHDRAWN = "withdrawn"
    """The master orders it to stop unless it has started."""
    DECOMMISSIONED = "decommissioned"
    """The master orders it to hand over its data, and end."""
    STOPPED = "stopped"
    """The master orders it to stop."""
    PREEMPTED = "preempted"
    """A stream waits at its unit."""
    OVER_LIMIT = "over-limit"
    UNIT_CLOSED = "unit-closed"
    """Its unit takes no containers any more."""
    PROCESS_ENDED = "process-ended"
    CLASS_SET = "class-set"
    ACKNOWLEDGED = "acknowledged"
    """The master has taken in its end."""


_O = ContainerOccurrence
_SETTLED = Impossible("the event that brings it settles whether it waits")
_IS_HERE = Ignored("it is here already; it is reported again")
_NOT_WAITING = Impossible("only what waits in a unit's queue is started")
_NO_VICTIM = Impossible("only what runs is preempted")
_HAS_STARTED = Ignored("it has started, and is reported again")
_RUNS_ON = Ignored("what runs there runs on")
_HAS_ENDED = Ignored("it has ended, and is reported until that is acknowledged")
_LIVES = Ignored("an end that it has not had")

CONTAINER_AT_NODE: EventTable[C, ContainerOccurrence] = {
    C.ASSIGNED: {
        _O.ORDERED: to(C.WAITING, C.ENDED),
        _O.ADOPTED: to(C.RUNNING, C.STOPPING, C.ENDED),
        _O.STARTED: _SETTLED,
        _O.WITHDRAWN: _SETTLED,
        _O.DECOMMISSIONED: _SETTLED,
        _O.STOPPED: _SETTLED,
        _O.PREEMPTED: _SETTLED,
        _O.OVER_LIMIT: _SETTLED,
        _O.UNIT_CLOSED: _SETTLED,
        _O.PROCESS_ENDED: _SETTLED,
        _O.CLASS_SET: _SETTLED,
        _O.ACKNOWLEDGED: _SETTLED,
    },
    C.WAITING: {
        _O.ORDERED: _IS_HERE,
        _O.ADOPTED: _IS_HERE,
        _O.STARTED: to(C.RUNNING),
        _O.WITHDRAWN: to(C.ENDED),
        _O.DECOMMISSIONED: to(C.ENDED),
        _O.STOPPED: to(C.ENDED),
        _O.PREEMPTED: _NO_VICTIM,
        _O.OVER_LIMIT: Ignored("it has no process yet"),
        _O.UNIT_CLOSED: to(C.ENDED),
        _O.PROCESS_ENDED: to(C.ENDED),
        _O.CLASS_SET: to(C.WAITING),
        _O.ACKNOWLEDGED: _LIVES,
    },
    C.RUNNING: {
        _O.ORDERED: _IS_HERE,
        _O.ADOPTED: _IS_HERE,
        _O.STARTED: _NOT_WAITING,
        _O.WITHDRAWN: _HAS_STARTED,
        _O.DECOMMISSIONED: to(C.STOPPING),
        _O.STOPPED: to(C.STOPPING),
        _O.PREEMPTED: to(C.STOPPING),
        _O.OVER_LIMIT: to(C.STOPPING),
        _O.UNIT_CLOSED: _RUNS_ON,
        _O.PROCESS_ENDED: to(C.ENDED),
        _O.CLASS_SET: to(C.RUNNING),
        _O.ACKNOWLEDGED: _LIVES,
    },
    C.STOPPING: {
        _O.ORDERED: _IS_HERE,
        _O.ADOPTED: _IS_HERE,
        _O.STARTED: _NOT_WAITING,
        _O.WITHDRAWN: _HAS_STARTED,
        _O.DECOMMISSIONED: Ignored("it stops already, and is reported again"),
        _O.STOPPED: to(C.STOPPING),
        _O.PREEMPTED: _NO_VICTIM,
        _O.OVER_LIMIT: to(C.STOPPING),
        _O.UNIT_CLOSED: _RUNS_ON,
        _O.PROCESS_ENDED: to(C.ENDED),
        _O.CLASS_SET: to(C.STOPPING),
        _O.ACKNOWLEDGED: _LIVES,
    },
    C.ENDED: {
        _O.ORDERED: _IS_HERE,
        _O.ADOPTED: _IS_HERE,
        _O.STARTED: _NOT_WAITING,
        _O.WITHDRAWN: _HAS_ENDED,
        _O.DECOMMISSIONED: _HAS_ENDED,
        _O.STOPPED: _HAS_ENDED,
        _O.PREEMPTED: _NO_VICTIM,
        _O.OVER_LIMIT: _HAS_ENDED,
        _O.UNIT_CLOSED: _HAS_ENDED,
        _O.PROCESS_ENDED: _HAS_ENDED,
        _O.CLASS_SET: _HAS_ENDED,
        _O.ACKNOWLEDGED: to(C.ENDED),
    },
    C.PENDING: dict.fromkeys(_O, Impossible("a node gets a container when it is assigned")),
}
