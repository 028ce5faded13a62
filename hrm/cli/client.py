"""One connection to the master's services, and the answer to "which master?".

The address comes from ``--master``, else ``$HRM_MASTER``, else from the cluster that ``hrm up``
started under :func:`hrm.config.hrm_home`, else the default port of this machine.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from hrm import errors

if TYPE_CHECKING:
    from hrm.v1.admin_pb2_grpc import AdminServiceStub
    from hrm.v1.policy_pb2_grpc import PolicyServiceStub

__all__ = ["DEFAULT_HOST", "Master", "connect", "default_master", "parse_master", "state_home"]

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 7480  # hrm.config has it too, behind the import of pydantic


class Master(NamedTuple):
    """What the queries need: where they ask, whom they ask, how long they wait."""

    target: str
    stub: AdminServiceStub
    policies: PolicyServiceStub
    timeout_s: float


def state_home() -> Path:
    """``hrm.config.hrm_home`` without its imports: ``$HRM_HOME``, else ``~/.hrm``."""
    return Path(os.environ.get("HRM_HOME") or "~/.hrm").expanduser()


def parse_master(text: str) -> str:
    """``host:port`` from ``host``, ``host:port`` or ``hrm://host:port``.

    Raises:
        InvalidRequest: neither of these.
    """
    address = text.removeprefix("hrm://").rstrip("/")
    host, colon, port = address.rpartition(":")
    if not colon or address.endswith("]"):
        host, port = address, str(DEFAULT_PORT)
    good_port = port.isascii() and port.isdigit() and 0 < int(port) < 65536
    if not host or "/" in host or any(c.isspace() for c in host) or not good_port:
        raise errors.InvalidRequest(
            f"{text!r} is no master address; give host:port, such as {DEFAULT_HOST}:{DEFAULT_PORT}"
        )
    return f"{host}:{port}"


def default_master(given: str | None = None) -> str:
    """``host:port`` of the master that is meant when ``--master`` is ``given``."""
    named = given or os.environ.get("HRM_MASTER")
    if named:
        return parse_master(named)
    try:
        port = int(json.loads((state_home() / "cluster.json").read_text())["port"])
    except (OSError, ValueError, KeyError, TypeError):
        port = DEFAULT_PORT
    return f"{DEFAULT_HOST}:{port}"


@contextmanager
def connect(
    master: str | None, timeout_s: float, *, token_path: Path | None = None
) -> Iterator[Master]:
    """A connection for the length of a ``with``; failed calls leave it as ``HrmError``.

    Raises:
        HrmError: no token, no answer in time, or the master's refusal.
    """
    import grpc

    from hrm import rpc
    from hrm.v1.admin_pb2_grpc import AdminServiceStub
    from hrm.v1.policy_pb2_grpc import PolicyServiceStub

    target = default_master(master)
    path = token_path or Path(os.environ.get("HRM_TOKEN_FILE") or state_home() / "token")
    path = path.expanduser()
    if not path.exists() and not _anything_named(master):
        raise errors.Unavailable(
            f"no cluster of yours runs here (no {path}); start one: hrm up - or name another "
            f"machine's: --master HOST:PORT, with a copy of its token in HRM_TOKEN_FILE"
        )
    token = rpc.read_token(path)
    with rpc.sync_channel(target, token) as channel:
        try:
            stub = AdminServiceStub(channel)
            yield Master(target, stub, PolicyServiceStub(channel), timeout_s)
        except grpc.RpcError as error:
            raise rpc.error_from(error, target) from error


def _anything_named(master: str | None) -> bool:
    return bool(master or os.environ.get("HRM_MASTER") or os.environ.get("HRM_TOKEN_FILE"))
