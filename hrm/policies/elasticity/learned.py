"""``rlpto`` in use: the network with frozen weights, which takes the action of the greatest logit.

It decides only where a learned policy is due (``features.is_due``). ``hrm.learn.ppo`` trains it,
and ``guarded`` checks what it proposes before it counts.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hrm.core.elasticity.beta_rule import Resize
from hrm.core.elasticity.elastic_job import ElasticityView
from hrm.errors import InvalidConfig
from hrm.policies.elasticity.features import (
    CLUSTER_FIELDS,
    ELASTIC_FIELDS,
    ELASTICITY_SCHEMA,
    Singles,
    is_due,
    observe_elasticity,
    resize_of,
)
from hrm.policies.elasticity.network import action_logits, elastic_shapes
from hrm.policies.model_files import Model

__all__ = ["ElasticityProposal", "LearnedElasticity"]

_SLACK = 0.01
"""How far beyond the percentiles of training an input still counts as inside."""


class ElasticityProposal(NamedTuple):
    """``logits``: of the allowed actions. ``outside``: the share of its inputs, 0..1, that are
    outside of the ranges of training."""

    resize: Resize | None
    logits: Singles
    outside: float


class LearnedElasticity:
    """An ``ElasticityPolicy``: see the module."""

    name = "rlpto"

    def __init__(self, model: Model) -> None:
        """Raises InvalidConfig: ``model`` is for other features, another network, or damaged."""
        if model.schema != ELASTICITY_SCHEMA:
            raise InvalidConfig(
                f"model {model} was trained on other features ({model.schema}) than this HRM has "
                f"({ELASTICITY_SCHEMA}); train a new one: hrm policy train rlpto"
            )
        inputs = len(ELASTIC_FIELDS) + len(CLUSTER_FIELDS)
        shapes = {**elastic_shapes(), "low": (inputs,), "high": (inputs,)}
        self._weights = model.shaped(shapes)
        greatest = model.meta.get("logit_abs_max")
        if not isinstance(greatest, float) or not 0.0 < greatest < np.inf:
            raise InvalidConfig(
                f"model {model} does not say how great logits were in training (logit_abs_max); "
                f"train a new one: hrm policy train rlpto"
            )
        self.model = model
        self.logit_abs_max = greatest

    def consider(self, view: ElasticityView) -> ElasticityProposal:
        """The network's evaluation of a view with at least one job."""
        state = observe_elasticity(view)
        logits = action_logits(self._weights, state)
        split, low, high = len(ELASTIC_FIELDS), self._weights["low"], self._weights["high"]
        inside = _inside(state.jobs, low[:split], high[:split])
        inside += _inside(state.cluster, low[split:], high[split:])
        outside = 1.0 - inside / (state.jobs.size + state.cluster.size)
        action = int(np.argmax(np.where(np.isnan(logits), -np.inf, logits)))
        return ElasticityProposal(resize_of(action, view), logits[state.mask], outside)

    def propose(self, view: ElasticityView) -> Resize | None:
        """See ``ElasticityPolicy``. Without a guard, a logit that is NaN is the least."""
        return self.consider(view).resize if is_due(view) else None


def _inside(inputs: Singles, low: Singles, high: Singles) -> int:
    return int(np.count_nonzero((inputs >= low - _SLACK) & (inputs <= high + _SLACK)))
