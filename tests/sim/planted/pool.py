"""Bugs of a scaler of the pool: machines that go though something runs there, or stand idle."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from hrm.core.pool import sample as pool_sample
from hrm.core.pool.scaler import Scaler, ScalerBounds
from hrm.core.vocabulary.model import (
    NO_UNIT,
    Resources,
    ResourceUnit,
    ResourceUnitId,
    WorkloadClass,
)
from hrm.sim.faults.plan import (
    KINDS,
    TRAITS,
    ApplicationPlan,
    Limits,
    Plan,
    ScalingPlan,
    SubmissionPlan,
)
from hrm.sim.faults.plan_generator import draw

__all__ = ["BUGS", "few_wanted"]


def few_wanted(seed: int) -> Plan:
    """Six nodes for a burst of batch; after it a job of two executors, a stream of one, and a
    driver without any are left for as long as the run takes."""
    limits = Limits(nodes=6, applications=0, horizon_s=25.0, without=frozenset({*KINDS, *TRAITS}))
    plan = draw(seed, limits)
    unit = ResourceUnit(unit_id=NO_UNIT, capacity=Resources(4, 8_192), run_limit=4)
    nodes = tuple(
        replace(node, units=(replace(unit, unit_id=ResourceUnitId(f"{node.name}/cpu")),))
        for node in plan.nodes
    )
    size = Resources(1, 512)
    applications = (
        ApplicationPlan("long", 0.5, size, ((0.0, 2),), 40.0, WorkloadClass.BATCH),
        ApplicationPlan("flow", 0.5, size, ((0.0, 1),), 20.0, WorkloadClass.STREAM),
        ApplicationPlan("burst", 1.0, size, ((0.0, 20),), 40.0, WorkloadClass.BATCH),
    )
    driver = SubmissionPlan(
        name="driver", start_s=0.5, resources=size, supervise=False, stream=False,
        lives=((20.0, 0),), executors=0,
    )  # fmt: skip
    bounds = ScalerBounds(
        nodes_min=0, nodes_max=6, down_after_s=0.5, cooldown_s=0.5, boot_timeout_s=3.0,
        place_after_s=1.0, retry_s=0.5, retry_max_s=1.0, shrink_part=1.0,
    )  # fmt: skip
    return replace(
        plan,
        nodes=nodes,
        applications=applications,
        submissions=(driver,),
        scaling=ScalingPlan(bounds=bounds, interval_s=0.25),
    )


def drivers_are_drained(patch: pytest.MonkeyPatch) -> None:
    """A driver counts as an executor of an application."""
    patch.setattr(pool_sample, "is_driver", lambda _: False)


def busy_machines_are_removed(patch: pytest.MonkeyPatch) -> None:
    """What is drained is removed, whatever runs there still."""
    sampled = Scaler.sampled

    def of_empty(self: Scaler, sample: Any) -> Any:
        nodes = tuple(x if x.is_open else replace(x, containers=0) for x in sample.nodes)
        return sampled(self, replace(sample, nodes=nodes))

    patch.setattr(Scaler, "sampled", of_empty)


def the_only_node_of_a_stream_goes(patch: pytest.MonkeyPatch) -> None:
    """A stream is as any application."""
    sampled = Scaler.sampled

    def of_batch(self: Scaler, sample: Any) -> Any:
        nodes = tuple(replace(x, streams=frozenset()) for x in sample.nodes)
        return sampled(self, replace(sample, nodes=nodes))

    patch.setattr(Scaler, "sampled", of_batch)


def drained_and_forgotten(patch: pytest.MonkeyPatch) -> None:
    """A node that leaves is followed no more once the master does not list it."""
    follow = Scaler._follow

    def of_the_seen(self: Scaler, sample: Any) -> None:
        seen = {node.name for node in sample.nodes}
        self.leaving = {name: None for name in self.leaving if name in seen}
        follow(self, sample)

    patch.setattr(Scaler, "_follow", of_the_seen)
    incomplete_is_complete(patch)


def incomplete_is_complete(patch: pytest.MonkeyPatch) -> None:
    """While nodes come back to a restarted master, it is taken for the whole cluster."""
    sampled = Scaler.sampled
    patch.setattr(
        Scaler, "sampled", lambda self, sample: sampled(self, replace(sample, is_complete=True))
    )


BUGS: tuple[Callable[[pytest.MonkeyPatch], None], ...] = (
    drivers_are_drained,
    busy_machines_are_removed,
    the_only_node_of_a_stream_goes,
    drained_and_forgotten,
    incomplete_is_complete,
)
