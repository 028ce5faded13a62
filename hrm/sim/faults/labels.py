"""Nodes that are not for every application: labels, versions, and hosts that a driver excludes.

What an application requires is drawn from one node, so that at least that node is for it. Hosts
are excluded for a while by its driver, as Spark's ``excludeOnFailure`` does; at the end none is.

What a node must meet is computed here and nowhere else in the simulator, independently of the core:
the oracle compares.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

from hrm.core.vocabulary.node_requirement import NodeProperties, NodeRequirement, Runtime
from hrm.sim.faults.plan import ApplicationPlan, NodePlan

__all__ = [
    "labelled",
    "meets",
    "nodes_for",
    "properties_of",
    "requirement_of",
    "with_labels",
    "with_needs",
]

_LABELS = ("zone=a", "zone=b", "ssd")
_SPARKS = ("3.5.5", "4.0.1", "4.3.0")
_SCALA = {"3.5.5": "2.12", "4.0.1": "2.13", "4.3.0": "2.13"}


def with_labels(chance: Random, node: NodePlan) -> NodePlan:
    """Some labels, and one Spark or two; the versions of a few nodes are not known."""
    labels = tuple(label for label in _LABELS if chance.random() < 0.5)
    sparks = tuple(chance.sample(_SPARKS, chance.choice((0, 1, 1, 2))))
    return replace(node, labels=labels, sparks=sparks)


def with_needs(
    chance: Random, plan: ApplicationPlan, nodes: Sequence[NodePlan], horizon_s: float
) -> ApplicationPlan:
    """Most applications require what one node has; some exclude hosts, and admit them again."""
    home = chance.choice(nodes)
    if chance.random() < 0.6:
        labels = tuple(label for label in home.labels if chance.random() < 0.7)
        spark = chance.choice((*home.sparks, ""))
        plan = replace(plan, labels=labels, spark=spark)
    if chance.random() < 0.5:
        names = [node.name for node in nodes]
        times = sorted(chance.uniform(0.5, horizon_s) for _ in range(chance.randint(1, 3)))
        some = tuple(
            (at_s, tuple(chance.sample(names, chance.randint(0, len(names))))) for at_s in times
        )
        plan = replace(plan, exclusions=(*some, (horizon_s, ())))
    return plan


def properties_of(node: NodePlan) -> NodeProperties:
    """What the agent registers with."""
    runtimes = tuple(Runtime(spark=x, scala=_SCALA[x]) for x in node.sparks)
    return NodeProperties(
        host=node.name,
        labels=frozenset(node.labels),
        runtimes=runtimes or None,
        platform=node.platform,
    )


def requirement_of(plan: ApplicationPlan) -> NodeRequirement | None:
    """What the AppMaster registers with."""
    if not plan.spark:
        return labelled(plan.labels)
    scala = _SCALA.get(plan.spark, "")
    return NodeRequirement(labels=frozenset(plan.labels), spark=plan.spark, scala=scala)


def labelled(labels: Sequence[str]) -> NodeRequirement | None:
    """That a node has these labels; None: nothing is required."""
    return NodeRequirement(labels=frozenset(labels)) if labels else None


def nodes_for(plan: ApplicationPlan, nodes: Sequence[NodePlan]) -> tuple[NodePlan, ...]:
    """Those that may run its executors, whatever its driver excludes for a while."""
    requires = requirement_of(plan)
    return tuple(x for x in nodes if meets(requires, properties_of(x)))


def meets(requires: NodeRequirement | None, node: NodeProperties) -> bool:
    """Has the node every label, one of the versions if it reports any, and another host?"""
    if requires is None:
        return True
    for label in requires.labels:
        if label not in node.labels:
            return False
    if node.host in requires.excluded_hosts:
        return False
    if not requires.spark or node.runtimes is None:
        return True
    return (requires.spark, requires.scala) in [(x.spark, x.scala) for x in node.runtimes]
