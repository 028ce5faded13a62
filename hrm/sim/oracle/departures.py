"""Does all that the core commands leave the master, in order, and reach those it is addressed to?

What waits for the disk leaves later than what does not, so there is no order between applications
and nodes; each of them gets its own messages in the order in which the core gave them. An order is
for one life of an agent, and a node whose stream the core ends sends nothing more on it.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable

from hrm.core.messages import commands as c
from hrm.core.messages import events as e

__all__ = ["Departures"]


class Departures:
    """``_waiting``: commands that have not left yet, by addressee. ``_addressed``: every order that
    has left, with the node and the incarnation that it is for. ``_dropped``: streams that the core
    has ended, until they are opened again."""

    def __init__(self, violated: Callable[[str], None]) -> None:
        self._violated = violated
        self._waiting: defaultdict[str, deque[c.MasterCommand]] = defaultdict(deque)
        self._addressed: dict[int, tuple[c.NodeMessage, str, str]] = {}
        self._dropped: set[tuple[str, str]] = set()

    def master_began(self) -> None:
        """What a master has not sent is lost with it, as are its streams."""
        self._waiting.clear()
        self._dropped.clear()

    def after(self, event: e.MasterEvent, commands: Iterable[c.MasterCommand]) -> None:
        match event:
            case e.NodeRegistered():
                self._dropped.discard((event.node, event.incarnation))
            case e.NodeReported() | e.ContainerReported():
                if (event.node, event.incarnation) in self._dropped:
                    self._violated(
                        f"{event.node}/{event.incarnation} is heard on a stream that was ended"
                    )
        for command in commands:
            addressee = _addressee(command)
            if addressee:
                self._waiting[addressee].append(command)

    def left(self, command: c.MasterCommand) -> None:
        addressee = _addressee(command)
        if not addressee:
            return
        waiting = self._waiting[addressee]
        if not waiting or waiting[0] is not command:
            self._violated(f"{type(command).__name__} to {addressee} leaves before its turn")
        else:
            waiting.popleft()
        if isinstance(command, c.SendToNode):
            message = command.message
            self._addressed[id(message)] = (message, command.node, command.incarnation)
        elif isinstance(command, c.DropNode):
            self._dropped.add((command.node, command.incarnation))

    def arrived(self, node: str, incarnation: str, message: c.NodeMessage) -> None:
        """An agent gets an order."""
        _, *addressed = self._addressed[id(message)]
        if addressed != [node, incarnation]:
            self._violated(
                f"{node}/{incarnation} gets {type(message).__name__}, which is for "
                f"{'/'.join(addressed)}"
            )

    def held(self) -> list[str]:
        """What has never left."""
        return [
            f"{type(waiting[0]).__name__} to {addressee} has not left the master"
            for addressee, waiting in self._waiting.items()
            if waiting
        ]


def _addressee(command: c.MasterCommand) -> str:
    match command:
        case c.SendToNode() | c.DropNode():
            return command.node
        case c.NotifyApplication():
            return command.application_id
        case c.SendToScheduler() | c.DropScheduler():
            return command.scheduler
    return ""
