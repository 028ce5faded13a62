"""The paper's Q-network in PyTorch, with what it needs to be trained and exported.

Weights are a dictionary of tensors with the names and shapes of
``hrm.pipelines.policies.cluster.networks``, so what is exported is what is trained. A ``QNetwork``
has its features: it turns decisions into states, states into values, and itself into a ``Model``.
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
    Bools,
    FlatEncoder,
    FlatState,
    Layout,
)
from hrm.pipelines.policies.cluster.networks import mlp_shapes, transfer

__all__ = ["FlatQNetwork", "QNetwork", "State", "Tensors", "fresh"]

State: TypeAlias = FlatState
Tensors: TypeAlias = dict[str, Tensor]

_PERCENTILES = (0.1, 99.9)


class QNetwork(Protocol):
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


class FlatQNetwork:
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
        """See ``QNetwork.values``; the same numbers as ``networks.mlp_q``."""
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
