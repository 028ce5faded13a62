"""Every RPC of the master with hostile texts in every field: its replies are short and visible."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf.message_factory import GetMessageClass

import hrm.v1
from hrm import request_bounds
from hrm.v1 import admin_pb2
from tests.hostile_text import HOSTILE, filled, unseen
from tests.master.test_services import TIMEOUT_S, refused, registration, running

FEW_S = 3.0
DETAILS_MAX = 1_024
SERVED_BY_AGENTS = ("AgentService",)


def methods() -> Iterator[Any]:
    for _, name, _ in pkgutil.iter_modules(hrm.v1.__path__):
        if name.endswith("_pb2"):
            file = importlib.import_module(f"hrm.v1.{name}").DESCRIPTOR
            for service in file.services_by_name.values():
                if service.name not in SERVED_BY_AGENTS:
                    yield from service.methods


METHODS = {f"{method.containing_service.name}/{method.name}": method for method in methods()}
TEXTS = {"long": "a" * 10_000, "NUL": "\0" * 240, "hostile": HOSTILE, "wide": "\U0001f600" * 240}


async def output(channel: Any, method: Any, request: Any) -> tuple[Any, str]:
    """How the call ends, and its output."""
    path = f"/{method.containing_service.full_name}/{method.name}"
    encode, decode = type(request).SerializeToString, lambda data: data
    try:
        if method.client_streaming:
            stream = channel.stream_stream(path, encode, decode)(timeout=FEW_S)
            await stream.write(request)
            await stream.read()
            stream.cancel()
        elif method.server_streaming:
            async for _ in channel.unary_stream(path, encode, decode)(request, timeout=FEW_S):
                break
        else:
            await channel.unary_unary(path, encode, decode)(request, timeout=FEW_S)
    except grpc.aio.AioRpcError as error:
        return error.code(), error.details() or ""
    return grpc.StatusCode.OK, ""


@pytest.mark.parametrize("kind", TEXTS)
async def test_what_is_reported_of_hostile_fields_is_short_and_seen(
    tmp_path: Path, kind: str
) -> None:
    expected = {grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND}
    # These find nothing wrong with their input, or wait for more of it.
    expected |= {grpc.StatusCode.OK, grpc.StatusCode.DEADLINE_EXCEEDED}
    expected |= {grpc.StatusCode.ABORTED}
    async with running(tmp_path) as master:
        for name, method in METHODS.items():
            kind_of_request = GetMessageClass(method.input_type)
            for number in (0, 1):
                request = filled(kind_of_request, TEXTS[kind], number=number)
                code, details = await output(master.channel, method, request)
                assert code in expected, (name, code, details)
                assert len(details.encode()) < DETAILS_MAX, name
                assert unseen(details, allowed="") == [], name
        assert not master.serving.done()
        cluster = await master.admin.GetCluster(admin_pb2.GetClusterRequest(), timeout=TIMEOUT_S)
        assert (cluster.nodes_alive, cluster.applications_live) == (0, 0)


async def test_what_is_too_large_is_refused_by_its_bytes(tmp_path: Path) -> None:
    """Also if it would parse: these bytes are fields that no version knows."""
    async with running(tmp_path) as master:
        channel: Any = master.channel
        for method in METHODS.values():
            path = f"/{method.containing_service.full_name}/{method.name}"
            if method.client_streaming or request_bounds.method_bytes(path) > 5_000_000:
                continue
            data = b"x" * (request_bounds.method_bytes(path) + 1)
            with refused(grpc.StatusCode.INVALID_ARGUMENT, f"{len(data)} bytes; at most"):
                if method.server_streaming:
                    await anext(aiter(channel.unary_stream(path)(data, timeout=TIMEOUT_S)))
                else:
                    await channel.unary_unary(path)(data, timeout=TIMEOUT_S)


async def test_sixty_megabytes_of_environment_delay_nothing(tmp_path: Path) -> None:
    async with running(tmp_path) as master:
        request = registration()
        for number in range(60):
            request.launch.environment[f"V{number}"] = "v" * 1_000_000
        with refused(grpc.StatusCode.INVALID_ARGUMENT, "a message to Register has 60"):
            await master.applications.Register(request, timeout=TIMEOUT_S)
        await master.admin.GetCluster(admin_pb2.GetClusterRequest(), timeout=TIMEOUT_S)
