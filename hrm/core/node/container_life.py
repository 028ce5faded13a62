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

__all__ = ["CONTAINER_AT_NODE", "NodeContainerHappening"]


class NodeContainerHappening(Enum):
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
    """A stream waits at its unit; or anything else, where it yields."""
    OVER_LIMIT = "over-limit"
    UNIT_CLOSED = "unit-closed"
    """Its unit takes no containers any more, or not this one, which it has kept back for long."""
    PROCESS_ENDED = "process-ended"
    CLASS_SET = "class-set"
    ACKNOWLEDGED = "acknowledged"
    """The master has taken in its end."""


_H = NodeContainerHappening
_SETTLED = Impossible("the event that brings it settles whether it waits")
_IS_HERE = Ignored("it is here already; it is reported again")
_NOT_WAITING = Impossible("only what waits in a unit's queue is started")
_NO_VICTIM = Impossible("only what runs is preempted")
_HAS_STARTED = Ignored("it has started, and is reported again")
_RUNS_ON = Ignored("what runs there runs on")
_HAS_ENDED = Ignored("it has ended, and is reported until that is acknowledged")
_LIVES = Ignored("an end that it has not had")

CONTAINER_AT_NODE: EventTable[C, NodeContainerHappening] = {
    C.ASSIGNED: {
        _H.ORDERED: to(C.WAITING, C.ENDED),
        _H.ADOPTED: to(C.RUNNING, C.STOPPING, C.ENDED),
        _H.STARTED: _SETTLED,
        _H.WITHDRAWN: _SETTLED,
        _H.DECOMMISSIONED: _SETTLED,
        _H.STOPPED: _SETTLED,
        _H.PREEMPTED: _SETTLED,
        _H.OVER_LIMIT: _SETTLED,
        _H.UNIT_CLOSED: _SETTLED,
        _H.PROCESS_ENDED: _SETTLED,
        _H.CLASS_SET: _SETTLED,
        _H.ACKNOWLEDGED: _SETTLED,
    },
    C.WAITING: {
        _H.ORDERED: _IS_HERE,
        _H.ADOPTED: _IS_HERE,
        _H.STARTED: to(C.RUNNING),
        _H.WITHDRAWN: to(C.ENDED),
        _H.DECOMMISSIONED: to(C.ENDED),
        _H.STOPPED: to(C.ENDED),
        _H.PREEMPTED: _NO_VICTIM,
        _H.OVER_LIMIT: Ignored("it has no process yet"),
        _H.UNIT_CLOSED: to(C.ENDED),
        _H.PROCESS_ENDED: to(C.ENDED),
        _H.CLASS_SET: to(C.WAITING),
        _H.ACKNOWLEDGED: _LIVES,
    },
    C.RUNNING: {
        _H.ORDERED: _IS_HERE,
        _H.ADOPTED: _IS_HERE,
        _H.STARTED: _NOT_WAITING,
        _H.WITHDRAWN: _HAS_STARTED,
        _H.DECOMMISSIONED: to(C.STOPPING),
        _H.STOPPED: to(C.STOPPING),
        _H.PREEMPTED: to(C.STOPPING),
        _H.OVER_LIMIT: to(C.STOPPING),
        _H.UNIT_CLOSED: _RUNS_ON,
        _H.PROCESS_ENDED: to(C.ENDED),
        _H.CLASS_SET: to(C.RUNNING),
        _H.ACKNOWLEDGED: _LIVES,
    },
    C.STOPPING: {
        _H.ORDERED: _IS_HERE,
        _H.ADOPTED: _IS_HERE,
        _H.STARTED: _NOT_WAITING,
        _H.WITHDRAWN: _HAS_STARTED,
        _H.DECOMMISSIONED: Ignored("it stops already, and is reported again"),
        _H.STOPPED: to(C.STOPPING),
        _H.PREEMPTED: _NO_VICTIM,
        _H.OVER_LIMIT: to(C.STOPPING),
        _H.UNIT_CLOSED: _RUNS_ON,
        _H.PROCESS_ENDED: to(C.ENDED),
        _H.CLASS_SET: to(C.STOPPING),
        _H.ACKNOWLEDGED: _LIVES,
    },
    C.ENDED: {
        _H.ORDERED: _IS_HERE,
        _H.ADOPTED: _IS_HERE,
        _H.STARTED: _NOT_WAITING,
        _H.WITHDRAWN: _HAS_ENDED,
        _H.DECOMMISSIONED: _HAS_ENDED,
        _H.STOPPED: _HAS_ENDED,
        _H.PREEMPTED: _NO_VICTIM,
        _H.OVER_LIMIT: _HAS_ENDED,
        _H.UNIT_CLOSED: _HAS_ENDED,
        _H.PROCESS_ENDED: _HAS_ENDED,
        _H.CLASS_SET: _HAS_ENDED,
        _H.ACKNOWLEDGED: to(C.ENDED),
    },
    C.PENDING: dict.fromkeys(_H, Impossible("a node gets a container when it is assigned")),
}
