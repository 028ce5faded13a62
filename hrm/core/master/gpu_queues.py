"""What waits for GPUs at units, as shares count it.

Where one waits at a unit, what is free there is no longer open to others. To be queued must not
change what there is to share out, or a place in a queue would be beyond its application's share for
being there, and within it again as soon as it was taken back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from hrm.core.master.gpu_contest import GpuUser
from hrm.core.master.gpu_lines import Nodes
from hrm.core.queue.yielding import beside_served, served, yields_there
from hrm.core.scheduling.shared_state import SharedState
from hrm.core.vocabulary.columns import Bools, Ints
from hrm.core.vocabulary.feasibility import Column, folds

__all__ = ["GpuQueues", "queued_for"]


class GpuQueues(NamedTuple):
    """Of each user, in their order.

    ``starting_mib``: device memory of what it has queued where it starts with no other decision:
    what is free there, as far as is known here, or yielded suffices. It was startable before it was
    queued. ``behind``: of each of its lots, how many could start in what is free behind others
    that wait, and do not fit there yet.
    """

    starting_mib: Sequence[int]
    behind: Sequence[Sequence[int]]


def queued_for(state: SharedState, users: Sequence[GpuUser], places: Sequence[Nodes]) -> GpuQueues:
    """What waits at units with as many GPUs as the users' executors use. ``places``: where each
    user may be."""
    starting_mib = [0] * len(users)
    behind: list[Sequence[int]] = [user.nothing for user in users]
    lots = ((index, lot) for index, user in enumerate(users) for lot in user.lots)
    owners = {x.container_id: index for index, lot in lots for x in lot.queued}
    if not owners:
        return GpuQueues(starting_mib, behind)
    some_free = state.free[:, Column.GPU_MEMORY_MIB] > 0
    blocked: list[int] = []
    left: list[Sequence[int]] = []
    of_kind = (state.waiting_batch > 0) & (state.gpus == users[0].slots)
    for row in np.flatnonzero(of_kind).tolist():
        queue = state.queue(row)
        yields = yields_there(queue)
        if not (some_free[row] or yields):
            continue
        for entry in served(queue):
            index = owners.get(entry.container_id)
            if index is not None:
                starting_mib[index] += entry.demand[Column.GPU_MEMORY_MIB]
        if not yields:
            blocked.append(row)
            left.append(beside_served(queue))
    if blocked:
        rows, offers = np.array(blocked), np.array(left)
        behind = [
            [*_behind(state, user, nodes, rows, offers)]
            for user, nodes in zip(users, places, strict=True)
        ]
    return GpuQueues(starting_mib, behind)


def _behind(
    state: SharedState, user: GpuUser, nodes: Nodes, rows: Ints, offers: Ints
) -> Iterator[int]:
    """How many of each of its lots what is left at ``rows`` takes: ``offers``, shape (rows, 4)."""
    open_rows: Bools = np.ones(len(rows), np.bool_)
    if nodes.requires is not None and state.restricts(nodes.requires):
        open_rows &= state.suited(nodes.requires)[rows]
    if nodes.avoided:
        open_rows &= ~state.rows_of(nodes.avoided)[rows]
    for lot in user.lots:
        many = lot.pending if user.late else lot.waiting
        could = folds(lot.demand, offers[open_rows], state.pool[rows][open_rows]) if many else 0
        yield min(many, could)
