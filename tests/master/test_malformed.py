"""Bytes that are not a message, for every method of every service: refused as such."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from hrm.v1 import (
    admin_pb2,
    application_pb2,
    events_pb2,
    identity_pb2,
    node_pb2,
    pipeline_pb2,
    policy_pb2,
    scheduler_pb2,
    submission_pb2,
)
from tests.master.test_services import TIMEOUT_S, running

MODULES: tuple[Any, ...] = (
    admin_pb2, application_pb2, events_pb2, identity_pb2, node_pb2, pipeline_pb2, policy_pb2,
    scheduler_pb2, submission_pb2, health_pb2, reflection_pb2,
)  # fmt: skip
OF_AGENTS = ("AgentService",)
METHODS = [
    f"/{service.full_name}/{method.name}"
    for module in MODULES
    for service in module.DESCRIPTOR.services_by_name.values()
    if service.name not in OF_AGENTS
    for method in service.methods
]


async def code_of(channel: grpc.aio.Channel, method: str, data: bytes) -> grpc.StatusCode:
    """What a call with one message, sent as it is, ends with."""
    call = channel.stream_stream(method, request_serializer=bytes, response_deserializer=bytes)(
        iter([data]), timeout=TIMEOUT_S
    )
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        async for _ in call:
            pass
    return caught.value.code()


async def test_every_method_refuses_what_is_no_message(tmp_path: Path) -> None:
    assert len(METHODS) > 30
    async with running(tmp_path) as master:
        reported = {name: await code_of(master.channel, name, b"\xff\xff\xff") for name in METHODS}
        assert set(reported.values()) == {grpc.StatusCode.INVALID_ARGUMENT}, reported
