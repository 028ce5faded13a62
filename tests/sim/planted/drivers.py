"""Bugs of drivers that wait for their turn, and plans in which they show."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from hrm.core.master import driver_queue
from hrm.core.master.driver_places import DriverPlaces
from hrm.core.master.driver_queue import DriverQueue
from hrm.core.vocabulary.model import Resources, ResourceUnit, ResourceUnitId, WorkloadClass
from hrm.sim.faults.plan import KINDS, TRAITS, ApplicationPlan, Limits, Plan, SubmissionPlan
from hrm.sim.faults.plan_generator import draw

__all__ = ["BUGS", "behind_a_labelled_driver", "behind_small_drivers"]

_SSD = ("ssd",)


def share_for_what_streams_hold(patch: pytest.MonkeyPatch) -> None:
    """A driver that waits with its scheduler for one node has a part of the share, as if it could
    get a place at another."""
    could = DriverPlaces.could_get_a_place

    def anywhere(self: DriverPlaces, _app: Any, demand: Any, rows: Any) -> bool:
        return could(self, SimpleNamespace(requires=None), demand, rows)  # type: ignore[arg-type]

    patch.setattr(DriverPlaces, "could_get_a_place", anywhere)


def small_drivers_pass(patch: pytest.MonkeyPatch) -> None:
    """What drivers of batch hold counts as held for ever where they are to be ended."""
    begin = DriverPlaces.__init__

    def begin_as_it_is(self: DriverPlaces, *args: Any, **options: Any) -> None:
        begin(self, *args, **options)
        some = self._uncounted.items()
        self._uncounted = {row: part for row, part in some if min(part) >= 0}

    patch.setattr(DriverPlaces, "__init__", begin_as_it_is)


def no_turn_for_large_drivers(patch: pytest.MonkeyPatch) -> None:
    """Whatever fits passes those that wait."""
    patch.setattr(driver_queue, "holds_up", lambda _: False)


def turn_for_what_streams_hold(patch: pytest.MonkeyPatch) -> None:
    """One that waits for the end of a stream, and for a part of the share, holds up others."""

    def waits(self: DriverQueue, endless: DriverPlaces, container: Any) -> bool:
        return not self._verdict(endless, container).why

    patch.setattr(DriverQueue, "_waits_for_batch", waits)


def behind_a_labelled_driver(seed: int, *, there: bool = False) -> Plan:
    """Nothing fails. A stream holds the node that has a label, for which a driver waits that would
    hold all of the share; others come later. ``there``: one has been there before."""
    without = frozenset({*KINDS, *TRAITS} - {"submissions"})
    plan = draw(seed, Limits(nodes=3, applications=1, horizon_s=10.0, without=without))
    nodes = tuple(
        replace(node, units=(_unit(node.name, 8),), labels=labels)
        for node, labels in zip(plan.nodes, (_SSD, (), ()), strict=True)
    )
    stream = ApplicationPlan(
        "app-1",
        0.5,
        Resources(8, 512),
        ((0.0, 1),),
        45.0,
        declared=WorkloadClass.STREAM,
        labels=_SSD,
    )
    first = [_submission(0, 2.0, 2, 40.0)] if there else []
    behind = replace(_submission(1, 3.0, 3 if there else 4, 1.0), labels=_SSD)
    later = [_submission(n, 2.0 + n, 1 if there else 2, 1.0) for n in (2, 3)]
    submissions = (*first, behind, *later)
    return _with_share(plan, nodes, (stream,), submissions)


def behind_small_drivers(seed: int) -> Plan:
    """Nothing fails. A driver needs a node on which no other is, and small ones keep coming."""
    without = frozenset({*KINDS, *TRAITS} - {"submissions"})
    plan = draw(seed, Limits(nodes=1, applications=0, horizon_s=4.0, without=without))
    nodes = (replace(plan.nodes[0], units=(_unit(plan.nodes[0].name, 10),)),)
    small = [_submission(n, 1.0 + 3.0 * n, 1, 6.0) for n in range(8)]
    large = replace(
        _submission(9, 3.0, 1, 2.0), executors=1, executor=Resources(9, 512), work_s=1.0
    )
    return _with_share(plan, nodes, (), (*small, large))


def _with_share(
    plan: Plan,
    nodes: Any,
    applications: tuple[ApplicationPlan, ...],
    submissions: tuple[SubmissionPlan, ...],
) -> Plan:
    bounds = replace(plan.bounds, driver_share=0.2)
    return replace(
        plan,
        nodes=nodes,
        bounds=bounds,
        schedulers=1,
        policy="min-wait",
        applications=applications,
        submissions=submissions,
    )


def _unit(node: str, vcores: int) -> ResourceUnit:
    unit_id = ResourceUnitId(f"{node}/cpu")
    return ResourceUnit(
        unit_id=unit_id, capacity=Resources(vcores, 1024 * vcores), run_limit=vcores
    )


def _submission(number: int, start_s: float, vcores: int, runs_s: float) -> SubmissionPlan:
    return SubmissionPlan(
        name=f"client-{number}",
        start_s=start_s,
        resources=Resources(vcores, 512),
        supervise=False,
        stream=False,
        lives=((runs_s, 0),),
        executors=0,
    )


BUGS = [
    share_for_what_streams_hold,
    small_drivers_pass,
    no_turn_for_large_drivers,
    turn_for_what_streams_hold,
]
