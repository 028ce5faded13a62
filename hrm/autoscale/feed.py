"""What is read from the master: events since the last time, and the pool as it is now.

A node is *protected* from being drained if it holds anything that is no executor of an application
that is listed, such as a driver: what is not understood is not moved.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hrm.autoscale.files import KeptHistory
from hrm.autoscale.scaler import NodeSample, PoolSample
from hrm.core.tenancy.queue_status import WaitReason
from hrm.core.vocabulary.history import StateEvent
from hrm.errors import HrmError
from hrm.forecast.history import CLOCK_TOLERANCE_S, DemandHistory

if TYPE_CHECKING:
    from hrm.v1 import admin_pb2, common_pb2, queues_pb2
    from hrm.v1.admin_pb2_grpc import AdminServiceStub
    from hrm.v1.events_pb2_grpc import EventServiceStub
    from hrm.v1.queues_pb2_grpc import QueueServiceStub

__all__ = ["MasterFeed", "pool_sample"]

_FOR_PLACE = frozenset({WaitReason.NO_PLACE.value, WaitReason.GANG.value})

PAGES_MAX = 10_000
KINDS = ("container", "journal")
WAITING_LIMIT = 20
"""Applications that wait, of each queue: one without a place is among the first, or will be."""


@dataclass(frozen=True, slots=True)
class MasterFeed:
    """Calls of one connection, each with the same time limit."""

    admin: AdminServiceStub
    events: EventServiceStub
    queues: QueueServiceStub
    timeout_s: float

    def update(self, kept: KeptHistory, now: float) -> str:
        """Add to ``kept`` what the journal has since; another cluster's is replaced.

        Returns:
            What is worth knowing of it; empty: nothing.

        Raises:
            grpc.RpcError: a call has failed; what had been read before it is in ``kept``.
        """
        from hrm.v1.admin_pb2 import GetClusterRequest
        from hrm.v1.events_pb2 import WatchEventsRequest

        cluster = self.admin.GetCluster(GetClusterRequest(), timeout=self.timeout_s)
        remark = ""
        if not kept.is_of(cluster.epoch, cluster.started_at_s):
            remark = "the kept history was of another cluster at this address; it begins again"
            kept.history = DemandHistory()
        kept.epoch, kept.started_at_s = cluster.epoch, cluster.started_at_s
        history = kept.history
        queues = self._queues_of_applications()
        request = WatchEventsRequest(resume=str(history.last_id), kinds=KINDS)
        gap = False
        for page in self.events.WatchEvents(request, timeout=self.timeout_s):
            gap = gap or page.gap
            if page.events:
                events = [_event(each) for each in page.events]
                history.add(events, now, lambda name: queues.get(name, ""), gap=gap)
                gap = False
        history.reached(now - CLOCK_TOLERANCE_S)  # the master's clock may be behind
        return remark

    def sample(self, now: float, forecast_nodes: int | None) -> PoolSample:
        """The pool as it is now; raises grpc.RpcError."""
        from hrm.v1 import admin_pb2, common_pb2, queues_pb2

        nodes = [
            node
            for page in self._pages(self.admin.ListNodes, admin_pb2.ListNodesRequest())
            for node in page.nodes
            if node.state != common_pb2.NODE_STATE_LOST
        ]
        listed = [
            each
            for page in self._pages(
                self.admin.ListApplications, admin_pb2.ListApplicationsRequest()
            )
            for each in page.applications
        ]
        applications = [
            self.admin.GetApplication(
                admin_pb2.GetApplicationRequest(application_id=each.application_id),
                timeout=self.timeout_s,
            )
            for each in listed
            if each.containers_running or each.containers_waiting
        ]
        leaves = [
            queue
            for page in self._pages(
                self.queues.ListQueues, queues_pb2.ListQueuesRequest(waiting_limit=WAITING_LIMIT)
            )
            for queue in page.queues
            if queue.is_leaf
        ]
        return pool_sample(now, nodes, applications, leaves, forecast_nodes)

    def _queues_of_applications(self) -> dict[str, str]:
        from hrm.v1.admin_pb2 import ListApplicationsRequest

        request = ListApplicationsRequest(include_ended=True, limit=100_000)
        pages = self._pages(self.admin.ListApplications, request)
        return {each.application_id: each.queue for page in pages for each in page.applications}

    def _pages(self, call: Callable[..., Any], request: Any) -> Iterator[Any]:
        for _ in range(PAGES_MAX):
            page = call(request, timeout=self.timeout_s)
            yield page
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token
        raise HrmError(f"the list does not end: the master has sent {PAGES_MAX} pages of it")


def pool_sample(
    now: float,
    nodes: list[admin_pb2.Node],
    applications: list[admin_pb2.Application],
    leaves: list[queues_pb2.Queue],
    forecast_nodes: int | None,
) -> PoolSample:
    """From what the master lists. ``nodes``: those that are not lost; ``applications``: with their
    containers, those that have any on nodes."""
    understood: Counter[str] = Counter()
    streams: dict[str, set[str]] = {}
    for application in applications:
        places = Counter(_places(application))
        understood += places
        if _is_stream(application):
            for name in places:
                streams.setdefault(name, set()).add(application.application_id)
    samples = []
    for node in nodes:
        containers = sum(
            unit.running + unit.waiting_stream + unit.waiting_batch for unit in node.resource_units
        )
        samples.append(
            NodeSample(
                name=node.name,
                is_open=_is_open(node),
                containers=containers,
                is_protected=containers > understood[node.name],
                streams=frozenset(streams.get(node.name, ())),
            )
        )
    return PoolSample(
        now=now,
        nodes=tuple(samples),
        needed_nodes=_needed(nodes, leaves),
        guaranteed_nodes=_guaranteed(nodes, leaves),
        forecast_nodes=forecast_nodes,
        waiting=_summed(_waiting(leaf) for leaf in leaves),
        is_without_place=any(each.reason in _FOR_PLACE for leaf in leaves for each in leaf.waiting),
    )


def _places(application: admin_pb2.Application) -> Iterator[str]:
    """The node of each executor that holds something there."""
    from hrm.v1 import common_pb2

    ended = (common_pb2.CONTAINER_STATE_ENDED, common_pb2.CONTAINER_STATE_PENDING)
    for container in application.containers:
        if container.node and container.state not in ended:
            yield container.node


def _is_stream(application: admin_pb2.Application) -> bool:
    from hrm.v1 import common_pb2

    return application.workload_class != common_pb2.WORKLOAD_CLASS_BATCH


def _is_open(node: admin_pb2.Node) -> bool:
    from hrm.v1 import common_pb2

    return node.state == common_pb2.NODE_STATE_ALIVE


def _capacity(nodes: list[admin_pb2.Node]) -> tuple[float, float, float]:
    """Cores, MiB and MiB of GPUs of the mean node."""
    totals = [0.0, 0.0, 0.0]
    for node in nodes:
        for unit in node.resource_units:
            given: common_pb2.Resources = unit.unit.capacity
            totals[0] += given.vcores
            totals[1] += given.memory_mib
            totals[2] += given.gpu_memory_mib
    count = max(1, len(nodes))
    return totals[0] / count, totals[1] / count, totals[2] / count


def _needed(nodes: list[admin_pb2.Node], leaves: list[queues_pb2.Queue]) -> int:
    """Nodes for what queues use and for what waits in them, as far as their maxima let it start."""
    amounts = [
        (waiting[0] + used.cores, waiting[1] + used.memory_mib, waiting[2] + used.gpu_memory_mib)
        for waiting, used in ((_waiting(leaf), leaf.used) for leaf in leaves)
    ]
    return _nodes_for(amounts, nodes)


def _waiting(leaf: queues_pb2.Queue) -> tuple[float, float, float]:
    """What waits in a leaf, as far as its maximum lets it start: cores, MiB, MiB of GPUs."""
    used, pending, most = leaf.used, leaf.pending, _without_relative_maximum(leaf).maximum
    return (
        _startable(used.cores, pending.cores, most.cores),
        _startable(used.memory_mib, pending.memory_mib, most.memory_mib),
        _startable(used.gpu_memory_mib, pending.gpu_memory_mib, most.gpu_memory_mib),
    )


def _summed(
    amounts: Iterable[tuple[float, float, float]],
) -> tuple[float, float, float]:
    found = [0.0, 0.0, 0.0]
    for each in amounts:
        for index, amount in enumerate(each):
            found[index] += amount
    return found[0], found[1], found[2]


def _without_relative_maximum(leaf: queues_pb2.Queue) -> queues_pb2.Queue:
    """A maximum that is a part of the cluster grows with it, and holds nothing back."""
    from hrm.v1 import queues_pb2

    found = queues_pb2.Queue()
    found.CopyFrom(leaf)
    stated = leaf.stated.maximum
    if not stated.cores or stated.cores.endswith("%"):
        found.maximum.cores = math.inf
    if not stated.memory or stated.memory.endswith("%"):
        found.maximum.memory_mib = math.inf
    if not stated.gpu_memory or stated.gpu_memory.endswith("%"):
        found.maximum.gpu_memory_mib = math.inf
    return found


def _startable(used: float, pending: float, maximum: float) -> float:
    return min(pending, max(0.0, maximum - used))


def _guaranteed(nodes: list[admin_pb2.Node], leaves: list[queues_pb2.Queue]) -> int:
    """Nodes for what leaves are guaranteed in numbers."""
    amounts = []
    for leaf in leaves:
        stated, given = leaf.stated.guaranteed, leaf.guaranteed
        amounts.append(
            (
                given.cores if _is_number(stated.cores) else 0.0,
                given.memory_mib if _is_number(stated.memory) else 0.0,
                given.gpu_memory_mib if _is_number(stated.gpu_memory) else 0.0,
            )
        )
    return _nodes_for(amounts, nodes)


def _is_number(stated: str) -> bool:
    return bool(stated) and not stated.endswith("%")


def _nodes_for(amounts: list[tuple[float, float, float]], nodes: list[admin_pb2.Node]) -> int:
    """Nodes of the mean size; a first one where there is none whose size could be counted in."""
    found = 0
    for index, of_node in enumerate(_capacity(nodes)):
        total = sum(each[index] for each in amounts)
        if total > 0:
            found = max(found, math.ceil(total / of_node - 1e-9) if of_node > 0 else 1)
    return found


def _event(message: Any) -> StateEvent:
    return StateEvent(
        event_id=message.event_id,
        at_s=message.at_s,
        kind=message.kind,
        application_id=message.application_id,
        container_id=message.container_id,
        node=message.node,
        from_state=message.from_state,
        to_state=message.to_state,
    )
