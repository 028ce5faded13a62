"""What drains have to do with a wait, for people.

A queue's share is of the nodes that take something new. Where an administrator has drained the
others, or all, that is why a share is small, and what to undo.
"""

from __future__ import annotations

from hrm.core.master.state import MasterState
from hrm.core.vocabulary.model import NodeState

__all__ = ["drained_note"]

_NAMED_MAX = 3


def drained_note(master_state: MasterState) -> tuple[str, bool]:
    """Which nodes are under drain, and how that is undone; empty: none. With whether all are."""
    there = [node for node in master_state.nodes.values() if node.state is not NodeState.LOST]
    drained = [node.name for node in there if node.state is NodeState.DRAINING]
    if not drained:
        return "", False
    named = ", ".join(drained[:_NAMED_MAX]) + (", ..." if len(drained) > _NAMED_MAX else "")
    undo = f"hrm node drain --undo {drained[0]} takes it back"
    if len(drained) < len(there):
        verb = "is" if len(drained) == 1 else "are"
        return f"{len(drained)} of {len(there)} nodes {verb} drained ({named}): {undo}", False
    many = f"all {len(there)} nodes are" if len(there) > 1 else "the only node is"
    return f"nothing new starts, since {many} drained ({named}): {undo}", True
