"""What happened, as it is kept: one record for each change of state.

The state is how things are now; these records show how they came to be so, also of what the master
has forgotten. The master's journal keeps them, ``hrm.core.master.explain`` reads them.
"""

from __future__ import annotations

import enum

from hrm.core.vocabulary.ends import ends_badly, is_failure
from hrm.core.vocabulary.model import ApplicationState
from hrm.core.vocabulary.quick import record

__all__ = [
    "EVENT_KINDS",
    "ExclusionState",
    "PolicyRecord",
    "PriorityRecord",
    "Reign",
    "RequestRecord",
    "Service",
    "StateEvent",
]


EVENT_KINDS = ("application", "container", "node", "master", "journal")
"""Of what events are; the journal's are about itself."""


class RequestRecord(enum.Enum):
    """In place of a state: containers that an application requested and that can never be placed;
    or that wait, and no way was found to place them together."""

    REFUSED = "refused"
    UNPACKED = "may not fit"


class PriorityRecord(enum.Enum):
    """In place of a state: an application stands at another place in its queue."""

    CHANGED = "priority changed"
    INTERRUPTED = "interrupted"


class ExclusionState(enum.Enum):
    """In place of a state: does a node get new containers of an application, or of all?"""

    EXCLUDED = "excluded"
    ADMITTED = "admitted"


class Service(enum.Enum):
    """In place of a state: does the master take what it would have to write?"""

    PAUSED = "paused"
    RESUMED = "resumed"


class PolicyRecord(enum.Enum):
    """In place of a state: what became of the mode of a learned policy."""

    ROLLED_BACK = "policy rolled back"


class Reign(enum.Enum):
    """In place of a state: what became of the master's epoch."""

    RAISED = "epoch raised"


_ENDED = frozenset(state.value for state in ApplicationState if state.ended)


@record
class StateEvent:
    """One change. ``event_id`` rises with every event of a cluster, across its masters.

    ``kind``: one of ``EVENT_KINDS``.
    ``from_state`` is empty where the entity is new. ``exit_code`` is -1 where there is none.
    ``application_id`` of a node is that for which alone it was excluded or admitted.
    """

    event_id: int
    at_s: float
    kind: str
    application_id: str = ""
    container_id: str = ""
    node: str = ""
    from_state: str = ""
    to_state: str
    reason: str = ""
    actor: str = ""
    cause: str = ""
    exit_code: int = -1

    @property
    def ends_application(self) -> bool:
        return self.kind == "application" and self.to_state in _ENDED

    @property
    def ends_badly(self) -> bool:
        """Is it an unwanted end of a container?"""
        has_cause = self.kind == "container" and self.cause != ""
        return has_cause and ends_badly(self.cause, self.exit_code)

    @property
    def is_failure(self) -> bool:
        """Is it an end of a container that counts against its application?"""
        return self.ends_badly and is_failure(self.cause, self.exit_code)
