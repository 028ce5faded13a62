"""The two networks of LDWP in PyTorch, with what each needs to be trained and exported.

Weights are a dictionary of tensors with the names and shapes of
``hrm.pipelines.policies.cluster.networks``, so what is exported is what is trained. A *brain* is
one of the two networks with its features: it turns decisions into states, states into values, and
itself into a ``Model``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
import torch
from torch import Tensor

from hrm.core.vocabulary.model import NodeName
from hrm.pipelines.core.model import PipelineClusterView, TaskSpec, Vector
from hrm.pipelines.policies.cluster.features import (
    NODE_FIELDS,
    TASK_FIELDS,
    Bools,
    FlatEncoder,
    FlatState,
    Layout,
    SetState,
    observe_set,
)
from hrm.pipelines.policies.cluster.ldwp import SET_SCHEMA
from hrm.pipelines.policies.cluster.networks import mlp_shapes, set_shapes, transfer

__all__ = ["Brain", "FlatBrain", "SetBrain", "State", "Tensors", "fresh"]

State: TypeAlias = SetState | FlatState
Tensors: TypeAlias = dict[str, Tensor]

_PERCENTILES = (0.1, 99.9)


class Brain(Protocol):
    """A network and its features. Actions are indices of ``State.rows``."""

    kind: str
    weights: Tensors

    def observe(self, task: TaskSpec, view: PipelineClusterView, fits: Bools) -> State: ...

    def acted(self, state: State, action: int) -> None: ...

    def begin(self) -> None:
        """A new history."""

    def follow(self, view: PipelineClusterView) -> bool:
        """Adapt to other nodes; true if the weights have changed their shape."""

    def mask(self, state: State) -> Bools:
        """Shape (actions,): which may be chosen."""

    def values(self, weights: Tensors, states: Sequence[Any]) -> Tensor:
        """Shape (states, actions); -inf for what may not be chosen."""

    def schema(self) -> str: ...

    def meta(self) -> dict[str, Any]: ...

    def ranges(self, states: Sequence[Any]) -> dict[str, Vector]:
        """``low`` and ``high`` of every input over ``states``: their 0.1 and 99.9 percentiles."""


def fresh(shapes: Mapping[str, tuple[int, ...]], generator: torch.Generator) -> Tensors:
    """New weights, uniform within one over the root of the inputs of their layer, as in Linear."""
    weights = {}
    inputs = 1
    for name, shape in shapes.items():
        if name.startswith("w"):
            inputs = shape[0]
        bound = inputs**-0.5
        drawn = torch.rand(shape, generator=generator) * (2.0 * bound) - bound
        weights[name] = drawn.requires_grad_()
    return weights


def _ranges(rows: Vector) -> tuple[Vector, Vector]:
    low, high = np.percentile(rows, _PERCENTILES, axis=0)
    return low.astype(np.float32), high.astype(np.float32)


class SetBrain:
    """``ldwp-set``: see ``features.observe_set``. States have as many actions as candidates."""

    kind = "ldwp-set"

    def __init__(self, types: Sequence[str], generator: torch.Generator) -> None:
        self.types = tuple(types)
        self.weights = fresh(set_shapes(), generator)

    def observe(self, task: TaskSpec, view: PipelineClusterView, fits: Bools) -> SetState:
        return observe_set(task, view, fits, self.types)

    def acted(self, state: State, action: int) -> None:
        """It keeps no history."""

    def begin(self) -> None:
        """It keeps no history."""

    def follow(self, view: PipelineClusterView) -> bool:
        return False

    def mask(self, state: State) -> Bools:
        return np.ones(len(state.rows), dtype=np.bool_)

    def values(self, weights: Tensors, states: Sequence[SetState]) -> Tensor:
        """See ``Brain.values``; the same numbers as ``networks.set_q``."""
        longest = max(len(state.rows) for state in states)
        nodes = np.zeros((len(states), longest, len(NODE_FIELDS)), dtype=np.float32)
        there = np.zeros((len(states), longest, 1), dtype=np.bool_)
        for number, state in enumerate(states):
            nodes[number, : len(state.rows)] = state.nodes
            there[number, : len(state.rows)] = True
        mask = torch.from_numpy(there)
        tasks = torch.from_numpy(np.stack([state.task for state in states]))
        w = weights
        shared = (tasks @ w["wc"] + w["b1"]).unsqueeze(1)
        hidden = torch.relu(torch.from_numpy(nodes) @ w["wn"] + shared)
        hidden = torch.relu(hidden @ w["w2"] + w["b2"])
        mean = (hidden * mask).sum(1) / mask.sum(1)
        most = hidden.masked_fill(~mask, -torch.inf).amax(1)
        pooled = (torch.cat((mean, most), 1) @ w["wg"] + w["b3"]).unsqueeze(1)
        q = torch.relu(hidden @ w["wh"] + pooled) @ w["w"]
        return q.masked_fill(~mask.squeeze(2), -torch.inf)

    def schema(self) -> str:
        return SET_SCHEMA

    def meta(self) -> dict[str, Any]:
        return {"types": list(self.types)}

    def ranges(self, states: Sequence[SetState]) -> dict[str, Vector]:
        nodes = _ranges(np.concatenate([state.nodes for state in states]))
        tasks = _ranges(np.stack([state.task for state in states]))
        assert tasks[0].shape == (len(TASK_FIELDS),)
        both = zip(("low", "high"), nodes, tasks, strict=True)
        return {name: np.concatenate((node, task)) for name, node, task in both}


class FlatBrain:
    """``ldwp``: the paper's network, one output for each of ``nodes`` (name, platform)."""

    kind = "ldwp"

    def __init__(
        self, layout: Layout, nodes: Sequence[tuple[NodeName, str]], generator: torch.Generator
    ) -> None:
        self.layout = layout
        self.nodes = list(nodes)
        self.weights = fresh(mlp_shapes(layout, len(nodes)), generator)
        self._encoder = FlatEncoder(layout, [name for name, _ in nodes])

    def observe(self, task: TaskSpec, view: PipelineClusterView, fits: Bools) -> FlatState:
        return self._encoder.observe(task, view, fits)

    def acted(self, state: State, action: int) -> None:
        self._encoder.acted(action)

    def begin(self) -> None:
        self._encoder.forget()

    def follow(self, view: PipelineClusterView) -> bool:
        """Transfer parameters to the nodes of ``view``, if some of them are new."""
        if set(view.names) <= set(self._encoder.names):
            return False
        nodes = list(zip(view.names, view.platform, strict=True))
        held = {name: tensor.detach().numpy() for name, tensor in self.weights.items()}
        moved = transfer(held, self.layout, self.nodes, nodes)
        self.weights = {name: torch.tensor(a, requires_grad=True) for name, a in moved.items()}
        self.nodes = nodes
        self._encoder = self._encoder.renamed(view.names)
        return True

    def mask(self, state: State) -> Bools:
        assert isinstance(state, FlatState)
        return state.mask

    def values(self, weights: Tensors, states: Sequence[FlatState]) -> Tensor:
        """See ``Brain.values``; the same numbers as ``networks.mlp_q``."""
        x = torch.from_numpy(np.stack([state.x for state in states]))
        mask = torch.from_numpy(np.stack([state.mask for state in states]))
        hidden = torch.relu(x @ weights["w1"] + weights["b1"])
        hidden = torch.relu(hidden @ weights["w2"] + weights["b2"])
        return (hidden @ weights["w3"] + weights["b3"]).masked_fill(~mask, -torch.inf)

    def schema(self) -> str:
        return self.layout.schema()

    def meta(self) -> dict[str, Any]:
        return {
            "types": list(self.layout.types),
            "features": self.layout.features,
            "history": self.layout.history,
            "nodes": [list(node) for node in self.nodes],
        }

    def ranges(self, states: Sequence[FlatState]) -> dict[str, Vector]:
        width, split = self.layout.observation(len(self.nodes)), self.layout.task_fields
        last = np.stack([state.x[-width:] for state in states])
        there = np.stack([state.rows >= 0 for state in states])
        of_nodes = last[:, split:].reshape(len(states), len(self.nodes), -1)[there]
        both = zip(("low", "high"), _ranges(last[:, :split]), _ranges(of_nodes), strict=True)
        return {name: np.concatenate((task, node)) for name, task, node in both}
