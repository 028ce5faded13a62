"""Every RPC of every service, by its descriptor: who may call it, and with what."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
import pytest

from hrm import rpc_server
from hrm.identity.access import ACCESS, rule_of
from hrm.identity.registry import TokenRegistry
from hrm.identity.roles import CLUSTER, AccessRole, IdentityKind
from hrm.v1 import identity_pb2 as pb
from tests.identity.calls import AGENT_SERVICES, PATHS, identities, made, reply
from tests.master.submitting import stub, submission
from tests.master.test_services import TIMEOUT_S, Running, running

OF_MASTER = [path for path, service in PATHS.items() if service not in AGENT_SERVICES]
OF_AGENT = [path for path, service in PATHS.items() if service in AGENT_SERVICES]
WORTHLESS = ("none", "foreign", "of another secret", "expired", "revoked")


def test_the_table_has_every_method_and_no_other() -> None:
    assert len(PATHS) > 45
    assert set(PATHS) - set(ACCESS) == set(), "add it to hrm.identity.access"
    # Of the health service, the descriptors of an older grpcio-health-checking lack List.
    assert set(ACCESS) - set(PATHS) <= {"/grpc.health.v1.Health/List"}


def test_an_administrator_may_call_everything_and_an_unknown_method_is_its_alone() -> None:
    assert [path for path, rule in ACCESS.items() if AccessRole.ADMIN not in rule.roles] == []
    assert rule_of("/hrm.v1.FutureService/Destroy").roles == {AccessRole.ADMIN}


def test_what_changes_says_what() -> None:
    assert [path for path, rule in ACCESS.items() if rule.change and not rule.names] == []


def test_only_operators_and_administrators_change_the_cluster() -> None:
    """Written out once more: a slip in the table must not widen a role."""
    allowed = {
        role: {path.rpartition(".")[2] for path, rule in ACCESS.items()
               if rule.change and role in rule.roles}
        for role in AccessRole
    }  # fmt: skip
    tokens = {"IdentityService/RevokeToken"}
    assert allowed[AccessRole.VIEWER] == {"AdminService/LinkLog"} | tokens
    submits = allowed[AccessRole.VIEWER] | {
        "AdminService/KillApplication", "AdminService/ChangePriority",
        "ApplicationService/Register", "PipelineService/Submit",
        "PipelineService/Cancel", "PipelineService/GetResult", "SubmissionService/Submit",
        "SubmissionService/Kill", "QueueService/ChangeQueues",
    }  # fmt: skip
    assert allowed[AccessRole.SUBMITTER] == submits
    assert allowed[AccessRole.OPERATOR] == submits | {
        "AdminService/DrainNodes", "AdminService/BindNode", "PolicyService/SetPolicyMode",
    }  # fmt: skip
    assert allowed[AccessRole.AGENT] == {"NodeService/Connect"}
    assert allowed[AccessRole.SCHEDULER] == {"SharedStateService/Subscribe"}
    assert allowed[AccessRole.JOINING] == {"IdentityService/EnrolNode"}
    assert allowed[AccessRole.APPLICATION] == {
        "ApplicationService/Register", "PipelineService/Submit", "PipelineService/Cancel",
        "PipelineService/GetResult", "SubmissionService/GetTokens",
    }  # fmt: skip


async def worthless(master: Running) -> dict[str, str | None]:
    """Credentials that open nothing."""
    valid = (await made(master, AccessRole.ADMIN)).token
    expired = await made(master, AccessRole.ADMIN, lifetime_s=0.01)
    revoked = await made(master, AccessRole.ADMIN)
    ask = pb.RevokeTokenRequest(token_id=revoked.info.token_id)
    await identities(master).RevokeToken(ask, timeout=TIMEOUT_S)
    foreign = TokenRegistry("of another cluster").draft(
        name="ada", kind=IdentityKind.USER, role=AccessRole.ADMIN, lifetime_s=0.0, by=CLUSTER
    )
    await asyncio.sleep(0.02)
    return {
        "none": None,
        "foreign": foreign[1],
        "of another secret": valid[:-10] + "A" * 10,
        "expired": expired.token,
        "revoked": revoked.token,
    }


async def test_every_method_of_a_master_refuses_every_worthless_credential(tmp_path: Path) -> None:
    async with running(tmp_path) as master:
        found = await worthless(master)
        assert tuple(found) == WORTHLESS
        for what, credential in found.items():
            for path in OF_MASTER:
                code, details = await reply(master.address, path, credential)
                assert code is grpc.StatusCode.UNAUTHENTICATED, (path, what, details)
                known = {"expired": "expired at", "revoked": "was revoked at"}
                assert known.get(what, "missing or wrong token") in details


async def token_of(master: Running, role: AccessRole) -> str:
    if role is not AccessRole.APPLICATION:
        return (await made(master, role, name=f"a-{role.value}")).token
    kept = await stub(master).Submit(submission(), timeout=TIMEOUT_S)
    registry = TokenRegistry(master.token)
    return registry.applications.token_of(kept.submission_id, kept.user)


@pytest.mark.parametrize("role", AccessRole)
async def test_a_role_may_call_what_its_rows_say_and_nothing_else(
    tmp_path: Path, role: AccessRole
) -> None:
    async with running(tmp_path) as master:
        token = await token_of(master, role)
        for path in OF_MASTER:
            code, details = await reply(master.address, path, token)
            if role in rule_of(path).roles:
                assert code is grpc.StatusCode.INVALID_ARGUMENT, (path, details)
            else:
                assert code is grpc.StatusCode.PERMISSION_DENIED, (path, details)
                assert f"which has the role {role.value}" in details


async def test_every_method_of_an_agent_is_the_clusters_alone() -> None:
    server = rpc_server.server("the-cluster's-token", streams_max=8, connections_max=16)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        for path in OF_AGENT:
            for credential in (None, "another-token", "hrm_0123456789_" + "A" * 43):
                code, _ = await reply(f"127.0.0.1:{port}", path, credential)
                assert code is grpc.StatusCode.UNAUTHENTICATED, path
            code, _ = await reply(f"127.0.0.1:{port}", path, "the-cluster's-token")
            assert code is grpc.StatusCode.UNIMPLEMENTED, "it got beyond the interceptor"
    finally:
        await server.stop(None)
