"""What happens to applications, containers and nodes at the master: a table each, state by event.

A container is PENDING in a scheduler's queue until a claim for it is committed; ASSIGNED until its
node reports; WAITING in the queue of a resource unit; RUNNING; STOPPING between the order to stop
and the end; ENDED for good. Commit and node may disagree for a moment about WAITING and RUNNING,
because the node decides who starts: both directions are legal. After a restart of the master a
PENDING container may turn out to be WAITING, RUNNING or STOPPING at a node that reports it.

An application is DETACHED while its AppMaster is away; it comes back to what it was, or fails when
its grace period ends.

How tables are read: ``hrm.core.vocabulary.event_table``. What a node takes in about its own
containers is another table, ``hrm.core.node.container_life``.
"""

from __future__ import annotations

from enum import Enum

from hrm.core.vocabulary.event_table import EventTable, Ignored, Impossible, Refused, to
from hrm.core.vocabulary.model import ApplicationState as A
from hrm.core.vocabulary.model import ContainerState as C
from hrm.core.vocabulary.model import NodeState as N

__all__ = [
    "APPLICATION",
    "CONTAINER",
    "NODE",
    "ApplicationHappening",
    "ContainerHappening",
    "NodeHappening",
]


class ApplicationHappening(Enum):
    """What happens to an application."""

    __hash__ = object.__hash__

    REGISTERED_AGAIN = "registered-again"
    """Its AppMaster registers under the id that it has."""
    ATTACHED = "attached"
    DETACHED = "detached"
    """The session that is open breaks."""
    RECOVERED = "recovered"
    """A master that has restarted finds it in its store."""
    REPORTED = "reported"
    """Its AppMaster reports progress or a class, requests containers or releases some."""
    CONTAINER_STARTED = "container-started"
    FINISHED = "finished"
    KILLED = "killed"
    GIVEN_UP = "given-up"
    """Its AppMaster was away for longer than the grace period."""
    DRIVER_FAILED = "driver-failed"
    """Its driver, on a node, has failed. It may have stopped its context as a success before."""


_OVER = Ignored("the first end of the application is the one that counts")
_HAS_ENDED = Refused("it has ended, and the error names how")
_ENDED_APPLICATION: dict[ApplicationHappening, Ignored | Impossible] = {
    ApplicationHappening.REGISTERED_AGAIN: _HAS_ENDED,
    ApplicationHappening.ATTACHED: _HAS_ENDED,
    ApplicationHappening.DETACHED: _OVER,
    ApplicationHappening.RECOVERED: Ignored("it is kept to be shown"),
    ApplicationHappening.REPORTED: _OVER,
    ApplicationHappening.CONTAINER_STARTED: Impossible("with it all its containers were stopped"),
    ApplicationHappening.FINISHED: _OVER,
    ApplicationHappening.KILLED: _HAS_ENDED,
    ApplicationHappening.GIVEN_UP: Impossible("only live applications are awaited"),
    ApplicationHappening.DRIVER_FAILED: _OVER,
}

