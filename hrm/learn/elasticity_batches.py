"""The network of elasticity in PyTorch, over a batch of states with different numbers of jobs,
and what is sampled with it.

It computes what ``hrm.policies.elasticity.network`` does in numpy for one state, from the same
arrays; a test holds the two together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from hrm.policies.elasticity.features import ElasticityState, Singles

__all__ = [
    "DecisionBatch",
    "SampledDecision",
    "StateBatch",
    "Tensors",
    "batch_logits",
    "decision_batch",
    "padded",
    "state_batch",
]

Tensors = dict[str, Tensor]


class SampledDecision(NamedTuple):
    """One step: ``logp`` of all actions when it was sampled, -inf for what was not allowed;
    ``last``: the episode ended after it; ``cycles``: of time until the next one."""

    state: ElasticityState
    action: int
    logp: Singles
    value: float
    reward: float
    last: bool
    cycles: float


class StateBatch(NamedTuple):
    """States padded to the one with the most jobs, N: ``jobs`` (states, N, fields), ``there``
    (states, N, 1), ``cluster`` (states, fields), ``mask`` (states, 2 N + 1) and ``rule`` (states,)
    of actions: 0 none, 1 to N grow, N + 1 to 2 N shrink."""

    jobs: Tensor
    there: Tensor
    cluster: Tensor
    mask: Tensor
    rule: Tensor


def padded(action: int, count: int, longest: int) -> int:
    """The number of an action among ``count`` jobs, where there are places for ``longest``."""
    return action if action <= count else action - count + longest


def state_batch(states: Sequence[ElasticityState]) -> StateBatch:
    longest = max(len(state.jobs) for state in states)
    jobs = np.zeros((len(states), longest, states[0].jobs.shape[1]), dtype=np.float32)
    mask = np.zeros((len(states), 2 * longest + 1), dtype=np.bool_)
    there = np.zeros((len(states), longest, 1), dtype=np.float32)
    for row, state in enumerate(states):
        count = len(state.jobs)
        jobs[row, :count], there[row, :count] = state.jobs, 1.0
        mask[row, : count + 1] = state.mask[: count + 1]
        mask[row, longest + 1 : longest + 1 + count] = state.mask[count + 1 :]
    rule = [padded(state.rule, len(state.jobs), longest) for state in states]
    return StateBatch(
        torch.from_numpy(jobs),
        torch.from_numpy(there),
        torch.from_numpy(np.stack([state.cluster for state in states])),
        torch.from_numpy(mask),
        torch.tensor(rule),
    )


def batch_logits(w: Tensors, batch: StateBatch) -> tuple[Tensor, Tensor]:
    """Logits (states, 2 N + 1), -inf for what is not allowed, and values (states,); as
    ``network.action_logits`` and ``network.state_value``."""
    hidden = torch.tanh(batch.jobs @ w["wj"] + (batch.cluster @ w["wg"] + w["b1"])[:, None])
    hidden = torch.tanh(hidden @ w["w2"] + w["b2"])
    pooled = (hidden * batch.there).sum(1) / batch.there.sum(1)
    context = pooled @ w["wp"] + w["b3"]
    each = torch.tanh(hidden @ w["wh"] + context[:, None]) @ w["wa"]
    none = torch.tanh(context) @ w["wn"]
    logits = torch.cat((none, each[:, :, 0], each[:, :, 1]), 1)
    logits = logits.scatter_add(1, batch.rule[:, None], w["rule"].expand(len(logits), 1))
    values = (torch.tanh(context) @ w["wv"])[:, 0] + w["bv"]
    return logits.masked_fill(~batch.mask, -torch.inf), values


class DecisionBatch(NamedTuple):
    """Decisions as tensors, a row each; see ``SampledDecision`` and ``StateBatch``."""

    batch: StateBatch
    old: Tensor
    actions: Tensor
    gains: Tensor
    returns: Tensor

    def of(self, rows: Tensor) -> DecisionBatch:
        batch = StateBatch(*(each[rows] for each in self.batch))
        return DecisionBatch(batch, *(each[rows] for each in self[1:]))


def decision_batch(
    decisions: Sequence[SampledDecision], gains: Singles, returns: Singles
) -> DecisionBatch:
    batch = state_batch([one.state for one in decisions])
    longest = batch.jobs.shape[1]
    old = torch.full((len(decisions), 2 * longest + 1), -torch.inf)
    for row, one in enumerate(decisions):
        count = len(one.state.jobs)
        old[row, : count + 1] = torch.from_numpy(one.logp[: count + 1])
        old[row, longest + 1 : longest + 1 + count] = torch.from_numpy(one.logp[count + 1 :])
    actions = [[padded(one.action, len(one.state.jobs), longest)] for one in decisions]
    return DecisionBatch(
        batch, old, torch.tensor(actions), torch.from_numpy(gains), torch.from_numpy(returns)
    )
