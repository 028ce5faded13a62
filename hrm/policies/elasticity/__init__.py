"""Policies of elasticity: which training job gets a worker more, or gives one up.

They see an ``ElasticityView`` and propose one ``Resize`` after another; ``hrm.core.elasticity``
checks each. The rule of speed-ups, which the core has itself, is the heuristic of them all.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from hrm.core.elasticity.beta_rule import ElasticityPolicy
from hrm.errors import InvalidConfig, NotFound
from hrm.policies import model_files
from hrm.policies.elasticity.guarded import GuardedElasticity
from hrm.policies.elasticity.learned import LearnedElasticity
from hrm.policies.guard import GuardMode

__all__ = ["guarded_elasticity"]


def guarded_elasticity(
    *,
    clock_s: Callable[[], float],
    models: Path | None = None,
    heuristic: ElasticityPolicy | None = None,
    mode: GuardMode = GuardMode.SHADOW,
) -> GuardedElasticity:
    """The newest model of ``rlpto`` next to the rule of speed-ups, which decides alone where there
    is none or it does not fit this HRM; the guard shows the cause.

    Args:
        clock_s: measures how long the network takes, as ``time.thread_time`` does.
        models: a directory of models next to HRM's own.
        heuristic: None: the rule of speed-ups.
    """
    try:
        learned = LearnedElasticity(model_files.find("rlpto", state_dir=models))
    except (NotFound, InvalidConfig) as error:
        return GuardedElasticity(
            None, clock_s=clock_s, heuristic=heuristic, missing=error.message, mode=mode
        )
    return GuardedElasticity(learned, clock_s=clock_s, heuristic=heuristic, mode=mode)
