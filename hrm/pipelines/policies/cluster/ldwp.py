"""LDWP's cluster part in use: a network's values, greedily, with frozen weights.

The paper (Zhang, Geng and Ma, 2020, section 4.2) learns one output per node with a deep Q-network:
``Ldwp``. ``LdwpSet`` shares one small network between all nodes. ``hrm.learn.ldwp`` trains them,
and ``hrm.pipelines.policies.cluster.guarded`` checks every proposal before it counts.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from hrm.core.vocabulary.model import NodeName
from hrm.errors import InvalidConfig
from hrm.pipelines.core.model import Choice, PipelineClusterView, TaskId, TaskSpec, Vector
from hrm.pipelines.policies.cluster.features import (
    Bools,
    FlatEncoder,
    Layout,
    Rows,
)
from hrm.pipelines.policies.cluster.networks import mlp_q, mlp_shapes, set_q, set_shapes, transfer
from hrm.pipelines.policies.cluster.scale_free import (
    NODE_INPUTS,
    SET_SCHEMA,
    TASK_INPUTS,
    SetState,
    observe_set,
)
from hrm.policies.model_files import Model

__all__ = [
    "SET_SCHEMA",
    "Ldwp",
    "LdwpSet",
    "LearnedPlacement",
    "TaskProposal",
    "Trained",
    "explanation",
    "layout_of",
    "schema_wanted",
]

_RANGES = ("low", "high")
_SLACK = 0.01
"""How far beyond the percentiles of training an input still counts as inside. Inputs are about
0..1; without it a fully busy CPU, or a link with a few packets, would be outside."""


class Trained(NamedTuple):
    """The ranges that the network was trained on, against which its inputs are checked in use."""

    types: tuple[str, ...] | None
    """Pipelines by name; None: it knows none of them, and needs none."""
    nodes_min: int
    nodes_max: int
    q_abs_max: float
    low: Vector
    high: Vector
    """The 0.1 and 99.9 percentiles of what a task and any node are described by, in one row each:
    ``SetState`` has nodes first, ``Layout`` tasks first."""
    spread_max: float = math.inf
    """The 99.9 percentile of ``TaskProposal.spread`` in training."""


class TaskProposal(NamedTuple):
    """A network's evaluation of one task.

    ``q`` (n,) are the values of the view's ``rows`` (n,), all of which may be chosen; ``row`` is
    the one with the greatest value.
    """

    row: int
    q: Vector
    rows: Rows
    outside: float
    """Share of its inputs outside of the ranges of training, 0..1."""
    spread: float = 0.0
    """Standard deviation of the members' values of ``row``, for an ensemble."""
    state: SetState | None = None
    """What ``ldwp-set`` has decided from."""


class LearnedPlacement(abc.ABC):
    """A learned cluster policy: the best value wins, ties to the lowest row."""

    name: str
    model: Model
    trained: Trained

    @abc.abstractmethod
    def propose(self, task: TaskSpec, view: PipelineClusterView, fits: Bools) -> TaskProposal:
        """The network's evaluation of the task; it has no effect yet."""

    def strangest(self, proposal: TaskProposal) -> str:
        """The input of a proposal that is furthest beyond its range of training, with both; empty:
        not known."""
        return ""

    def placed(self, row: int, view: PipelineClusterView) -> None:  # noqa: B027
        """The task of the last proposal went to ``row``, whichever policy decided."""

    def choose(self, task: TaskSpec, view: PipelineClusterView, fits: Bools) -> Choice:
        """See ``ClusterPolicy.choose``. Without a guard, a value that is NaN is the worst."""
        proposal = self.propose(task, view, fits)
        self.placed(proposal.row, view)
        scores = np.full(len(view.names), -np.inf, dtype=np.float32)
        scores[proposal.rows] = proposal.q
        return Choice(node=proposal.row, why=explanation(self, proposal, view), scores=scores)

    def ended(  # noqa: B027
        self, task_id: TaskId, *, now: float, response_s: float, ok: bool
    ) -> None:
        """See ``ClusterPolicy.ended``: weights are frozen here."""


