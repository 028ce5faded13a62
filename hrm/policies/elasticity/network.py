"""The network of elasticity in numpy: a logit for each change of each job, one for none, a value.

All jobs share their weights, and see the others by the mean of what the network makes of them: any
number of jobs in any order. To the logit of the action of the rule of speed-ups a learned
constant is added, and the last layer begins at zero: before it is trained, the network is that rule
with some exploration, and it learns where to depart from it (a residual policy).

Weights are stored as (inputs, outputs), float32.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from hrm.policies.elasticity.features import (
    CLUSTER_FIELDS,
    ELASTIC_FIELDS,
    ElasticityState,
    Singles,
)

__all__ = ["RULE_LOGIT", "ZERO_ARRAYS", "action_logits", "elastic_shapes", "state_value"]

WIDTH = 64
RULE_LOGIT = 5.0
"""The first value of the constant."""
ZERO_ARRAYS = ("wa", "wn", "wv", "bv")
"""Arrays that begin at zero."""


def elastic_shapes() -> dict[str, tuple[int, ...]]:
    """The arrays of the network by name. ``rule`` is the constant."""
    jobs, cluster, width = len(ELASTIC_FIELDS), len(CLUSTER_FIELDS), WIDTH
    return {
        "wj": (jobs, width), "wg": (cluster, width), "b1": (width,),
        "w2": (width, width), "b2": (width,),
        "wh": (width, width), "wp": (width, width), "b3": (width,),
        "wa": (width, 2), "wn": (width, 1), "wv": (width, 1), "bv": (1,),
        "rule": (1,),
    }  # fmt: skip


def action_logits(weights: Mapping[str, Singles], state: ElasticityState) -> Singles:
    """Shape (2 n + 1,), -inf for what may not be chosen; see ``ElasticityState.mask``."""
    w = weights
    hidden = np.tanh(state.jobs @ w["wj"] + (state.cluster @ w["wg"] + w["b1"]))
    hidden = np.tanh(hidden @ w["w2"] + w["b2"])
    context = hidden.mean(axis=0) @ w["wp"] + w["b3"]
    each = np.tanh(hidden @ w["wh"] + context) @ w["wa"]
    none = np.tanh(context) @ w["wn"]
    logits = np.concatenate((none, each[:, 0], each[:, 1]))
    logits[state.rule] += w["rule"][0]
    found: Singles = np.where(state.mask, logits, -np.inf).astype(np.float32)
    return found


def state_value(weights: Mapping[str, Singles], state: ElasticityState) -> float:
    """What the critic expects of ``state``, in discounted rewards of training."""
    w = weights
    hidden = np.tanh(state.jobs @ w["wj"] + (state.cluster @ w["wg"] + w["b1"]))
    hidden = np.tanh(hidden @ w["w2"] + w["b2"])
    context = hidden.mean(axis=0) @ w["wp"] + w["b3"]
    return float((np.tanh(context) @ w["wv"])[0] + w["bv"][0])
