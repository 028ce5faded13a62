"""A master for tests, with prepared lists and a journal, on a real port."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager
from typing import Any

import grpc

from hrm.autoscale.feed import MasterFeed
from hrm.core.vocabulary.history import StateEvent
from hrm.v1 import (
    admin_pb2,
    admin_pb2_grpc,
    common_pb2,
    events_pb2,
    events_pb2_grpc,
    identity_pb2,
    identity_pb2_grpc,
    queues_pb2,
    queues_pb2_grpc,
)
from hrm.wire import events as event_wire
from tests.autoscale.test_feed import node

__all__ = ["ScaledMaster", "feed_of", "served"]


class ScaledMaster(
    admin_pb2_grpc.AdminServiceServicer,
    events_pb2_grpc.EventServiceServicer,
    queues_pb2_grpc.QueueServiceServicer,
    identity_pb2_grpc.IdentityServiceServicer,
):
    """``trimmed``: events up to this number have been removed. ``pages_read``: after so many pages
    of events a call ends, as at its time limit."""

    def __init__(self) -> None:
        self.epoch = 1
        self.started_at_s = 1000.0
        self.incomplete = False
        self.journal: list[StateEvent] = []
        self.trimmed = 0
        self.nodes = {name: node(name) for name in ("n1", "n2", "n3")}
        self.pending_cores = 0.0
        self.queues_of = {"app": "root.etl"}
        self.drains: list[tuple[tuple[str, ...], bool]] = []
        self.reasons: list[str] = []
        self.refuses_drains = False
        self.role = "operator"
        self.pages_read = 1_000_000

    def WhoAmI(self, request: Any, context: Any) -> identity_pb2.CallerIdentity:  # noqa: N802
        return identity_pb2.CallerIdentity(name="autoscale", kind="service", role=self.role)

    def GetCluster(self, request: Any, context: Any) -> admin_pb2.Cluster:  # noqa: N802
        return admin_pb2.Cluster(
            epoch=self.epoch, started_at_s=self.started_at_s, incomplete=self.incomplete
        )

    def ListNodes(self, request: Any, context: Any) -> admin_pb2.ListNodesResponse:  # noqa: N802
        """A page a node."""
        names = list(self.nodes)
        first = int(request.page_token or 0)
        more = str(first + 1) if first + 1 < len(names) else ""
        return admin_pb2.ListNodesResponse(
            nodes=[self.nodes[names[first]]] if names else [], next_page_token=more
        )

    def ListApplications(  # noqa: N802
        self, request: Any, context: Any
    ) -> admin_pb2.ListApplicationsResponse:
        found = [
            admin_pb2.Application(application_id=name, queue=queue)
            for name, queue in self.queues_of.items()
        ]
        return admin_pb2.ListApplicationsResponse(applications=found)

    def DrainNodes(self, request: Any, context: Any) -> admin_pb2.ListNodesResponse:  # noqa: N802
        if self.refuses_drains:
            context.abort(grpc.StatusCode.NOT_FOUND, "no such node")
        self.drains.append((tuple(request.names), request.undo))
        self.reasons.append(request.reason)
        state = common_pb2.NODE_STATE_ALIVE if request.undo else common_pb2.NODE_STATE_DRAINING
        for name in request.names:
            self.nodes[name].state = state
        return admin_pb2.ListNodesResponse()

    def ListQueues(self, request: Any, context: Any) -> queues_pb2.ListQueuesResponse:  # noqa: N802
        amounts = queues_pb2.QueueAmounts
        queue = queues_pb2.Queue(
            name="root.default", is_leaf=True, pending=amounts(cores=self.pending_cores),
            maximum=amounts(cores=1000),
        )  # fmt: skip
        return queues_pb2.ListQueuesResponse(queues=[queue])

    def WatchEvents(  # noqa: N802
        self, request: Any, context: Any
    ) -> Iterator[events_pb2.EventPage]:
        at = int(request.resume)
        if 0 < at < self.trimmed:
            yield event_wire.reached(self.trimmed, gap=True)
        found = [e for e in self.journal if e.event_id > max(at, self.trimmed)]
        for first in range(0, len(found), 500):
            if first >= 500 * self.pages_read:
                context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "its time is over")
            page = event_wire.from_events(found[first : first + 500])
            kept = [each for each in page.events if each.kind in request.kinds]
            del page.events[:]
            page.events.extend(kept)
            yield page


@contextmanager
def served(master: ScaledMaster) -> Iterator[str]:
    """Its address."""
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=4))
    admin_pb2_grpc.add_AdminServiceServicer_to_server(master, server)
    events_pb2_grpc.add_EventServiceServicer_to_server(master, server)
    queues_pb2_grpc.add_QueueServiceServicer_to_server(master, server)
    identity_pb2_grpc.add_IdentityServiceServicer_to_server(master, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(grace=None).wait(timeout=10)


@contextmanager
def feed_of(address: str) -> Iterator[MasterFeed]:
    with grpc.insecure_channel(address) as channel:
        yield MasterFeed(
            admin_pb2_grpc.AdminServiceStub(channel),
            events_pb2_grpc.EventServiceStub(channel),
            queues_pb2_grpc.QueueServiceStub(channel),
            10.0,
            identity_pb2_grpc.IdentityServiceStub(channel),
        )
