"""Could any node of this cluster ever serve this request? If not, what does the cluster have?

A request that can never be served is refused at once, with a message that names what the cluster
has and which setting to change. One that only lacks capacity now is admitted, and waits.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from hrm.core.master.entities import Node
from hrm.core.master.state import MasterState
from hrm.core.vocabulary.advice import EXECUTOR, Advice
from hrm.core.vocabulary.feasibility import could_hold, demand_vector
from hrm.core.vocabulary.model import ContainerRequest, Gpu, NodeState, Resources, ResourceUnit
from hrm.core.vocabulary.node_requirement import NodeRequirement, lasting, suits, unmet

__all__ = [
    "gpu_refusal",
    "malformed",
    "no_such_node",
    "refusal",
    "resolve",
    "suited_nodes",
]

_NODES_NAMED = 5


def malformed(request: ContainerRequest) -> str:
    """Which quantity of this request is invalid; empty if none is."""
    asks = request.resources
    least = {"vcores": (asks.vcores, 1), "memory_mib": (asks.memory_mib, 1)}
    least |= {"gpu_memory_mib": (asks.gpu_memory_mib, 0), "gpus": (request.gpus, 0)}
    for name, (value, minimum) in least.items():
        if type(value) is not int or value < minimum:
            return f"{name} is {value}; it must be a whole number of at least {minimum}"
    duration_s = request.expected_duration_s
    if not math.isfinite(duration_s) or duration_s < 0:
        return f"expected_duration_s is {duration_s}; it must be finite and not negative"
    return ""


def refusal(
    master_state: MasterState,
    resources: Resources,
    *,
    advice: Advice = EXECUTOR,
    requires: NodeRequirement | None = None,
) -> str:
    """Why no node could ever serve this; empty if one could, or if one that could may be on its
    way: while no node is known, or not all of an earlier master's are back. ``advice``: of what it
    is for, which has settings of its own. ``requires``: what a node must meet; what Spark
    excludes for now is no reason."""
    requires = lasting(requires)
    demand = demand_vector(resources)
    if master_state.recovering or master_state.state.could_hold(demand, requires):
        return ""
    asks = f"{advice.container} requests {resources}"
    nodes = suited_nodes(master_state, requires)
    if requires is not None and master_state.nodes:
        if not nodes:
            return f"{asks}, but {no_such_node(master_state, requires, advice)}"
        if len(nodes) < len(master_state.nodes):
            asks += f" on a node with {requires}"
    units = [(unit, node) for node in nodes for unit in node.units]
    if not units or any(could_hold(demand, unit) for unit, _ in units):
        return ""  # of a node that is lost, and may come back
    if resources.gpu_memory_mib:
        gpus = _gpus(units)
        if not gpus:
            return f"{asks}, but {_no_gpu(nodes, advice)}"
        units = [(unit, node) for unit, node in units if unit.gpus]
        if not any(len(unit.gpus) == resources.gpus for unit, _ in units):
            return _no_such_unit(asks, resources.gpus, units, advice)
        units = [(unit, node) for unit, node in units if len(unit.gpus) == resources.gpus]
        gpu, owner = max(_gpus(units), key=lambda found: found[0].memory_mib)
        if gpu.memory_mib * resources.gpus < resources.gpu_memory_mib:
            return (
                f"{asks}, but the largest GPU, of {owner.name}, is {gpu}; lower {advice.gpu_size}"
            )
    else:
        units = [(unit, node) for unit, node in units if not unit.gpu_only]
        if not units:
            return (
                f"{asks} and no GPU, but every core of the cluster is bound to a GPU; keep some "
                f"with hrm node bind --reserve, or request a GPU"
            )
    unit, node = max(units, key=lambda x: (x[0].target.vcores, x[0].target.memory_mib))
    where = f" at {unit.unit_id}" if len(node.units) > 1 else ""
    return (
        f"{asks}, but the largest node, {node.name}, has {unit.target}{where}; "
        f"{advice.smaller}, or add a larger node; hrm nodes shows what there is"
    )


def no_such_node(
    master_state: MasterState, requires: NodeRequirement, advice: Advice = EXECUTOR
) -> str:
    """That no node meets a requirement, what there is instead, and what to change."""
    nodes = list(master_state.nodes.values())
    there = "; ".join(f"{x.name} {unmet(requires, x.properties)}" for x in nodes[:_NODES_NAMED])
    more = f" and {len(nodes) - _NODES_NAMED} more" if len(nodes) > _NODES_NAMED else ""
    changes = "; ".join(_changes(nodes, requires, advice))
    return f"no node has {requires}: {there}{more}; {changes}"


def _changes(nodes: list[Node], requires: NodeRequirement, advice: Advice) -> list[str]:
    """What to change: of a requirement's parts those that no node meets, all where some node
    meets each."""
    parts = [
        (
            NodeRequirement(labels=requires.labels),
            f"give nodes the label (hrm agent --labels), or change {advice.label}",
        ),
        (
            NodeRequirement(spark=requires.spark, scala=requires.scala),
            "add this Spark to agents (spark_homes), or use one that they have",
        ),
        (
            NodeRequirement(java=requires.java),
            "give agents this Java (java_home), or change spark.hrm.node.java",
        ),
        (
            NodeRequirement(python=requires.python),
            "give agents this Python, or change spark.hrm.node.python",
        ),
    ]
    asked = [(part, change) for part, change in parts if part != NodeRequirement()]
    lacking = [x for x in asked if not any(suits(x[0], node.properties) for node in nodes)]
    return [change for _, change in lacking or asked]


def resolve(
    master_state: MasterState,
    request: ContainerRequest,
    requires: NodeRequirement | None = None,
) -> ContainerRequest:
    """The request with whole GPUs as a quantity: all device memory of the cluster's largest unit
    with so many, of nodes that meet ``requires``, so that the container is alone on those that it
    gets. Unchanged where no node that is known has such a unit."""
    if not request.gpus:
        return request
    if request.resources.gpu_memory_mib:
        if request.resources.gpus == request.gpus:
            return request
        return replace(request, resources=replace(request.resources, gpus=request.gpus))
    units = [unit for node in suited_nodes(master_state, lasting(requires)) for unit in node.units]
    like = [unit for unit in units if unit.gpus and unit.gpus_used == request.gpus]
    whole_mib = max((unit.capacity.gpu_memory_mib for unit in like), default=0)
    gpus = replace(request.resources, gpu_memory_mib=whole_mib, gpus=request.gpus)
    return replace(request, resources=gpus)


def gpu_refusal(
    master_state: MasterState,
    request: ContainerRequest,
    requires: NodeRequirement | None = None,
    advice: Advice = EXECUTOR,
) -> str:
    """Why a resolved request for GPUs cannot be served at all; empty if it can.

    GPUs are counted in device memory: a request whose GPU could not be resolved to device memory
    has none to wait for.
    """
    if request.gpus and not request.resources.gpu_memory_mib and not master_state.recovering:
        requires = lasting(requires)
        nodes = suited_nodes(master_state, requires)
        asks = f"{advice.container} requests {_many(request.gpus)}"
        if requires is not None and len(nodes) < len(master_state.nodes):
            asks += f" on a node with {requires}"
        units = [(unit, node) for node in nodes for unit in node.units]
        if any(unit.gpus for unit, _ in units):
            return _no_such_unit(asks, request.gpus, units, advice)
        return f"{asks}, but {_no_gpu(nodes, advice)}"
    return ""


def suited_nodes(master_state: MasterState, requires: NodeRequirement | None) -> list[Node]:
    """The nodes that meet a requirement, lost ones among them."""
    nodes = list(master_state.nodes.values())
    return nodes if requires is None else [x for x in nodes if suits(requires, x.properties)]


def _gpus(units: list[tuple[ResourceUnit, Node]]) -> list[tuple[Gpu, Node]]:
    return [(gpu, node) for unit, node in units for gpu in unit.gpus]


def _many(gpus: int) -> str:
    return "a GPU" if gpus == 1 else f"{gpus} GPUs"


def _no_such_unit(
    asks: str, wanted: int, units: list[tuple[ResourceUnit, Node]], advice: Advice
) -> str:
    """No unit has as many GPUs as a container is to use."""
    there = sorted({len(unit.gpus) for unit, _ in units if unit.gpus})
    instead = " or ".join(map(str, there))
    return (
        f"{asks}, but no node offers {_many(wanted)} in one resource unit, only {instead}: "
        f"{advice.gpus(wanted, instead)}"
    )


def _no_gpu(among: Iterable[Node], advice: Advice) -> str:
    nodes = [node for node in among if node.state is not NodeState.LOST]
    if not nodes:
        return "no node is alive, so no GPU is known; start an agent on a machine with one"
    there = ", ".join(
        f"{node.name} ({' and '.join(str(unit.target) for unit in node.units)})"
        for node in nodes[:_NODES_NAMED]
    )
    more = f" and {len(nodes) - _NODES_NAMED} more" if len(nodes) > _NODES_NAMED else ""
    return (
        f"no node of the cluster has one; there are {there}{more}: start an agent on a machine "
        f"with a GPU, or {advice.without_gpu}"
    )