APPLICATION: EventTable[A, ApplicationHappening] = {
    A.SUBMITTED: {
        ApplicationHappening.REGISTERED_AGAIN: to(A.SUBMITTED),
        ApplicationHappening.ATTACHED: to(A.SUBMITTED),
        ApplicationHappening.DETACHED: to(A.DETACHED),
        ApplicationHappening.RECOVERED: to(A.DETACHED),
        ApplicationHappening.REPORTED: to(A.SUBMITTED),
        ApplicationHappening.CONTAINER_STARTED: to(A.RUNNING),
        ApplicationHappening.FINISHED: to(A.SUCCEEDED, A.FAILED, A.KILLED),
        ApplicationHappening.KILLED: to(A.KILLED),
        ApplicationHappening.GIVEN_UP: to(A.FAILED),
        ApplicationHappening.DRIVER_FAILED: to(A.FAILED),
    },
    A.RUNNING: {
        ApplicationHappening.REGISTERED_AGAIN: to(A.RUNNING),
        ApplicationHappening.ATTACHED: to(A.RUNNING),
        ApplicationHappening.DETACHED: to(A.DETACHED),
        ApplicationHappening.RECOVERED: to(A.DETACHED),
        ApplicationHappening.REPORTED: to(A.RUNNING),
        ApplicationHappening.CONTAINER_STARTED: to(A.RUNNING),
        ApplicationHappening.FINISHED: to(A.SUCCEEDED, A.FAILED, A.KILLED),
        ApplicationHappening.KILLED: to(A.KILLED),
        ApplicationHappening.GIVEN_UP: to(A.FAILED),
        ApplicationHappening.DRIVER_FAILED: to(A.FAILED),
    },
    A.DETACHED: {
        ApplicationHappening.REGISTERED_AGAIN: to(A.DETACHED),
        ApplicationHappening.ATTACHED: to(A.SUBMITTED, A.RUNNING),
        ApplicationHappening.DETACHED: Ignored("no session is open"),
        ApplicationHappening.RECOVERED: to(A.DETACHED),
        ApplicationHappening.REPORTED: to(A.DETACHED),
        ApplicationHappening.CONTAINER_STARTED: Ignored("it counts when the AppMaster is back"),
        ApplicationHappening.FINISHED: to(A.SUCCEEDED, A.FAILED, A.KILLED),
        ApplicationHappening.KILLED: to(A.KILLED),
        ApplicationHappening.GIVEN_UP: to(A.FAILED),
        ApplicationHappening.DRIVER_FAILED: to(A.FAILED),
    },
    A.SUCCEEDED: {
        **_ENDED_APPLICATION,
        ApplicationHappening.DRIVER_FAILED: to(A.SUCCEEDED, A.FAILED),
    },
    A.FAILED: _ENDED_APPLICATION,
    A.KILLED: _ENDED_APPLICATION,
}


class ContainerHappening(Enum):
    """What happens to a container, as its master is notified of it."""

    __hash__ = object.__hash__

    GRANTED = "granted"
    """A claim for it is committed."""
    SEEN_WAITING = "seen-waiting"
    """Its node reports that it waits."""
    SEEN_RUNNING = "seen-running"
    SEEN_STOPPING = "seen-stopping"
    SEEN_ENDED = "seen-ended"
    UNLISTED = "unlisted"
    """Its node's full list does not have it."""
    RELEASED = "released"
    """Its AppMaster no longer needs it, or its application has ended."""
    NODE_LOST = "node-lost"
    GIVEN_UP = "given-up"
    """No node may start it: none could ever hold it, or one that is away may be running it."""


_STOPS = Ignored("an order to stop is not revoked; it is sent again")
_PLACED = Impossible("it is with no scheduler any more")