def explanation(policy: LearnedPlacement, proposal: TaskProposal, view: PipelineClusterView) -> str:
    """One readable line: why this node."""
    best = float(proposal.q[proposal.rows == proposal.row][0])
    return f"{view.names[proposal.row]}: Q {best:.3f}, best of {len(proposal.q)} ({policy.model})"


class LdwpSet(LearnedPlacement):
    """One network for all nodes (``scale_free.observe_set``): they may change without training, and
    so may pipelines and the length of their tasks. The greatest mean value of its members wins."""

    name = "ldwp-set"

    def __init__(self, model: Model) -> None:
        """Raises InvalidConfig: ``model`` is for other features, another network, or damaged."""
        _same_schema(model, SET_SCHEMA)
        ranges = len(NODE_INPUTS) + len(TASK_INPUTS)
        self._weights = model.shaped({**set_shapes(), **dict.fromkeys(_RANGES, (ranges,))})
        self.model = model
        self.trained = _trained(model)._replace(
            types=None, spread_max=float(_meta(model, "spread_max", (int, float)))
        )

    def propose(self, task: TaskSpec, view: PipelineClusterView, fits: Bools) -> TaskProposal:
        state = observe_set(task, view, fits)
        members = set_q(self._weights, state.nodes, state.task)
        q = members.mean(axis=0)
        split, low, high = len(NODE_INPUTS), self.trained.low, self.trained.high
        within = _within(state.nodes, low[:split], high[:split])
        within += _within(state.task, low[split:], high[split:])
        total = state.nodes.size + state.task.size
        best = _best(q)
        spread = float(members[:, best].std())
        return TaskProposal(
            int(state.rows[best]), q, state.rows, 1.0 - within / total, spread, state
        )

    def strangest(self, proposal: TaskProposal) -> str:
        """See ``LearnedPlacement``. Distances are comparable: all inputs are scaled to about 1."""
        state = proposal.state
        if state is None:
            return ""
        low, high = self.trained.low, self.trained.high
        inputs = np.hstack((state.nodes, np.tile(state.task, (len(state.nodes), 1))))
        beyond = np.maximum(low - inputs, inputs - high)
        node, at = np.unravel_index(int(beyond.argmax()), beyond.shape)
        return (
            f"{(*NODE_INPUTS, *TASK_INPUTS)[at]} is {inputs[node, at]:.2f}, in training "
            f"{low[at]:.2f} to {high[at]:.2f}"
        )


