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
from hrm.core.master.elastic_demand import ElasticDemand, ServedWaiters
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

__all__ = [
    "BUGS", "of_two_models", "others_leave", "silent_for_long", "trainings", "unlike_nodes",
]  # fmt: skip


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
    started, changed = ElasticityCore.started, ElasticityCore.workers_changed

    def of_one(self: ElasticityCore, event: Any) -> None:
        started(self, replace(event, workers_min=1))

    def still_of_one(self: ElasticityCore, event: Any) -> None:
        changed(self, replace(event, limits=event.limits and (1, event.limits[1])))

    patch.setattr(ElasticityCore, "started", of_one)
    patch.setattr(ElasticityCore, "workers_changed", still_of_one)


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

    def as_if_wanted(self: SpeedUpRule, view: Any) -> Any:
        jobs = tuple(job._replace(serves=True) for job in view.jobs)
        return propose(self, view._replace(jobs=jobs, free=0, waiting=max(1, view.waiting)))

    patch.setattr(SpeedUpRule, "propose", as_if_wanted)


def silent_for_long(seed: int) -> Plan:
    """One that learns no more gives up executors to others, and then reports nothing for the rest
    of its work."""
    plan = trainings(seed)
    flat, silent = plan.applications[0], plan.applications[-1]
    applications = (replace(flat, work_s=700.0), replace(silent, work_s=3_500.0))
    return replace(plan, applications=applications)


def of_two_models(seed: int) -> Plan:
    """One that learns no more has a limit when the epochs of its next model begin."""
    plan = trainings(seed)
    flat, silent = plan.applications[0], plan.applications[-1]
    second = tuple((6.1 + at_s, report) for at_s, report in flat.training[:30])
    both = replace(flat, training=flat.training[:30] + second)
    return replace(plan, applications=(both, silent))


def unlike_nodes(seed: int) -> Plan:
    """A node with much memory and one with little, a training on each, and one that waits for more
    memory than the small one has."""
    plan = trainings(seed)
    unit = plan.nodes[0].units[0]
    sizes = (Resources(8, 4_096), Resources(4, 65_536))
    nodes = tuple(
        replace(
            node,
            units=(
                replace(
                    unit, unit_id=ResourceUnitId(f"{node.name}/cpu"), capacity=size,
                    run_limit=size.vcores,
                ),
            ),
        )
        for node, size in zip(plan.nodes, sizes, strict=True)
    )  # fmt: skip
    flat, silent = plan.applications[0], plan.applications[-1]
    large = Resources(2, 20_000)
    applications = (
        replace(flat, name="large", start_s=0.2, resources=large, targets=((0.0, 2),)),
        replace(flat, name="small", start_s=2.0),
        replace(
            silent, name="waits", start_s=4.0, resources=Resources(1, 32_768),
            targets=((0.0, 1),), work_s=10.0,
        ),
    )  # fmt: skip
    return replace(plan, nodes=nodes, applications=applications)


def others_leave(seed: int, *, stay: int = 4) -> Plan:
    """Two that learn no more have given up three executors each, when others leave them some of
    eight."""
    plan = trainings(seed)
    unit = plan.nodes[0].units[0]
    nodes = tuple(
        replace(
            node,
            units=(
                replace(
                    unit, unit_id=ResourceUnitId(f"{node.name}/cpu"),
                    capacity=Resources(5, 16_384), run_limit=5,
                ),
            ),
        )
        for node in plan.nodes
    )  # fmt: skip
    flat, silent = plan.applications[0], plan.applications[-1]
    applications = (
        replace(flat, name="one", work_s=100.0),
        replace(flat, name="other", work_s=100.0),
        replace(silent, targets=((0.0, 8), (9.0, stay)), kill_chance=1.0, work_s=150.0),
    )
    return replace(plan, nodes=nodes, applications=applications)


def silent_and_limited(patch: pytest.MonkeyPatch) -> None:
    """What reports no more keeps its limit to its end."""
    patch.setattr(ElasticApplications, "_trains_no_more", lambda *_: False)


def limits_of_the_last_model(patch: pytest.MonkeyPatch) -> None:
    """Epochs that begin again are old ones."""
    patch.setattr(ElasticApplications, "_begins_another", lambda *_: False)


def any_waiter_counts(patch: pytest.MonkeyPatch) -> None:
    """Executors are given up for all that waits, whether it would start there or not."""

    def of_all(self: ElasticDemand, app: Any, jobs: Any) -> ServedWaiters:
        waiting = sum(self._kinds(app.application_id, jobs).values())
        return ServedWaiters(waiting, frozenset(jobs), has_use=waiting > 0)

    patch.setattr(ElasticDemand, "of_others", of_all)


def any_training_serves(patch: pytest.MonkeyPatch) -> None:
    """For what waits the one gives up an executor that loses least, wherever it runs."""
    of_others = ElasticDemand.of_others
    patch.setattr(
        ElasticDemand,
        "of_others",
        lambda self, app, jobs: of_others(self, app, jobs)._replace(servers=frozenset(jobs)),
    )


def handed_out_twice(patch: pytest.MonkeyPatch) -> None:
    """What one training has got is free for the next one still."""
    decide = ElasticityCore.decide

    def again(self: ElasticityCore, wanted: Any, why: str = "") -> Any:
        free = self.free
        commands = decide(self, wanted, why)
        self.free = max(free, self.free)
        return commands

    patch.setattr(ElasticityCore, "decide", again)


def more_than_the_maximum(patch: pytest.MonkeyPatch) -> None:
    """One training gets all that is free, and nobody looks at what it may have."""
    patch.setattr(SpeedUpRule, "grant", lambda self, view, taker: view.free)
    patch.setattr(elasticity_core, "_allows", lambda view, wanted: True)


BUGS: tuple[Callable[[pytest.MonkeyPatch], None], ...] = (
    gangs_are_broken_up,
    the_limit_is_forgotten,
    ended_and_elastic,
    streams_are_limited,
    resized_at_every_report,
    taken_though_nothing_wants_it,
    silent_and_limited,
    limits_of_the_last_model,
    any_waiter_counts,
    any_training_serves,
    handed_out_twice,
    more_than_the_maximum,
)
