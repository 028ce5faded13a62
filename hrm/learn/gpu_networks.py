"""The networks of shared GPUs in PyTorch: the set network, with the same numbers as
``shared_gpu.network``, and DeepRM's, with one small hidden layer over images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from hrm.policies.shared_gpu.features import JOB_FIELDS, SharingState, Singles

__all__ = ["SharingTensors", "image_logits", "image_shapes", "ranges", "set_values"]

IMAGE_HIDDEN = 20
"""DeepRM's."""

SharingTensors: TypeAlias = dict[str, Tensor]

_PERCENTILES = (0.1, 99.9)


def set_values(weights: SharingTensors, states: Sequence[SharingState]) -> Tensor:
    """Shape (states, most rows + 1): Q of each action, -inf for what may not be chosen."""
    longest = max(len(state.jobs) for state in states)
    jobs = np.zeros((len(states), longest, len(JOB_FIELDS)), dtype=np.float32)
    there = np.zeros((len(states), longest, 1), dtype=np.bool_)
    mask = np.zeros((len(states), longest + 1), dtype=np.bool_)
    for number, state in enumerate(states):
        jobs[number, : len(state.jobs)] = state.jobs
        there[number, : len(state.jobs)] = True
        mask[number, : len(state.mask)] = state.mask
    held, legal = torch.from_numpy(there), torch.from_numpy(mask)
    gpu = torch.from_numpy(np.stack([state.gpu for state in states]))
    w = weights
    hidden = torch.relu(torch.from_numpy(jobs) @ w["wj"] + (gpu @ w["wg"] + w["b1"]).unsqueeze(1))
    hidden = torch.relu(hidden @ w["w2"] + w["b2"])
    mean = (hidden * held).sum(1) / held.sum(1)
    most = hidden.masked_fill(~held, -torch.inf).amax(1)
    pooled = torch.cat((mean, most), 1) @ w["wp"] + w["bp"]
    rows = torch.relu(hidden @ w["wh"] + pooled.unsqueeze(1)) @ w["wa"]
    both = torch.relu(pooled + gpu @ w["wo"] + w["bo"])
    advantage = torch.cat((both @ w["ww"], rows.squeeze(2)), 1)
    mean_advantage = (advantage * legal).sum(1, keepdim=True) / legal.sum(1, keepdim=True)
    q = both @ w["wv"] + w["bv"] + advantage - mean_advantage
    return q.masked_fill(~legal, -torch.inf)


def ranges(states: Sequence[SharingState]) -> dict[str, Singles]:
    """``low`` and ``high`` of every input: percentiles 0.1 and 99.9, of jobs first."""
    jobs = np.percentile(np.concatenate([state.jobs for state in states]), _PERCENTILES, axis=0)
    gpu = np.percentile(np.stack([state.gpu for state in states]), _PERCENTILES, axis=0)
    both = np.concatenate((jobs, gpu), axis=1).astype(np.float32)
    return {"low": both[0], "high": both[1]}


def image_shapes(inputs: int, actions: int) -> dict[str, tuple[int, ...]]:
    """The arrays of the policy network over images."""
    hidden = IMAGE_HIDDEN
    return {"w1": (inputs, hidden), "b1": (hidden,), "w2": (hidden, actions), "b2": (actions,)}


def image_logits(
    weights: SharingTensors, images: npt.NDArray[np.float32], mask: npt.NDArray[np.int8]
) -> Tensor:
    """Shape (states, actions), -inf for illegal actions; ``images`` (states, inputs)."""
    hidden = torch.relu(torch.from_numpy(images) @ weights["w1"] + weights["b1"])
    logits = hidden @ weights["w2"] + weights["b2"]
    return logits.masked_fill(torch.from_numpy(mask == 0), -torch.inf)
