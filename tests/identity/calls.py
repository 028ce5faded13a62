"""Calls of any method with any credential, for tests of who may make them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio

from hrm import rpc
from hrm.identity.roles import AccessRole, IdentityKind
from hrm.v1 import identity_pb2 as pb
from hrm.v1 import identity_pb2_grpc
from tests.hostile.messages import methods
from tests.hostile.send import RACE
from tests.master.test_services import TIMEOUT_S, Running

AGENT_SERVICES = ("AgentService",)
PATHS = {
    f"/{method.containing_service.full_name}/{method.name}": method.containing_service.name
    for method in methods()
}
"""Every RPC of every service, by its name as gRPC has it, and its service."""
NO_MESSAGE = b"\xff\xff\xff"
KIND_OF = {
    AccessRole.AGENT: IdentityKind.NODE,
    AccessRole.JOINING: IdentityKind.NODE,
    AccessRole.SCHEDULER: IdentityKind.SCHEDULER,
}


async def reply(address: str, path: str, token: str | None) -> tuple[grpc.StatusCode, str]:
    """The status and the details of a call whose only message is none: whoever may make it is
    refused for that."""
    code, details = await raw_reply(address, path, token, [NO_MESSAGE])
    if details.startswith(RACE):  # gRPC's client lost the reason of a call that was refused early
        code, details = await raw_reply(address, path, token, [])
    return code, details


async def raw_reply(
    address: str, path: str, token: str | None, messages: list[bytes]
) -> tuple[grpc.StatusCode, str]:
    """The status and the details of a call with these messages."""
    metadata = () if token is None else (("authorization", f"Bearer {token}"),)
    async with grpc.aio.insecure_channel(address, options=rpc.OPTIONS) as channel:
        method = channel.stream_stream(path, request_serializer=bytes, response_deserializer=bytes)
        call = method(iter(messages), timeout=TIMEOUT_S, metadata=metadata)
        try:
            async for _ in call:
                pass
        except grpc.aio.AioRpcError as error:
            return error.code(), error.details() or ""
    return grpc.StatusCode.OK, ""


def identities(master: Running) -> Any:
    return identity_pb2_grpc.IdentityServiceStub(master.channel)


async def made(
    master: Running, role: AccessRole, name: str = "ada", **fields: Any
) -> pb.CreatedToken:
    """A token of the cluster's administrator's making."""
    kind = KIND_OF.get(role, IdentityKind.USER)
    values = {"name": name, "kind": kind.value, "role": role.value, **fields}
    created: pb.CreatedToken = await identities(master).CreateToken(
        pb.CreateTokenRequest(**values), timeout=TIMEOUT_S
    )
    return created


@asynccontextmanager
async def as_(master: Running, token: str) -> AsyncIterator[Running]:
    """The same master, with the channel of another caller."""
    other = Running.__new__(Running)
    other.settings, other.address = master.settings, master.address
    other.serving, other.interpreter = master.serving, master.interpreter
    other.token, other.channel = token, rpc.channel(master.address, token)
    try:
        yield other
    finally:
        await other.channel.close(None)
