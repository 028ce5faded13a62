"""Which containers are preempted so that GPUs are shared fairly at once, where that is switched on.

An application below its fair share that waits gets capacity from those above theirs: of their
containers the newest, which lose least, and no more than are above; before others those at units
in whose queue it waits. None is preempted where the one that waits would not start for it.

Source: not in the HRM paper, which shares out only what is free (section 4.3.3).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from hrm.core.master.state import Container, MasterState
from hrm.core.vocabulary.feasibility import Vector, demand_vector, fits, plus
from hrm.core.vocabulary.model import ApplicationId, NodeName, ResourceUnitId
from hrm.core.vocabulary.node_requirement import NodeRequirement

__all__ = ["Lack", "victims"]


class Lack(NamedTuple):
    """``containers`` of ``demand`` that one application lacks to its share, and cannot start now.
    ``avoided``: nodes that are excluded for it; ``queued_at``: units where some wait already;
    ``requires``: what a node must meet, None: nothing."""

    demand: Vector
    containers: int
    avoided: frozenset[NodeName]
    queued_at: frozenset[ResourceUnitId]
    requires: NodeRequirement | None = None


def victims(
    master_state: MasterState,
    lacks: Iterable[Lack],
    running: Sequence[Container],
    above_mib: dict[ApplicationId, int],
) -> Iterator[Container]:
    """Those to preempt. ``running``: of applications above their share; ``above_mib``: by how much
    each is. At a unit one container is served in a round."""
    newest = sorted(running, key=lambda x: (-x.started_at_s, x.container_id))
    left, served = dict(above_mib), set[ResourceUnitId]()
    for lack in lacks:
        for _ in range(lack.containers):
            chosen = _for_one(master_state, lack, newest, left, served)
            if not chosen:
                break
            served.add(chosen[0].unit_id)
            for container in chosen:
                left[container.application_id] -= _mib(container)
            yield from chosen


def _for_one(
    master_state: MasterState,
    lack: Lack,
    newest: Sequence[Container],
    left: dict[ApplicationId, int],
    served: set[ResourceUnitId],
) -> list[Container]:
    """Enough of one unit's for one container; empty where there are none."""
    by_unit: dict[ResourceUnitId, list[Container]] = {}
    state = master_state.state
    suited = None if lack.requires is None else state.suited(lack.requires)
    for container in sorted(newest, key=lambda x: x.unit_id not in lack.queued_at):
        unit_id = container.unit_id
        row = state.rows.get(unit_id)
        if row is None or unit_id in served or not state.open[row]:
            continue
        if suited is not None and not suited[row]:
            continue
        queue, here = state.queue(row), by_unit.setdefault(unit_id, [])
        mine = [x for x in here if x.application_id == container.application_id]
        if (
            left[container.application_id] < sum(map(_mib, (*mine, container)))
            or container.node in lack.avoided
            or not queue.could_hold(lack.demand)
        ):
            continue
        here.append(container)
        free = queue.free
        for each in here:
            free = plus(free, demand_vector(each.request.resources))
        if fits(lack.demand, free):
            return here
    return []


def _mib(container: Container) -> int:
    return container.request.resources.gpu_memory_mib
