"""Nodes with labels and versions, and clusters of them."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from hrm.core.vocabulary.model import ApplicationId, WorkloadClass
from hrm.core.vocabulary.node_requirement import NodeProperties, NodeRequirement, Runtime
from hrm.testing.virtual import VirtualCluster, unit
from tests.virtual_scheduler import VirtualScheduler

BATCH, STREAM = WorkloadClass.BATCH, WorkloadClass.STREAM
SSD = NodeRequirement(labels=frozenset({"ssd"}))
NEW = Runtime(spark="4.3.0", scala="2.13", java="21", python="3.12")
OLD = Runtime(spark="3.5.5", scala="2.12", java="17", python="3.11")
LABELS = st.frozensets(st.sampled_from(["a", "b", "c"]))
SCHEDULERS = [(1, 0), (2, 0), (6, 0), (1, 1), (2, 2)]
"""Inside the master, and as processes of their own."""


def properties(*labels: str, host: str = "127.0.0.1", runtimes: Any = None) -> NodeProperties:
    return NodeProperties(host=host, labels=frozenset(labels), runtimes=runtimes)


def cluster_of(
    *nodes: tuple[str, NodeProperties], vcores: int = 4, inside: int = 2, outside: int = 0,
    **options: Any,
) -> VirtualCluster:  # fmt: skip
    cluster = VirtualCluster(schedulers=inside, **options)
    for name, has in nodes:
        cluster.add_node(unit(name, vcores=vcores), properties=has)
    for number in range(outside):
        VirtualScheduler(cluster, f"outside-{number}")
    cluster.settle()
    return cluster


def nodes_of(cluster: VirtualCluster, app: ApplicationId) -> set[str]:
    return {x.node or "" for x in cluster.app(app).containers.values()}