class Ldwp(LearnedPlacement):
    """The paper's network: one output per node, in the order of names that its model has.

    Nodes that the model does not know get parameters of their own when they are first seen
    (``networks.transfer``); those that are gone are masked.
    """

    name = "ldwp"

    def __init__(self, model: Model) -> None:
        """Raises InvalidConfig: ``model`` is for other features, another network, or damaged."""
        self.layout = layout_of(model)
        _same_schema(model, self.layout.schema())
        nodes = _meta(model, "nodes", list)
        if not nodes or not all(isinstance(n, list) and len(n) == 2 for n in nodes):
            raise InvalidConfig(f"model {model} names no nodes; train one (hrm policy train)")
        self._nodes = [(NodeName(str(name)), str(platform)) for name, platform in nodes]
        inputs = self.layout.task_fields + self.layout.node_fields
        shapes = mlp_shapes(self.layout, len(nodes))
        shapes |= dict.fromkeys(_RANGES, (inputs,))
        self._weights: Mapping[str, Vector] = model.shaped(shapes)
        self.model = model
        self.trained = _trained(model)
        self._encoder = FlatEncoder(self.layout, [name for name, _ in self._nodes])
        self._known = set(self._encoder.names)
        self._seen: tuple[NodeName, ...] = ()

    def propose(self, task: TaskSpec, view: PipelineClusterView, fits: Bools) -> TaskProposal:
        if view.names != self._seen:
            self._seen = view.names
            self._follow(view)
        state = self._encoder.observe(task, view, fits)
        q = mlp_q(self._weights, state.x)
        places = np.flatnonzero(state.mask)
        best = int(places[_best(q[places])])
        return TaskProposal(
            int(state.rows[best]), q[places], state.rows[places], self._outside(state.x, state.rows)
        )

    def placed(self, row: int, view: PipelineClusterView) -> None:
        """The history has the actual placements, not the proposed ones."""
        self._encoder.acted(self._encoder.names.index(view.names[row]))

    def _follow(self, view: PipelineClusterView) -> None:
        """Add parameters for new nodes; drop those that are gone once others come."""
        if set(view.names) <= self._known:
            return
        nodes = list(zip(view.names, view.platform, strict=True))
        self._weights = transfer(self._weights, self.layout, self._nodes, nodes)
        self._nodes = nodes
        self._encoder = self._encoder.renamed(view.names)
        self._known = set(view.names)

    def _outside(self, x: Vector, rows: Rows) -> float:
        """Of the latest observation: ranges are those of the task and of any node."""
        last = x[-self.layout.observation(len(rows)) :]
        split, low, high = self.layout.task_fields, self.trained.low, self.trained.high
        task, nodes = last[:split], last[split:].reshape(len(rows), -1)[rows >= 0]
        within = _within(task, low[:split], high[:split])
        within += _within(nodes, low[split:], high[split:])
        return 1.0 - within / (task.size + nodes.size)


def layout_of(model: Model) -> Layout:
    """The layout of the inputs of a model of kind ``ldwp``.

    Raises:
        InvalidConfig: its metadata do not give it.
    """
    features, history = _meta(model, "features", str), _meta(model, "history", int)
    if features not in ("paper", "extended") or not 1 <= history <= 64:
        raise InvalidConfig(
            f"model {model} has features {features!r} and a history of {history}; known are "
            f"'paper' and 'extended', and 1 to 64: train one (hrm policy train)"
        )
    return Layout(features, tuple(_meta(model, "types", list)), history)


def schema_wanted(model: Model) -> str:
    """The schema that this HRM feeds a model of ``model``'s kind and layout."""
    return SET_SCHEMA if model.kind == LdwpSet.name else layout_of(model).schema()


def _within(inputs: Vector, low: Vector, high: Vector) -> int:
    return int(np.count_nonzero((inputs >= low - _SLACK) & (inputs <= high + _SLACK)))


def _best(q: Vector) -> int:
    return int(np.argmax(np.where(np.isnan(q), np.float32(-np.inf), q)))


def _same_schema(model: Model, schema: str) -> None:
    if model.schema != schema:
        raise InvalidConfig(
            f"model {model} was trained on features {model.schema}, this HRM has {schema}: its "
            f"outputs would be invalid; train one (hrm policy train)"
        )


def _trained(model: Model) -> Trained:
    types: Sequence[Any] | None = None
    if "types" in model.meta:
        types = _meta(model, "types", list)
    low, high = (model.arrays[name] for name in _RANGES)
    return Trained(
        types=None if types is None else tuple(str(name) for name in types),
        nodes_min=_meta(model, "nodes_min", int),
        nodes_max=_meta(model, "nodes_max", int),
        q_abs_max=float(_meta(model, "q_abs_max", (int, float))),
        low=low,
        high=high,
    )


def _meta(model: Model, name: str, kind: type | tuple[type, ...]) -> Any:
    value = model.meta.get(name)
    if not isinstance(value, kind):
        raise InvalidConfig(
            f"model {model}: its metadata have {value!r} as {name!r}; it is damaged or of another "
            f"program: train one (hrm policy train)"
        )
    return value
