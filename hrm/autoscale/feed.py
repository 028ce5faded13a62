"""What is read from the master: events since the last time, and the pool as it is now."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hrm.autoscale.files import KeptHistory
from hrm.core.pool.sample import (
    PoolApplication,
    PoolNode,
    PoolQueue,
    held_share,
    pool_sample,
)
from hrm.core.pool.scaler import Amount, PoolSample
from hrm.core.tenancy.queue_status import WITHOUT_PLACE, WaitReason
from hrm.core.vocabulary.history import StateEvent
from hrm.core.vocabulary.model import ApplicationId
from hrm.errors import HrmError
from hrm.forecast.history import CLOCK_TOLERANCE_S, DemandHistory

if TYPE_CHECKING:
    from hrm.v1 import admin_pb2, common_pb2, queues_pb2
    from hrm.v1.admin_pb2_grpc import AdminServiceStub
    from hrm.v1.events_pb2_grpc import EventServiceStub
    from hrm.v1.identity_pb2_grpc import IdentityServiceStub
    from hrm.v1.queues_pb2_grpc import QueueServiceStub

__all__ = ["MasterFeed", "pool_application", "pool_node", "pool_queue"]

PAGES_MAX = 10_000
KINDS = ("container", "journal")
WAITS_ASKED = 1_000
"""Applications of each queue of which it is asked why they wait."""


@dataclass(frozen=True, slots=True)
class MasterFeed:
    """Calls of one connection, each with the same time limit."""

    admin: AdminServiceStub
    events: EventServiceStub
    queues: QueueServiceStub
    timeout_s: float
    identities: IdentityServiceStub | None = None

    def role(self) -> str:
        """Of the token that the calls have; raises grpc.RpcError."""
        from hrm.v1.identity_pb2 import WhoAmIRequest

        assert self.identities is not None
        return str(self.identities.WhoAmI(WhoAmIRequest(), timeout=self.timeout_s).role)

    def update(self, kept: KeptHistory, now: float) -> str:
        """Add to ``kept`` what the journal has since; another cluster's is replaced.

        Returns:
            What is worth knowing of it; empty: nothing.

        Raises:
            grpc.RpcError: a call has failed; what had been read before it is in ``kept``.
        """
        from hrm.v1.events_pb2 import WatchEventsRequest

        cluster = self._cluster()
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

        first = self._cluster()
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
        queues = [
            queue
            for page in self._pages(
                self.queues.ListQueues, queues_pb2.ListQueuesRequest(waiting_limit=WAITS_ASKED)
            )
            for queue in page.queues
        ]
        last = self._cluster()
        return pool_sample(
            now,
            map(pool_node, nodes),
            map(pool_application, applications),
            map(pool_queue, queues),
            forecast_nodes,
            is_complete=first.epoch == last.epoch and not (first.incomplete or last.incomplete),
        )

    def _cluster(self) -> admin_pb2.Cluster:
        from hrm.v1.admin_pb2 import GetClusterRequest

        cluster: admin_pb2.Cluster = self.admin.GetCluster(
            GetClusterRequest(), timeout=self.timeout_s
        )
        return cluster

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


def pool_node(node: admin_pb2.Node) -> PoolNode:
    """As the master lists it."""
    from hrm.v1 import common_pb2

    totals = [0.0, 0.0, 0.0]
    containers = 0
    for unit in node.resource_units:
        capacity: common_pb2.Resources = unit.unit.capacity
        totals[0] += capacity.vcores
        totals[1] += capacity.memory_mib
        totals[2] += capacity.gpu_memory_mib
        containers += unit.running + unit.waiting_stream + unit.waiting_batch
    return PoolNode(
        name=node.name,
        is_open=node.state == common_pb2.NODE_STATE_ALIVE,
        containers=containers,
        capacity=(totals[0], totals[1], totals[2]),
    )


def pool_application(application: admin_pb2.Application) -> PoolApplication:
    """As the master describes it, with its containers."""
    from hrm.v1 import common_pb2

    elsewhere = (common_pb2.CONTAINER_STATE_ENDED, common_pb2.CONTAINER_STATE_PENDING)
    return PoolApplication(
        name=ApplicationId(application.application_id),
        is_batch=application.workload_class == common_pb2.WORKLOAD_CLASS_BATCH,
        executors=Counter(
            container.node
            for container in application.containers
            if container.node and container.state not in elsewhere
        ),
        running_on=frozenset(
            container.node
            for container in application.containers
            if container.state == common_pb2.CONTAINER_STATE_RUNNING
        ),
    )


def pool_queue(queue: queues_pb2.Queue) -> PoolQueue:
    """As the master lists it, with what waits."""
    known = {reason.value: reason for reason in WaitReason}
    waits = [(known.get(x.reason, WaitReason.NONE), x.containers) for x in queue.waiting]
    return PoolQueue(
        name=queue.name,
        is_leaf=queue.is_leaf,
        used=_amount(queue.used),
        pending=_amount(queue.pending),
        maximum=_in_numbers(queue.stated.maximum, queue.maximum, math.inf),
        guaranteed=_in_numbers(queue.stated.guaranteed, queue.guaranteed, 0.0),
        held_share=held_share(waits, queue.waiting_total - len(waits)),
        is_without_place=any(reason in WITHOUT_PLACE for reason, _ in waits),
    )


def _amount(given: queues_pb2.QueueAmounts) -> Amount:
    return (given.cores, given.memory_mib, given.gpu_memory_mib)


def _in_numbers(
    stated: queues_pb2.QueueQuota, amounts: queues_pb2.QueueAmounts, otherwise: float
) -> Amount:
    """What is stated as a number; ``otherwise`` where it is a part of the cluster, or nothing."""
    cores, memory, gpus = (
        amount if text and not text.endswith("%") else otherwise
        for text, amount in zip(
            (stated.cores, stated.memory, stated.gpu_memory), _amount(amounts), strict=True
        )
    )
    return (cores, memory, gpus)


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
