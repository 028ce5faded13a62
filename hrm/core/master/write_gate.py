"""What waits for the disk, and what does not: the rule for all that leaves a master.

Nothing leaves the master that a crash could make it forget. *Intent* is what it must not forget:
that an application was admitted and that it has ended, which nodes belong to the cluster, which are
drained, which queues are stated. A batch of commands with a write of intent is held until that
write is on the disk, and so is every later command about the same application or node, or to it.
Orders to nodes that no held command concerns pass; so does what goes to schedulers, whose copies
end with the master's life.

Other writes hold nothing: what they contain is learned again from agents and AppMasters, or may be
lost. So while the disk is full, the cluster goes on: sessions break and come back, containers start
and end, nodes reconnect. The master is paused (``WriteGate.pause``): calls that would have to be
written before they are answered are refused at once (``refusal``), change nothing, and may be tried
again; so are those of which something is held. What is held is written when there is space.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias, get_args

from hrm.core.master.core import MasterCore
from hrm.core.messages import commands as c
from hrm.core.messages import events as e
from hrm.errors import DiskFull, Unavailable

__all__ = ["LEAVING", "WRITES", "Held", "Leaving", "Write", "WriteGate"]

Write: TypeAlias = (
    c.PersistApplication
    | c.PersistQueues
    | c.ForgetApplication
    | c.RememberNode
    | c.ForgetNode
    | c.RememberDrain
    | c.ForgetDrain
    | c.PersistRunTime
    | c.ForgetRunTime
    | c.PersistLearnedClass
    | c.ForgetLearnedClass
    | c.RaiseEpoch
)
WRITES: frozenset[type[Write]] = frozenset(get_args(Write))
Leaving: TypeAlias = (
    c.SendToNode
    | c.NotifyApplication
    | c.Reply
    | c.Refuse
    | c.SendToScheduler
    | c.DropNode
    | c.DropScheduler
)
LEAVING: frozenset[type[Leaving]] = frozenset(get_args(Leaving))
"""What leaves the master's process; what is in neither set concerns its own schedulers."""
_OUTSIDE_BATCHES = frozenset({c.SendToNode, c.DropNode, c.SendToScheduler, c.DropScheduler})
"""They wait only for the names that they concern."""
HELD_MAX = 200_000
"""Batches that wait for one disk."""
_ALL_NAMES = "*"
"""In place of a name, for an answer of unknown subject: it waits for all that is held."""
_QUEUES = "queues of applications"
"""In place of a name, for what is about the tree of queues; no node and no application has it."""


@dataclass(frozen=True, slots=True)
class Held:
    """``leaving`` once ``writes`` are on the disk, and all that was held before has left."""

    writes: tuple[Write, ...]
    leaving: tuple[c.MasterCommand, ...]
    concerned: frozenset[str]

    def refusals(self, error: DiskFull) -> tuple[c.Refuse, ...]:
        """What its callers get in place of the replies that wait for the disk."""
        calls = (x.call_id for x in self.leaving if isinstance(x, c.Reply | c.Refuse))
        return tuple(c.Refuse(call_id=call_id, error=error) for call_id in calls)


