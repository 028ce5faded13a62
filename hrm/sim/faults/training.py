"""What applications of a run report of the models that they train."""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random

from hrm.core.vocabulary.model import TrainingReport
from hrm.sim.faults.plan import ApplicationPlan

__all__ = ["with_training"]


def with_training(chance: Random, plan: ApplicationPlan, horizon_s: float) -> ApplicationPlan:
    """Most of these train: their model learns for a while, and then no more, or it learns again
    once its learning rate has dropped. Some of what they report is no number."""
    if chance.random() < 0.3:
        return plan
    epoch_s, flat_at = chance.uniform(0.05, 0.4), chance.randint(0, 15)
    again_at = chance.choice((math.inf, flat_at + chance.randint(10, 30)))
    ills, states_accuracy = chance.choice((0.0, 0.1)), chance.random() < 0.7
    reports, accuracy = [], 0.1
    for epoch in range(int((horizon_s + 10.0) / epoch_s)):
        learns = epoch < flat_at or again_at <= epoch < again_at + 10
        accuracy = min(0.99, accuracy + (0.02 if learns else 0.0)) + chance.gauss(0.0, 1e-5)
        ill = chance.random() < ills
        report = TrainingReport(
            epoch=chance.randint(0, epoch) if ill and chance.random() < 0.5 else epoch,
            loss=math.nan if ill else 1.0 - accuracy,
            accuracy=accuracy if states_accuracy else None,
            seconds=epoch_s if epoch else 0.0,
        )
        reports.append((epoch * epoch_s, report))
    work_s = plan.work_s + chance.uniform(10.0, 80.0)
    return replace(plan, training=tuple(reports), work_s=work_s)
