"""Which containers are preempted so that GPUs are shared fairly at once, where that is switched on.

An application below its fair share that waits gets capacity from those above theirs: of their
containers the newest, which lose least, and no more than are above; before others those at units
in whose queue it waits. None is preempted where the one that waits would not start for it, nor
where one that gives would then have no more than the one that waits has now: so the least that any
of them holds only rises, and executors of several sizes, for which all GPUs do not divide alike,
are not preempted for each other in turn. What they free is held for the one that waits
(``hrm.core.master.gpu_holds``).

Source: not in the HRM paper, which shares out only what is free (section 4.3.3).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from hrm.core.master.state import Container, MasterState
from hrm.core.vocabulary.feasibility import Column, Vector, demand_vector, fits, plus
from hrm.core.vocabulary.model import ApplicationId, NodeName, ResourceUnitId
from hrm.core.vocabulary.node_requirement import NodeRequirement

__all__ = ["Lack", "victims"]


class Lack(NamedTuple):
    """``containers`` of ``demand`` that an application lacks to its share, and cannot start now.
    ``avoided``: nodes that are excluded for it; ``queued_at``: units where some wait already;
    ``requires``: what a node must meet, None: nothing."""

    application_id: ApplicationId
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
    kept_mib: Mapping[ApplicationId, int],
    closed: Collection[ResourceUnitId],
) -> Iterator[tuple[Lack, list[Container]]]:
    """Those to preempt for one container each. ``running``: of applications above their share;
    ``above_mib``: by how much each is; ``kept_mib``: what every one has, but for what is ending;
    ``closed``: units at which none is preempted. At a unit one container is served in a round."""
    newest = sorted(running, key=lambda x: (-x.started_at_s, x.container_id))
    left, kept, served = dict(above_mib), dict(kept_mib), set(closed)
    for lack in lacks:
        for _ in range(lack.containers):
            least_mib = kept[lack.application_id] + 1
            spare = {name: min(x, kept[name] - least_mib) for name, x in left.items()}
            chosen = _for_one(master_state, lack, newest, spare, served)
            if not chosen:
                break
            served.add(chosen[0].unit_id)
            kept[lack.application_id] += lack.demand[Column.GPU_MEMORY_MIB]
            for container in chosen:
                left[container.application_id] -= _mib(container)
                kept[container.application_id] -= _mib(container)
            yield lack, chosen


def _for_one(
    master_state: MasterState,
    lack: Lack,
    newest: Sequence[Container],
    spare_mib: Mapping[ApplicationId, int],
    served: set[ResourceUnitId],
) -> list[Container]:
    """Enough of one unit's for one container; empty where there are none. ``spare_mib``: what each
    may give for it."""
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
            spare_mib[container.application_id] < sum(map(_mib, (*mine, container)))
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
