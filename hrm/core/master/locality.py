"""Executors near the data of the tasks that wait for them, if that costs no more than a short wait.

A driver names with its requests the hosts on which the blocks lie that its waiting tasks read. A
host that is full may stay full, hence *delay scheduling*: a container that could be near its data
waits for capacity there, for at most ``spark.hrm.locality.wait``, and then takes what is available.

- Only hosts of this cluster count, by the address or the name of a node. Where its queue has a part
  left of one platform (``hrm.core.master.platform_shares``), and some are of that one, these do. A
  request whose hosts could never hold it does not wait.
- Near is where it can start at once; it does not queue there.
- Streams, gangs and policies of strict order prefer their hosts, and wait for nothing.

Source: M. Zaharia et al., Delay Scheduling, EuroSys 2010, section 3 (there for tasks, and counted
in skipped offers; here for executors, and in seconds).
"""

from __future__ import annotations

from dataclasses import replace

from hrm.core.master.state import MasterState
from hrm.core.vocabulary.model import ContainerRequest, NodeName, NodeState

__all__ = ["resolve", "waiting_line"]


def resolve(master_state: MasterState, request: ContainerRequest) -> ContainerRequest:
    """The request with the live nodes that its hosts are, in the order of the hosts."""
    nodes_at: dict[str, list[NodeName]] = {}
    for node in master_state.nodes.values():
        if node.state is NodeState.ALIVE:
            for word in {node.name, node.host}:
                nodes_at.setdefault(word, []).append(node.name)
    near = dict.fromkeys(name for host in request.hosts for name in nodes_at.get(host, ()))
    alike = near
    if request.platform:
        alike = {x: None for x in near if master_state.nodes[x].platform == request.platform}
    return replace(request, near=tuple(alike or near))


def waiting_line(request: ContainerRequest, waited_s: float) -> str:
    """What a container waits for that could be near its data; empty once it is over."""
    left_s = request.locality_wait_s - waited_s
    if not request.near or left_s <= 0:
        return ""
    return (
        f"for {left_s:.1f} s more it is placed only where it could start at once on "
        f"{' or '.join(request.near[:5])}, near its data (spark.hrm.locality.wait)"
    )
