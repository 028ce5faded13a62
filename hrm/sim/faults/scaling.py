"""Who changes the number of machines while all else happens, and how badly the machines follow."""

from __future__ import annotations

from dataclasses import replace

from hrm.core.pool.scaler import ScalerBounds
from hrm.sim.faults.plan import Plan, ScalingPlan, source

__all__ = ["with_scaling"]


def with_scaling(plan: Plan) -> Plan:
    """The plan with a scaler of the pool. It removes eagerly, so that much happens in a short
    run."""
    chance = source(plan.seed, "scaling")
    drawn = ScalingPlan(
        bounds=ScalerBounds(
            nodes_min=chance.choice((0, 0, 1)),
            nodes_max=len(plan.nodes),
            down_after_s=chance.uniform(0.0, 3.0),
            cooldown_s=chance.uniform(0.0, 2.0),
            boot_timeout_s=chance.uniform(2.0, 6.0),
            place_after_s=chance.uniform(0.5, 3.0),
            retry_s=0.5,
            retry_max_s=4.0,
            shrink_part=chance.choice((0.2, 1.0)),
        ),
        interval_s=chance.uniform(0.3, 1.5),
        fails=chance.choice((0.0, 0.3)),
        lies=chance.choice((0.0, 0.2)),
        dies=chance.choice((0.0, 0.1)),
        takes_s=chance.choice((0.0, 1.5)),
    )
    bounds = replace(drawn.bounds, gap_s=3 * drawn.interval_s)
    return replace(plan, scaling=replace(drawn, bounds=bounds))
