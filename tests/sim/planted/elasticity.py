"""Bugs of applications that train: limits that are none, or bind whom they should not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from hrm.core.appmaster.application_master import AppMasterCore
from hrm.core.elasticity import elasticity_core
from hrm.core.elasticity.elasticity_core import ElasticityCore
from hrm.core.elasticity.speed_up_rule import SpeedUpRule
from hrm.core.master import elastic_applications
from hrm.core.master.elastic_applications import ElasticApplications
from hrm.core.vocabulary.model import (
    NO_UNIT,
    Resources,
    ResourceUnit,
    ResourceUnitId,
    TrainingReport,
    WorkloadClass,
)
from hrm.sim.faults.plan import KINDS, TRAITS, ApplicationPlan, Limits, Plan
from hrm.sim.faults.plan_generator import draw

__all__ = ["BUGS", "trainings"]


def trainings(seed: int, *, resizes_per_minute: int = 60, crowded: bool = True) -> Plan:
    """Nothing fails. On two nodes a model that learns no more, a gang of such, one that becomes a
    stream while it has a limit, one that requests more after that, and, if ``crowded``, one that
    reports nothing, which comes last and wants more than there is."""
    limits = Limits(nodes=2, applications=0, horizon_s=20.0, without=frozenset({*KINDS, *TRAITS}))
    plan = draw(seed, limits)
    unit = ResourceUnit(unit_id=NO_UNIT, capacity=Resources(10, 16_384), run_limit=10)
    nodes = tuple(
        replace(node, units=(replace(unit, unit_id=ResourceUnitId(f"{node.name}/cpu")),))
        for node in plan.nodes
    )
    flat = tuple(
        (0.2 * epoch, TrainingReport(epoch=epoch, loss=0.1, accuracy=0.9, seconds=0.2))
        for epoch in range(100)
    )

    def app(name: str, *targets: tuple[float, int], **more: Any) -> ApplicationPlan:
        size = Resources(1, 512)
        plan = ApplicationPlan(name, 0.5, size, targets, 60.0, WorkloadClass.BATCH, training=flat)
        return replace(plan, **more)

    applications = (
        app("flat", (0.0, 4)),
        app("gang", (0.0, 4), gang_min=3),
        app("turns", (0.0, 3), declared=None, classes=((6.0, "STREAM"),)),
        app("more", (0.0, 3), (8.0, 6)),
        app("silent", (0.0, 30), training=(), work_s=300.0, start_s=2.0),
    )
    bounds = replace(
        plan.bounds, elastic_period_s=1.0, elastic_resizes_per_minute=resizes_per_minute
    )
    run = applications if crowded else applications[:-1]
    return replace(plan, nodes=nodes, applications=run, bounds=bounds)


def gangs_are_broken_up(patch: pytest.MonkeyPatch) -> None:
    """One executor is enough for every application."""
    started = ElasticityCore.started

    def of_one(self: ElasticityCore, event: Any) -> None:
        started(self, replace(event, workers_min=1))

    patch.setattr(ElasticityCore, "started", of_one)


def the_limit_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    """An AppMaster requests all that Spark wants, whatever its master says."""
    patch.setattr(AppMasterCore, "_count", lambda self, x: self.profiles[x].target.count)


def ended_and_elastic(patch: pytest.MonkeyPatch) -> None:
    """What is known of a training is kept when its application ends."""
    patch.setattr(ElasticApplications, "forget", lambda *_: None)


def streams_are_limited(patch: pytest.MonkeyPatch) -> None:
    """What reports is limited, whatever else it is."""
    patch.setattr(
        elastic_applications,
        "WorkloadClass",
        type("AnyClass", (), {"STREAM": None, "BATCH": WorkloadClass.BATCH}),
    )


def resized_at_every_report(patch: pytest.MonkeyPatch) -> None:
    """Nobody counts how many limits are changed in a minute."""
    patch.setattr(elasticity_core, "MINUTE_S", 0.0)


def taken_though_nothing_wants_it(patch: pytest.MonkeyPatch) -> None:
    """What is worth little is given up, whether anything waits or not."""
    propose = SpeedUpRule.propose
    patch.setattr(
        SpeedUpRule,
        "propose",
        lambda self, view: propose(self, view._replace(free=0, waiting=max(1, view.waiting))),
    )


BUGS: tuple[Callable[[pytest.MonkeyPatch], None], ...] = (
    gangs_are_broken_up,
    the_limit_is_forgotten,
    ended_and_elastic,
    streams_are_limited,
    resized_at_every_report,
    taken_though_nothing_wants_it,
)