CONTAINER: EventTable[C, ContainerHappening] = {
    C.PENDING: {
        ContainerHappening.GRANTED: to(C.ASSIGNED),
        ContainerHappening.SEEN_WAITING: to(C.WAITING),
        ContainerHappening.SEEN_RUNNING: to(C.RUNNING),
        ContainerHappening.SEEN_STOPPING: to(C.STOPPING),
        ContainerHappening.SEEN_ENDED: to(C.ENDED),
        ContainerHappening.UNLISTED: Impossible("it has no node yet"),
        ContainerHappening.RELEASED: to(C.ENDED),
        ContainerHappening.NODE_LOST: to(C.ENDED),
        ContainerHappening.GIVEN_UP: to(C.ENDED),
    },
    C.ASSIGNED: {
        ContainerHappening.GRANTED: _PLACED,
        ContainerHappening.SEEN_WAITING: to(C.WAITING),
        ContainerHappening.SEEN_RUNNING: to(C.RUNNING),
        ContainerHappening.SEEN_STOPPING: to(C.STOPPING),
        ContainerHappening.SEEN_ENDED: to(C.ENDED),
        ContainerHappening.UNLISTED: to(C.ASSIGNED, C.ENDED),
        ContainerHappening.RELEASED: to(C.STOPPING),
        ContainerHappening.NODE_LOST: to(C.ENDED),
        ContainerHappening.GIVEN_UP: _PLACED,
    },
    C.WAITING: {
        ContainerHappening.GRANTED: _PLACED,
        ContainerHappening.SEEN_WAITING: to(C.WAITING),
        ContainerHappening.SEEN_RUNNING: to(C.RUNNING),
        ContainerHappening.SEEN_STOPPING: to(C.STOPPING),
        ContainerHappening.SEEN_ENDED: to(C.ENDED),
        ContainerHappening.UNLISTED: to(C.ENDED),
        ContainerHappening.RELEASED: to(C.STOPPING),
        ContainerHappening.NODE_LOST: to(C.ENDED),
        ContainerHappening.GIVEN_UP: _PLACED,
    },
    C.RUNNING: {
        ContainerHappening.GRANTED: _PLACED,
        ContainerHappening.SEEN_WAITING: to(C.WAITING),
        ContainerHappening.SEEN_RUNNING: to(C.RUNNING),
        ContainerHappening.SEEN_STOPPING: to(C.STOPPING),
        ContainerHappening.SEEN_ENDED: to(C.ENDED),
        ContainerHappening.UNLISTED: to(C.ENDED),
        ContainerHappening.RELEASED: to(C.STOPPING),
        ContainerHappening.NODE_LOST: to(C.ENDED),
        ContainerHappening.GIVEN_UP: _PLACED,
    },
    C.STOPPING: {
        ContainerHappening.GRANTED: _PLACED,
        ContainerHappening.SEEN_WAITING: _STOPS,
        ContainerHappening.SEEN_RUNNING: _STOPS,
        ContainerHappening.SEEN_STOPPING: to(C.STOPPING),
        ContainerHappening.SEEN_ENDED: to(C.ENDED),
        ContainerHappening.UNLISTED: to(C.ENDED),
        ContainerHappening.RELEASED: to(C.STOPPING),
        ContainerHappening.NODE_LOST: to(C.ENDED),
        ContainerHappening.GIVEN_UP: _PLACED,
    },
    C.ENDED: dict.fromkeys(
        ContainerHappening, Impossible("its application keeps it to be shown, and no table has it")
    ),
}


class NodeHappening(Enum):
    """What happens to a node."""

    __hash__ = object.__hash__

    REGISTERED = "registered"
    HEARD_AGAIN = "heard-again"
    """It reports on a stream that never broke."""
    DRAIN_ORDERED = "drain-ordered"
    DRAIN_UNDONE = "drain-undone"
    FALLEN_SILENT = "fallen-silent"


NODE: EventTable[N, NodeHappening] = {
    N.ALIVE: {
        NodeHappening.REGISTERED: to(N.ALIVE, N.DRAINING),
        NodeHappening.HEARD_AGAIN: Ignored("it was not lost"),
        NodeHappening.DRAIN_ORDERED: to(N.DRAINING),
        NodeHappening.DRAIN_UNDONE: Ignored("it is not under drain"),
        NodeHappening.FALLEN_SILENT: to(N.LOST),
    },
    N.DRAINING: {
        NodeHappening.REGISTERED: to(N.DRAINING),
        NodeHappening.HEARD_AGAIN: Ignored("it was not lost"),
        NodeHappening.DRAIN_ORDERED: to(N.DRAINING),
        NodeHappening.DRAIN_UNDONE: to(N.ALIVE),
        NodeHappening.FALLEN_SILENT: to(N.LOST),
    },
    N.LOST: {
        NodeHappening.REGISTERED: to(N.ALIVE, N.DRAINING),
        NodeHappening.HEARD_AGAIN: to(N.ALIVE, N.DRAINING),
        NodeHappening.DRAIN_ORDERED: Refused("nothing runs on it"),
        NodeHappening.DRAIN_UNDONE: Ignored("it is alive when it comes back"),
        NodeHappening.FALLEN_SILENT: Ignored("it is lost already"),
    },
}
