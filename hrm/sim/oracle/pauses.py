"""While the disk of the master is full: is all that needs it refused before it changes anything?

A caller is not kept waiting for the disk, and what a crash could contradict is not begun: neither a
call nor the report of a lost node leads to a write that something waits for.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from hrm.core.master.write_gate import Held
from hrm.core.messages import commands as c
from hrm.core.messages import events as e

__all__ = ["Pauses"]


class Pauses:
    """Checks each event that a paused master takes in."""

    def __init__(self, violated: Callable[[str], None]) -> None:
        self._violated = violated

    def after(
        self,
        event: e.MasterEvent,
        commands: Iterable[c.MasterCommand],
        held: Iterable[Held],
        calls: Collection[int],
    ) -> None:
        """``held``: what waited for the disk before the event; ``calls``: those without a reply."""
        if getattr(event, "call_id", 0) or isinstance(event, e.NodeReported):
            for command in commands:
                if _begins(event, command):
                    self._violated(
                        f"{type(event).__name__} leads to {type(command).__name__} on a full disk"
                    )
        for each in held:
            for command in each.leaving:
                if isinstance(command, c.Reply | c.Refuse) and command.call_id in calls:
                    self._violated(f"call {command.call_id} waits for a full disk")


def _begins(event: e.MasterEvent, command: c.MasterCommand) -> bool:
    match command:
        case c.RememberNode() | c.RememberDrain() | c.ForgetDrain():
            return True
        case c.PersistApplication():
            is_new = isinstance(event, e.ApplicationRegistered) and not event.application_id
            return is_new or command.record.state.ended
    return False
