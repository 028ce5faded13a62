"""A journal for tests: containers that start and end, by one master or several."""

from __future__ import annotations

from typing import Any

from hrm.core.vocabulary.history import StateEvent

__all__ = ["Events"]


class Events:
    """Makes events with rising numbers; ``epoch``: of the master that writes."""

    def __init__(self, epoch: int = 1) -> None:
        self.epoch = epoch
        self.count = 0
        self.made: list[StateEvent] = []

    def _add(self, at_s: float, kind: str, to_state: str, **more: Any) -> None:
        self.count += 1
        number = (self.epoch << 32) + self.count
        event = StateEvent(event_id=number, at_s=at_s, kind=kind, to_state=to_state, **more)
        self.made.append(event)

    def started(
        self, at_s: float, name: str, node: str = "node-1", app: str = "app", was: str = "assigned"
    ) -> None:
        self._add(
            at_s, "container", "running", container_id=name, node=node, application_id=app,
            from_state=was,
        )  # fmt: skip

    def ended(self, at_s: float, name: str, node: str = "node-1") -> None:
        self._add(at_s, "container", "ended", container_id=name, node=node, from_state="running")

    def journal(self, at_s: float, what: str) -> None:
        self._add(at_s, "journal", what)

    def taken(self) -> list[StateEvent]:
        """What has been made since the last time."""
        made, self.made = self.made, []
        return made
