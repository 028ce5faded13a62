"""No container runs on a node that its application's requirement excludes.

It is checked twice: where the master grants a place, with what the driver has excluded by then, and
where a machine starts the process, with what lasts. What the application requires is taken from its
own registration, what a node has from the agent's, and both are compared by the simulator's own
code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from hrm.core.master.core import MasterCore
from hrm.core.messages import commands as c
from hrm.core.messages import events as e
from hrm.core.vocabulary.model import ApplicationId, ContainerSpec, NodeName
from hrm.core.vocabulary.node_requirement import (
    UNKNOWN_PROPERTIES,
    NodeProperties,
    NodeRequirement,
)
from hrm.sim.faults.labels import meets

__all__ = ["Requirements"]

_NODE_EVENTS = (e.NodeRegistered, e.NodeReported, e.ContainerReported)
"""After these a node that has never answered gets an earlier grant once more."""
_NOTHING = NodeRequirement()


class Requirements:
    """``grants``: of applications that require something."""

    def __init__(self, violated: Callable[[str], None]) -> None:
        self._violated = violated
        self._required: dict[ApplicationId, NodeRequirement] = {}
        self._nodes: dict[NodeName, NodeProperties] = {}
        self._registering: dict[int, NodeRequirement | None] = {}
        self.grants = 0

    def master_began(self) -> None:
        """Calls to the one before are over, and their numbers are used again."""
        self._registering.clear()

    def after(
        self, core: MasterCore, event: e.MasterEvent, commands: Iterable[c.MasterCommand]
    ) -> None:
        match event:
            case e.ApplicationRegistered():
                self._registering[event.call_id] = event.requires
            case e.NodeRegistered() if not _is_refused(core, event):
                self._nodes[event.node] = NodeProperties(
                    host=event.host, labels=event.labels, runtimes=event.runtimes
                )
            case e.HostsExcluded():
                before = self._required.get(event.application_id, _NOTHING)
                now = replace(before, excluded_hosts=event.hosts)
                self._required[event.application_id] = now
        for command in commands:
            match command:
                case c.Reply(result=c.ApplicationAdmitted(application_id=name)):
                    if command.call_id in self._registering:
                        requires = self._registering.pop(command.call_id)
                        self._required[name] = requires or _NOTHING
                case c.SendToNode(message=c.AssignContainer(spec=spec)):
                    if not isinstance(event, _NODE_EVENTS):
                        self._granted(command.node, spec)

    def _granted(self, node: NodeName, spec: ContainerSpec) -> None:
        requires = self._required.get(spec.application_id)
        if requires is None or requires == _NOTHING:
            return
        self.grants += 1
        if not meets(requires, self._nodes.get(node, UNKNOWN_PROPERTIES)):
            self._violated(
                f"{spec.container_id} is granted {node}, which is none for its application"
            )

    def began(self, node: NodeName, spec: ContainerSpec) -> None:
        """A process begins. What its driver has excluded meanwhile may have come too late."""
        requires = self._required.get(spec.application_id, _NOTHING)
        lasting = replace(requires, excluded_hosts=frozenset())
        if not meets(lasting, self._nodes.get(node, UNKNOWN_PROPERTIES)):
            self._violated(f"{spec.container_id} runs on {node}, which is none for its application")


def _is_refused(core: MasterCore, event: e.NodeRegistered) -> bool:
    """Was it an impostor, whose registration changes nothing?"""
    node = core.master_state.nodes.get(event.node)
    known = None if node is None else (node.identity, node.owner, node.incarnation)
    return known != (event.identity, event.owner, event.incarnation)
