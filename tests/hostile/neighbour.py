"""Another caller: sends one request every 100 ms and records how long each reply took.

A process of its own, so that the attacker's work does not count as the attacked daemon's. Its
request is cheap, so its wait is the wait of any caller of the daemon::

    python -m tests.hostile.neighbour status HOST:PORT TOKEN_FILE    GetCluster of a master
    python -m tests.hostile.neighbour log HOST:PORT TOKEN_FILE       a log that no agent has
    python -m tests.hostile.neighbour page HOST:PORT                 a log page that is not there

Each line of its output is a JSON list: when (monotonic), seconds, the status.
"""

from __future__ import annotations

import http.client
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import grpc

from hrm import rpc
from hrm.v1 import admin_pb2, admin_pb2_grpc, node_pb2, node_pb2_grpc

PERIOD_S = 0.1
LIMIT_S = 30.0


def _status(target: str, token_file: str) -> Callable[[], None]:
    channel = rpc.sync_channel(target, Path(token_file).read_text().strip())
    stub = admin_pb2_grpc.AdminServiceStub(channel)
    return lambda: stub.GetCluster(admin_pb2.GetClusterRequest(), timeout=LIMIT_S)


def _log(target: str, token_file: str) -> Callable[[], None]:
    channel = rpc.sync_channel(target, Path(token_file).read_text().strip())
    stub = node_pb2_grpc.AgentServiceStub(channel)
    request = node_pb2.ReadLogRequest(container_id="no-such-container")
    return lambda: list(stub.ReadLog(request, timeout=LIMIT_S))  # type: ignore[return-value]


def _page(target: str) -> Callable[[], None]:
    host, _, port = target.rpartition(":")

    def ask() -> None:
        connection = http.client.HTTPConnection(host, int(port), timeout=LIMIT_S)
        try:
            connection.request("GET", "/")
            status = connection.getresponse().status
        finally:
            connection.close()
        if status != 404:
            raise OSError(f"HTTP {status}")

    return ask


KINDS: dict[str, Callable[..., Callable[[], None]]] = {
    "status": _status, "log": _log, "page": _page,
}  # fmt: skip
EXPECTED_CODES = ("NOT_FOUND", "INVALID_ARGUMENT")
"""Statuses of the correct replies to the probes."""


def main(kind: str, *where: str) -> None:
    ask = KINDS[kind](*where)
    while True:
        started_s = time.monotonic()
        outcome_text = "OK"
        try:
            ask()
        except grpc.RpcError as error:
            outcome_text = error.code().name if hasattr(error, "code") else "UNKNOWN"
        except (OSError, http.client.HTTPException) as error:
            outcome_text = type(error).__name__
        took_s = time.monotonic() - started_s
        outcome_text = "OK" if outcome_text in EXPECTED_CODES else outcome_text
        print(json.dumps([started_s, took_s, outcome_text]), flush=True)
        time.sleep(max(0.0, PERIOD_S - took_s))


if __name__ == "__main__":
    main(*sys.argv[1:])
