"""Does an order to stop that is repeated keep its cause?

A node that never got an order to stop, or has forgotten it, reports that the container runs, and is
ordered again. What follows from the end depends on the cause: a container that was released has
run for as long as it needed to, one that was preempted or killed has not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from hrm.core.master.core import MasterCore
from hrm.core.messages import commands as c
from hrm.core.messages import events as e
from hrm.core.vocabulary.model import ContainerId, EndCause

__all__ = ["StopCauses"]


class StopCauses:
    """``_decided``: the cause for which this master last decided to stop each container. What it
    has not decided, the node has: it preempts."""

    def __init__(self, violated: Callable[[str], None]) -> None:
        self._violated = violated
        self._decided: dict[ContainerId, EndCause] = {}

    def master_began(self) -> None:
        """What the previous master had decided is unknown to this one."""
        self._decided.clear()

    def after(
        self, core: MasterCore, event: e.MasterEvent, commands: Iterable[c.MasterCommand]
    ) -> None:
        """A report of a node leads to no decision, only to repetitions of earlier ones."""
        repeats = isinstance(event, e.NodeRegistered | e.NodeReported | e.ContainerReported)
        for command in commands:
            if not isinstance(command, c.SendToNode):
                continue
            stop, node = command.message, core.master_state.nodes.get(command.node)
            if not isinstance(stop, c.StopContainer) or stop.only_if_waiting:
                continue
            if node is None or stop.container_id not in node.containers:
                continue  # an orphan, which has ended for the master
            if not repeats:
                self._decided[stop.container_id] = stop.cause
                continue
            cause = self._decided.get(stop.container_id, EndCause.PREEMPTED)
            if stop.cause is not cause:
                self._violated(
                    f"{stop.container_id} is to stop as {cause.value}, and {command.node} is "
                    f"ordered again to stop it as {stop.cause.value}"
                )
