"""The two networks of LDWP in a few lines of numpy, and their transfer between clusters.

``MLP``, the paper's: all features in, one output per node; its shape is that of one cluster. The
set network: one small network that all nodes share, with the features of a node, of the task, and
the mean and the maximum over all nodes; any number of nodes in any order. Of the latter there are
``MEMBERS``, trained from different initial weights on different samples: their mean is the value,
and how far they are apart says how little the training data say about such a state.

Weights are stored as (inputs, outputs), float32.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from hrm.core.vocabulary.model import NodeName
from hrm.pipelines.core.model import Vector
from hrm.pipelines.policies.cluster.features import Layout
from hrm.pipelines.policies.cluster.scale_free import NODE_INPUTS, TASK_INPUTS

__all__ = [
    "HIDDEN",
    "MEMBERS",
    "WIDTH",
    "Weights",
    "mlp_q",
    "mlp_shapes",
    "set_q",
    "set_shapes",
    "transfer",
]

HIDDEN = (256, 128)
WIDTH = 64
MEMBERS = 5

Weights = Mapping[str, Vector]


def mlp_shapes(layout: Layout, nodes: int) -> dict[str, tuple[int, ...]]:
    """Arrays of the paper's network: 51,979 numbers for 11 nodes, features ``paper``, H = 1."""
    first, second = HIDDEN
    return {
        "w1": (layout.inputs(nodes), first), "b1": (first,),
        "w2": (first, second), "b2": (second,),
        "w3": (second, nodes), "b3": (nodes,),
    }  # fmt: skip


def set_shapes() -> dict[str, tuple[int, ...]]:
    """Arrays of the set networks, the members first: 18,305 numbers for each."""
    one: dict[str, tuple[int, ...]] = {
        "wn": (len(NODE_INPUTS), WIDTH), "wc": (len(TASK_INPUTS), WIDTH), "b1": (1, WIDTH),
        "w2": (WIDTH, WIDTH), "b2": (1, WIDTH),
        "wh": (WIDTH, WIDTH), "wg": (2 * WIDTH, WIDTH), "b3": (1, WIDTH),
        "w": (WIDTH, 1), "b4": (1, 1),
    }  # fmt: skip
    return {name: (MEMBERS, *shape) for name, shape in one.items()}


def mlp_q(weights: Weights, x: Vector) -> Vector:
    """Q of every node, shape (..., M), for inputs of shape (..., ``Layout.inputs``)."""
    hidden = np.maximum(x @ weights["w1"] + weights["b1"], 0.0)
    hidden = np.maximum(hidden @ weights["w2"] + weights["b2"], 0.0)
    q: Vector = hidden @ weights["w3"] + weights["b3"]
    return q


def set_q(weights: Weights, nodes: Vector, task: Vector) -> Vector:
    """Q of every member and node, shape (members, n), for ``nodes`` (n, 16) and ``task`` (10,);
    n at least 1."""
    hidden = np.maximum(nodes @ weights["wn"] + (task[None] @ weights["wc"] + weights["b1"]), 0.0)
    hidden = np.maximum(hidden @ weights["w2"] + weights["b2"], 0.0)
    mean, most = hidden.mean(axis=1, keepdims=True), hidden.max(axis=1, keepdims=True)
    pooled = np.concatenate((mean, most), axis=2)
    joined = np.maximum(hidden @ weights["wh"] + (pooled @ weights["wg"] + weights["b3"]), 0.0)
    q: Vector = (joined @ weights["w"] + weights["b4"])[:, :, 0]
    return q


def transfer(
    weights: Weights,
    layout: Layout,
    old: Sequence[tuple[NodeName, str]],
    new: Sequence[tuple[NodeName, str]],
) -> dict[str, Vector]:
    """Weights of the paper's network for other nodes, given and returned as (name, platform).

    The hidden layer stays. A node's weights follow its *name*, at whatever index; a new node begins
    as a copy of the first surviving one of its platform, else as the mean of all.
    """
    assert old, "there is nothing to transfer from"
    shares = _shares(old, new)
    tasks, fields = layout.task_fields, layout.node_fields
    w1, at = weights["w1"], 0
    blocks: list[npt.NDArray[np.floating]] = []
    for step in range(layout.history):
        blocks.append(w1[at : at + tasks])
        at += tasks
        of_nodes = w1[at : at + fields * len(old)].reshape(len(old), -1)
        blocks.append((shares @ of_nodes).reshape(fields * len(new), -1))
        at += fields * len(old)
        if step < layout.history - 1:
            blocks.append(shares @ w1[at : at + len(old)])
            at += len(old)
    return {
        "w1": np.concatenate(blocks).astype(np.float32),
        "b1": weights["b1"].copy(),
        "w2": weights["w2"].copy(),
        "b2": weights["b2"].copy(),
        "w3": np.ascontiguousarray(weights["w3"] @ shares.T, dtype=np.float32),
        "b3": (shares @ weights["b3"]).astype(np.float32),
    }


def _shares(
    old: Sequence[tuple[NodeName, str]], new: Sequence[tuple[NodeName, str]]
) -> npt.NDArray[np.float64]:
    """Shape (new, old): the shares of old nodes in each new one."""
    index = {name: number for number, (name, _) in enumerate(old)}
    surviving = [(index[name], platform) for name, platform in new if name in index]
    shares = np.zeros((len(new), len(old)))
    for number, (name, platform) in enumerate(new):
        alike = [row for row, other in surviving if other == platform]
        if name in index:
            shares[number, index[name]] = 1.0
        elif alike:
            shares[number, alike[0]] = 1.0
        else:
            shares[number, [row for row, _ in surviving] or range(len(old))] = 1.0
    return np.asarray(shares / shares.sum(axis=1, keepdims=True))
