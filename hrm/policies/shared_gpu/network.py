"""The set network of ``dqngpu-ddqn`` in numpy: one value for each row of jobs, and one to wait.

All rows share their weights, and see the others by the mean and the maximum of what the network
makes of them: any number of jobs in any order. Values are those of a dueling network (Wang et al.,
2016): one of the state, and how much better an action is than the mean of the legal ones.

Weights are stored as (inputs, outputs), float32.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from hrm.policies.shared_gpu.features import GPU_FIELDS, JOB_FIELDS, SharingState, Singles

__all__ = ["HIDDEN_UNITS", "action_values", "network_shapes"]

HIDDEN_UNITS = 64


def network_shapes() -> dict[str, tuple[int, ...]]:
    """The arrays of the network by name."""
    width = HIDDEN_UNITS
    return {
        "wj": (len(JOB_FIELDS), width), "wg": (len(GPU_FIELDS), width), "b1": (width,),
        "w2": (width, width), "b2": (width,),
        "wh": (width, width), "wp": (2 * width, width), "bp": (width,),
        "wo": (len(GPU_FIELDS), width), "bo": (width,),
        "wa": (width, 1), "ww": (width, 1), "wv": (width, 1), "bv": (1,),
    }  # fmt: skip


def action_values(weights: Mapping[str, Singles], state: SharingState) -> Singles:
    """Q of every action, shape (rows + 1,), -inf for illegal ones; action 0 is to wait."""
    w = weights
    hidden = np.maximum(state.jobs @ w["wj"] + (state.gpu @ w["wg"] + w["b1"]), 0.0)
    hidden = np.maximum(hidden @ w["w2"] + w["b2"], 0.0)
    pooled = np.concatenate((hidden.mean(axis=0), hidden.max(axis=0))) @ w["wp"] + w["bp"]
    rows = np.maximum(hidden @ w["wh"] + pooled, 0.0) @ w["wa"]
    both = np.maximum(pooled + state.gpu @ w["wo"] + w["bo"], 0.0)
    advantage = np.concatenate((both @ w["ww"], rows[:, 0]))
    value = both @ w["wv"] + w["bv"]
    legal = state.mask
    q = value + advantage - advantage[legal].mean()
    found: Singles = np.where(legal, q, -np.inf).astype(np.float32)
    return found
