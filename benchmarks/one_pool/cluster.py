"""The cluster of all arms: nodes with a label each, half of them for Spark, half for pipelines.

``hrm up`` gives all nodes the same settings. So each agent is killed before anything runs, and
started again with its label; one that nothing requires means nothing.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from benchmarks.clusters import Shape
from benchmarks.daemons import Daemons
from benchmarks.one_pool.plan import WORKER_MEMORY_MIB, Plan, labels
from benchmarks.processes import wait_until
from benchmarks.sharing.arms import shape_of
from benchmarks.startup import Started

__all__ = ["Labelled", "pool_shape"]

_NODE_LIMIT_S = 60.0


def pool_shape(plan: Plan) -> Shape:
    """As in ``benchmarks.sharing``, with memory for a worker in each slot."""
    shape = shape_of(plan.offer, plan.offer.nodes)
    memory_mib = max(shape.memory_per_node_mib, shape.cores_per_node * WORKER_MEMORY_MIB)
    return replace(shape, memory_per_node_mib=memory_mib)


class Labelled(Started):
    """HRM with these labels."""

    name = "one-pool"

    def __init__(self, plan: Plan, directory: Path) -> None:
        super().__init__(pool_shape(plan), directory)
        self.daemons = Daemons(self.state_dir)

    def start(self) -> None:
        super().start()
        wanted = labels(self.shape.nodes)
        for name, label in wanted.items():
            self.daemons.start(self.daemons.kill(name), ("--labels", label))
        wait_until(
            lambda: (
                {node["name"]: node.get("labels") for node in self.nodes()}
                == {name: [label] for name, label in wanted.items()}
            ),
            _NODE_LIMIT_S,
            "the nodes to have their labels",
            1.0,
        )
        self.settle()
