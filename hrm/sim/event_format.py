"""The log of what has happened, and how events and commands are written in it.

The log's hash is over this text, so it contains whatever decides how a run goes on.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterable
from typing import Any

from hrm.core.messages import commands as c
from hrm.core.messages import events as e
from hrm.core.messages import submissions as m
from hrm.core.messages.claims import Proposal
from hrm.core.messages.state_changes import StateChanged
from hrm.core.vocabulary.model import ContainerStatus
from hrm.runtime.clock import Clock

__all__ = ["EventLog", "of_change", "of_command", "of_commands", "of_event"]

_BUFFERED_LINES = 256
_TAIL_LINES = 80


class EventLog:
    """Lines of ``time actor what``, times from its beginning. ``events`` counts them; ``tail``
    holds the latest."""

    def __init__(self, clock: Clock) -> None:
        self.events = 0
        self.tail: deque[str] = deque(maxlen=_TAIL_LINES)
        self._clock = clock
        self._begin_s = clock.now
        self._hash = hashlib.sha256()
        self._buffer: list[str] = []

    def emit(self, actor: str, what: str) -> None:
        self.events += 1
        line = f"{self._clock.now - self._begin_s:.6f} {actor}: {what}"
        self.tail.append(line)
        self._buffer.append(line)
        if len(self._buffer) >= _BUFFERED_LINES:
            self._flush()

    def hash(self) -> str:
        """The hash of all lines so far, in hexadecimal."""
        self._flush()
        return self._hash.hexdigest()

    def _flush(self) -> None:
        if self._buffer:
            self._hash.update(("\n".join(self._buffer) + "\n").encode())
            self._buffer.clear()


def of_event(event: Any) -> str:
    """One event, without its time."""
    name = type(event).__name__
    match event:
        case e.NodeReported():
            source = f"{event.node}/{event.incarnation}#{event.sequence}"
            return f"{name} {source} {_statuses(event.containers)}"
        case e.ContainerReported():
            source = f"{event.node}/{event.incarnation}#{event.sequence}"
            return f"{name} {source} {_status(event.container)}"
        case e.NodeRegistered():
            source = f"{event.node}/{event.incarnation} {event.identity}"
            return f"{name} {source} {_statuses(event.containers)}"
        case e.ContainersRequested():
            ids = ",".join(request.executor_id for request in event.requests)
            return f"{name} {event.application_id} {ids}"
        case e.ContainersReleased():
            return f"{name} {event.application_id} {','.join(event.executor_ids)}: {event.reason}"
        case e.ClaimsProposed():
            return f"{name} {_proposal(event.proposal)}"
        case e.AssignReceived():
            return f"{name} {event.spec.container_id} (epoch {event.epoch})"
        case e.ProcessEnded():
            return f"{name} {event.container_id} {event.end.cause.value}"
        case e.ContainerAdopted():
            return f"{name} {event.spec.container_id}"
        case m.Submitted():
            return f"{name} {_submission(event.record)}"
    return f"{name} {_fields(event)}".rstrip()


def of_commands(commands: Iterable[Any]) -> str:
    """What follows from an event; empty where nothing does."""
    words = "; ".join(map(of_command, commands))
    return f" -> {words}" if words else ""


def of_command(command: Any) -> str:
    name = type(command).__name__
    match command:
        case c.SendToNode():
            return f"to {command.node}/{command.incarnation}: {of_command(command.message)}"
        case c.NotifyApplication():
            return f"to {command.application_id}: {of_command(command.notice)}"
        case c.AssignContainer() | c.StartProcess():
            return f"{name} {command.spec.container_id} at {command.spec.unit_id}"
        case c.ContainerChanged() | c.ReportContainer():
            return f"{name} {_status(command.status)}"
        case c.SendHeartbeat():
            return f"{name} {_statuses(command.statuses)}"
        case c.PersistApplication():
            record = command.record
            return f"{name} {record.application_id} {record.state.value}"
        case c.ProposeClaims():
            return f"{name} {_proposal(command.proposal)}"
        case c.Reply():
            return f"{name} {command.call_id} {type(command.result).__name__}"
        case c.Refuse() | m.RefuseCall():
            return f"{name} {command.call_id} {command.error.message}"
        case c.SendToScheduler():
            return f"to {command.scheduler}/{command.session}: {of_change(command.message)}"
        case m.PersistSubmission():
            return f"{name} {_submission(command.record)}"
        case c.WakeScheduler():
            return f"{name} {command.scheduler} {command.at_s:.6f}"
    return f"{name} {_fields(command)}".rstrip()


def of_change(message: StateChanged) -> str:
    """What a message to a remote scheduler contains."""
    jobs = " ".join(f"{x.application_id}:{len(x.pending)}" for x in message.jobs)
    units = ",".join(x.unit.unit_id for x in message.units)
    has_freed = " room" if message.has_freed else ""
    return f"#{message.sequence} [{units}] gone [{','.join(message.gone)}] [{jobs}]{has_freed}"


def _fields(message_or_command: Any) -> str:
    names = [
        name for kind in type(message_or_command).__mro__ for name in getattr(kind, "__slots__", ())
    ]
    shown = (getattr(message_or_command, name) for name in names if name not in ("now", "launch"))
    return " ".join(_value(value) for value in shown)


def _value(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(map(_value, value))
    if isinstance(value, frozenset):  # its own order differs between processes
        return ",".join(sorted(map(_value, value)))
    if isinstance(value, float):
        return f"{value:.6f}"
    return str(getattr(value, "value", value))


def _status(status: ContainerStatus) -> str:
    return f"{status.container_id}={status.state.value}"


def _submission(record: m.SubmissionRecord) -> str:
    return f"{record.submission_id} {record.state.value} #{record.attempt} {record.key}"


def _statuses(statuses: Iterable[ContainerStatus]) -> str:
    return "[" + " ".join(map(_status, statuses)) + "]"


def _proposal(proposal: Proposal) -> str:
    claims = " ".join(f"{x.entry.container_id}@{x.unit_id}" for x in proposal.claims)
    return (
        f"{proposal.scheduler} {proposal.application_id} {proposal.workload_class.value} "
        f"token {proposal.lease_token} [{claims}]"
    )
