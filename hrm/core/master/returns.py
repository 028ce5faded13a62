"""Containers that wait at a node and are to wait elsewhere: the node is ordered to return them.

The order has no effect on one that has started meanwhile. A container that is returned ends as
preempted, and its application requests it again.

``may_return`` says where that is of use: a driver stays, since its end would count as one of its
attempts, and so does the container of a gang that is not complete, for which another module decides
(``hrm.core.master.gang_starts``). What cannot start where it waits is returned all the same
(``hrm.core.master.drains``). ``starts_where_it_waits`` says where it is of none, whatever is
thought of its application's share: the place would be found again at once.
"""

from __future__ import annotations

from hrm.core.master import gangs
from hrm.core.master.entities import Container
from hrm.core.master.state import MasterState
from hrm.core.queue.yielding import served
from hrm.core.vocabulary.model import ContainerState, EndCause, is_driver

__all__ = ["may_return", "return_waiting", "starts_where_it_waits"]


def may_return(
    master_state: MasterState, container: Container, now: float, *, just_queued: bool = False
) -> bool:
    """May it be returned now? ``just_queued``: also where its assignment is the only order that its
    node has had, and is recent."""
    is_quiet = now - container.sent_at_s >= master_state.bounds.resend_delay_s
    return (
        container.state is ContainerState.WAITING
        and container.stop_cause is None
        and (is_quiet or (just_queued and container.sent_at_s == container.assigned_at_s))
        and not is_driver(container.application_id)
        and not gangs.missing(master_state.applications[container.application_id])
    )


def starts_where_it_waits(master_state: MasterState, container: Container) -> bool:
    """Is nothing in its way where it waits but what yields, by all that is known here? Returned, it
    would be placed there again: what is free and what is yielded is what places are chosen by."""
    queue = master_state.state.find(container.unit_id)
    return queue is not None and any(
        entry.container_id == container.container_id for entry in served(queue)
    )


def return_waiting(
    master_state: MasterState, container: Container, reason: str, now: float
) -> None:
    """Order its node to return a container unless it has started."""
    assert container.node is not None
    node, cause = master_state.nodes[container.node], EndCause.PREEMPTED
    master_state.send_stop(node, container, cause, reason, now, only_if_waiting=True)
