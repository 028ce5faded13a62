"""A candidate for the number of workers that says anything, under the guard that the master has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hrm.pipelines.core.resizing import InForce, OnePerTask, Resizing, WorkloadView
from hrm.pipelines.policies.resizing.guarded import GuardedResizing
from hrm.policies.guard import GuardMode
from hrm.sim.faults.plan import source

if TYPE_CHECKING:
    from hrm.sim.world import World

__all__ = ["wild_resizing"]


class _Wild:
    """Too many, too few, what is no number; and what there is enough of, once faults have stopped:
    with one worker all is done in the end, but not in time."""

    name = "wild"

    def __init__(self, world: World) -> None:
        self._world = world
        self._chance = source(world.plan.seed, "wild resizing")

    def workers(self, view: WorkloadView) -> Any:
        if self._world.faults_stopped:
            return view.enough
        drawn = self._chance.randrange(8)
        if drawn == 0:
            raise ValueError("no idea")
        anything = (None, 0, -1, 1, 1.5, 10**9, view.workers_max, view.enough)
        return anything[drawn]


def wild_resizing(world: World) -> Resizing:
    """In half of the runs with other policies than the default ones."""
    chance = source(world.plan.seed, "resizing")
    heuristic = OnePerTask()
    if "policies" not in world.plan.traits or chance.random() < 0.5:
        return InForce(heuristic)
    mode = chance.choice([GuardMode.SHADOW, GuardMode.CANARY_50, GuardMode.ON])
    return GuardedResizing(
        "wild", _Wild(world), heuristic, origin="here", clock_s=lambda: 0.0, mode=mode
    )
