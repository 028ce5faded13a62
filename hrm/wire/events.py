"""Pages of the journal: ``StateEvent`` to protobuf."""

from __future__ import annotations

from collections.abc import Sequence

from hrm.core.vocabulary.history import StateEvent
from hrm.v1 import events_pb2 as pb

__all__ = ["from_event", "from_events", "reached"]


def from_events(events: Sequence[StateEvent]) -> pb.EventPage:
    """At least one, in order; the last one is where a reader resumes."""
    page = reached(events[-1].event_id)
    page.events.extend(from_event(event) for event in events)
    return page


def reached(event_id: int, *, gap: bool = False) -> pb.EventPage:
    """A page without events: where a reader resumes. ``gap``: some before that have expired."""
    return pb.EventPage(resume=str(event_id), gap=gap)


def from_event(event: StateEvent) -> pb.StateEvent:
    return pb.StateEvent(
        event_id=event.event_id,
        at_s=event.at_s,
        kind=event.kind,
        application_id=event.application_id,
        container_id=event.container_id,
        node=event.node,
        from_state=event.from_state,
        to_state=event.to_state,
        reason=event.reason,
        actor=event.actor,
        cause=event.cause,
        exit_code=event.exit_code,
    )