class WriteGate:
    """The gate of one master, made before that takes in its first event.

    ``full``: why the master is paused; None: it is not.

    Invariant: ``_held_for`` counts for each application and node the batches in ``held`` that write
    about it or go to it; while that is not zero nothing leaves for it.
    """

    def __init__(self, core: MasterCore) -> None:
        self.held: deque[Held] = deque()
        self.full: DiskFull | None = None
        self._core = core
        self._held_for: Counter[str] = Counter()
        self._admitted: set[str] = set(core.master_state.applications)

    def pause(self, error: DiskFull) -> tuple[c.Refuse, ...]:
        """The disk is full. Returns what releases the callers that wait for it: their requests are
        written when there is space, and may be repeated."""
        self.full = error
        return tuple(refusal for held in self.held for refusal in held.refusals(error))

    def resume(self) -> None:
        """The disk has space again."""
        self.full = None

    def refusal(self, event: e.MasterEvent) -> DiskFull | None:
        """Why a call must not reach the core: the disk is full, and something of it would have to
        be written before its caller is answered. None: it may."""
        return self.full if self.full is not None and self._requires_write(event) else None

    def ignores(self, event: e.MasterEvent) -> bool:
        """Must this report not reach the core? A lost node stays lost until the disk has space:
        back in service at once, it would be granted containers without receiving the orders. Its
        next heartbeat repeats the report."""
        return (
            self.full is not None
            and isinstance(event, e.NodeReported)
            and self._core.nodes.is_lost(event.node)
        )

    def take(
        self, event: e.MasterEvent, writes: Sequence[Write], leaving: Sequence[c.MasterCommand]
    ) -> tuple[Sequence[c.MasterCommand], Held | None]:
        """What leaves at once of what ``event`` led to, and what is held, if anything is: while
        the master is paused, refusals leave in place of the replies among that.

        Raises:
            Unavailable: ``HELD_MAX`` batches wait already: the disk accepts no writes any more.
        """
        # Of a request for another priority the whole effect is a record that is there already.
        is_intent = isinstance(event, e.PriorityRequested)
        intent = tuple(write for write in writes if self._is_intent(write) or is_intent)
        if not intent and not self.held:
            return leaving, None
        about = _about(event)
        written = {name for write in intent for name in _concerned(write, about)}
        passing: list[c.MasterCommand] = []
        waiting: list[c.MasterCommand] = []
        waits_for: set[str] = set(written)
        for command in leaving:
            names = _concerned(command, about)
            may_leave = not intent or type(command) in _OUTSIDE_BATCHES
            if may_leave and not self._is_held(names) and waits_for.isdisjoint(names):
                passing.append(command)
            else:
                waiting.append(command)
                waits_for.update(names)
        if not intent and not waiting:
            return passing, None
        if len(self.held) >= HELD_MAX:
            raise Unavailable(f"{HELD_MAX} replies wait for a disk that does not complete writes")
        held = Held(intent, tuple(waiting), frozenset(waits_for))
        self.held.append(held)
        self._held_for.update(held.concerned)
        if self.full is not None:
            passing += held.refusals(self.full)
        return passing, held

    def release(self) -> Sequence[c.MasterCommand]:
        """The writes of the oldest held batch are on the disk: it leaves."""
        held = self.held.popleft()
        for name in held.concerned:
            self._held_for[name] -= 1
            if not self._held_for[name]:
                del self._held_for[name]
        return held.leaving

    def _is_held(self, names: tuple[str, ...]) -> bool:
        held_for = self._held_for
        return bool(held_for) and any(x in held_for or x == _ALL_NAMES for x in names)

    def _is_intent(self, write: Write) -> bool:
        match write:
            case c.PersistApplication():
                record = write.record
                is_new = record.application_id not in self._admitted
                self._admitted.add(record.application_id)
                return is_new or record.state.ended
            case c.ForgetApplication():
                self._admitted.discard(write.application_id)
                return False
            case c.RememberNode() | c.RememberDrain() | c.ForgetDrain() | c.PersistQueues():
                return True
        return False

    def _requires_write(self, event: e.MasterEvent) -> bool:
        match event:
            case e.ApplicationRegistered(application_id=""):
                submitted_as = self._core.master_state.submitted_as
                return submitted_as(event.owner, event.submission_key) is None
            case e.NodeRegistered():
                return self._core.nodes.needs_writing(event.node, event.owner)
            case e.KillRequested() | e.DrainRequested() | e.PriorityRequested():
                return True
            case e.QueuesChanged():
                return not event.dry_run
        return False


def _about(event: e.MasterEvent) -> tuple[str, ...]:
    """The names that an answer to this event may concern."""
    match event:
        case e.NodeRegistered() | e.RebindRequested() | e.RebindReplied():
            return (event.node,)
        case (
            e.ApplicationRegistered()
            | e.ApplicationAttached()
            | e.KillRequested()
            | e.PriorityRequested()
        ):
            return (event.application_id,) if event.application_id else ()
        case e.DrainRequested():
            return event.nodes
        case e.QueuesChanged():
            return (_QUEUES,)
        case e.SchedulerConnected() | e.LeaseRequested() | e.LeaseReturned() | e.ClaimsProposed():
            return ()
    return (_ALL_NAMES,)


def _concerned(command: c.MasterCommand, about: tuple[str, ...]) -> tuple[str, ...]:
    """Names of the applications and nodes that a command writes about or goes to. One name for two
    of them would hold back more than necessary, never less."""
    if type(command) is c.SendToNode:  # most of them
        message = command.message
        if type(message) is c.AssignContainer:
            return command.node, message.spec.application_id
        return (command.node,)
    match command:
        case c.NotifyApplication():
            return (command.application_id,)
        case c.PersistApplication():
            return (command.record.application_id,)
        case c.PersistQueues():
            return (_QUEUES,)
        case c.RememberNode() | c.RememberDrain() | c.ForgetDrain() | c.DropNode():
            return (command.node,)
        case c.Reply(result=c.ApplicationAdmitted(application_id=application_id)):
            return (application_id,)
        case c.Reply(result=c.LeaseGranted() | c.ClaimsSettled()):
            return ()  # of schedulers
        case c.Reply() | c.Refuse():
            return about
    return ()
