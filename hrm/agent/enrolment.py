"""Exchanges a join token for the node's own, once, before the agent first connects.

A join token lets a machine become one node of the cluster; it works once, so an image or a script
that still has it opens nothing. What the agent gets for it is bound to the node's name, and takes
its place in the token file. If the agent is killed between the two, the join token is used up:
make another.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable

import grpc
import grpc.aio
import structlog

from hrm import rpc
from hrm.config import AgentSettings
from hrm.core.vocabulary.backoff import Backoff
from hrm.durable import write_durably
from hrm.errors import InvalidConfig, LimitReached, Unavailable
from hrm.identity.tokens import is_join_token
from hrm.v1 import identity_pb2 as pb
from hrm.v1 import identity_pb2_grpc

__all__ = ["enrolled"]

CALL_TIMEOUT_S = 20.0
_PAUSE_S = 0.5

_log = structlog.get_logger("agent.enrolment")


async def enrolled(
    settings: AgentSettings, node: str, open_channel: Callable[[], grpc.aio.Channel]
) -> str:
    """The token of this node; waits for the master where one has to be requested.

    Raises:
        PermissionDenied: the join token has been used, has ended, or is for another name.
        AlreadyExists: a node of this name has enrolled.
        InvalidConfig: the token file cannot be replaced; the join token is not used then.
    """
    token = rpc.read_token(settings.token_file)
    if not is_join_token(token):
        return token
    path = settings.token_file
    if not os.access(path.parent, os.W_OK):
        raise InvalidConfig(
            f"{path} holds a join token, and {path.parent}, where the node's own is to take its "
            f"place, cannot be written; chown it to the agent's user, or name another --token-file"
        )
    backoff = Backoff(_PAUSE_S, settings.reconnect_delay_max_s, random.random)
    while True:
        try:
            token = await _request(settings.master, node, open_channel)
            break
        except (Unavailable, LimitReached) as error:
            _log.warning("cannot enrol yet; trying again", why=error.message)
            await asyncio.sleep(backoff.pause_s())
    write_durably(path, f"{token}\n".encode(), 0o600)
    _log.info("enrolled", node=node)
    return token


async def _request(target: str, node: str, open_channel: Callable[[], grpc.aio.Channel]) -> str:
    async with open_channel() as channel:
        stub = identity_pb2_grpc.IdentityServiceStub(channel)
        try:
            made = await stub.EnrolNode(pb.EnrolNodeRequest(node=node), timeout=CALL_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            raise rpc.error_from(error, target) from error
    return str(made.token)
