"""Calls that are refused are over: none is left open on its connection, however many there are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest

from hrm.v1 import admin_pb2, admin_pb2_grpc, events_pb2, events_pb2_grpc
from tests.hostile.cluster import Cluster

MANY = 300
"""Several times ``streams_max``: calls left open would exhaust the connection."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("refusals")) as made:
        made.start_master()
        yield made


def without_token(channel: grpc.Channel, _call: Any) -> None:
    stub = admin_pb2_grpc.AdminServiceStub(channel)
    stub.GetCluster(admin_pb2.GetClusterRequest(), timeout=20)


def of_nothing(channel: grpc.Channel, call: Any) -> None:
    stub = admin_pb2_grpc.AdminServiceStub(channel)
    stub.GetApplication(admin_pb2.GetApplicationRequest(application_id="x"), **call)


def refused_by_the_core(channel: grpc.Channel, call: Any) -> None:
    """Through a future, which keeps the error that completed it."""
    stub = admin_pb2_grpc.AdminServiceStub(channel)
    stub.KillApplication(admin_pb2.KillApplicationRequest(application_id="x"), **call)


def out_of_range(channel: grpc.Channel, call: Any) -> None:
    stub = events_pb2_grpc.EventServiceStub(channel)
    next(stub.WatchEvents(events_pb2.WatchEventsRequest(limit=-1), **call))


@pytest.mark.parametrize(
    ("ask", "status"),
    [
        (without_token, grpc.StatusCode.UNAUTHENTICATED),
        (of_nothing, grpc.StatusCode.NOT_FOUND),
        (refused_by_the_core, grpc.StatusCode.NOT_FOUND),
        (out_of_range, grpc.StatusCode.INVALID_ARGUMENT),
    ],
    ids=["no token", "unary", "core", "stream"],
)
def test_a_connection_outlives_its_refusals(
    cluster: Cluster, ask: Callable[[grpc.Channel, Any], None], status: grpc.StatusCode
) -> None:
    call = {"metadata": [("authorization", f"Bearer {cluster.token}")], "timeout": 20}
    options = (("grpc.use_local_subchannel_pool", 1),)
    with grpc.insecure_channel(cluster.address, options=options) as channel:
        for number in range(MANY):
            with pytest.raises(grpc.RpcError) as caught:
                ask(channel, call)
            error: Any = caught.value
            assert error.code() is status, f"call {number}: {error.code()}: {error.details()}"
