"""What a master has lost, such as with its store: who gets it back, and who does not."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import grpc
import pytest

from hrm.config import QueueConfig
from hrm.core.tenancy.queue_spec import QueueName, QueueSpec
from hrm.identity.registry import TokenRegistry
from hrm.identity.roles import AccessRole
from hrm.v1 import admin_pb2, application_pb2, identity_pb2
from tests.identity.calls import as_, identities, made
from tests.master.test_services import TIMEOUT_S, Running, refused, registration, running
from tests.spark.fake_master import until

DENIED = grpc.StatusCode.PERMISSION_DENIED
UNKNOWN = grpc.StatusCode.NOT_FOUND
UNAUTHENTICATED = grpc.StatusCode.UNAUTHENTICATED
LOST = "app-20260101000000-1-0001"
"""An application of the first epoch; the masters here have the second."""
KEY = "k" * 40


async def second(directory: Path) -> None:
    """The first master of a state directory comes and goes."""
    async with running(directory):
        pass


def token_of(master: Running, application_id: str, user: str) -> str:
    """What the earlier master gave the application."""
    return TokenRegistry(master.token).applications.token_of(application_id, user)


async def register(of: Running, application_id: str = "", **fields: Any) -> Any:
    ask = registration(application_id=application_id, user="", ownership_key=KEY, **fields)
    return await of.applications.Register(ask, timeout=TIMEOUT_S)


def user_of(master: Running, application_id: str) -> str:
    found = master.interpreter.core.master_state.applications
    return found[application_id].record.user  # type: ignore[index]


@pytest.mark.parametrize("role", [AccessRole.SUBMITTER, AccessRole.OPERATOR, AccessRole.ADMIN])
async def test_a_token_of_a_user_takes_no_id(tmp_path: Path, role: AccessRole) -> None:
    await second(tmp_path)
    async with running(tmp_path) as master:
        token = (await made(master, role, name="zoe")).token
        async with as_(master, token) as zoe:
            for claimed in (LOST, "mine-1", "app-20990101000000-2-0001"):
                with refused(UNKNOWN, "with its own token or the cluster's"):
                    await register(zoe, claimed)
        assert not master.interpreter.core.master_state.applications


async def test_an_applications_own_token_gives_it_back_to_its_user(tmp_path: Path) -> None:
    await second(tmp_path)
    async with running(tmp_path) as master:
        async with as_(master, token_of(master, LOST, "ada")) as own:
            with refused(UNAUTHENTICATED, "which this master does not know"):
                await own.admin.ExplainApplication(
                    admin_pb2.ExplainApplicationRequest(application_id=LOST), timeout=TIMEOUT_S
                )
            with refused(DENIED, "speaks for that alone"):
                await register(own, LOST.replace("0001", "0002"))
            with refused(DENIED, "speaks for that alone"):
                await register(own)
            result = await register(own, LOST)
            assert result.application_id == LOST
            assert user_of(master, LOST) == "ada"
            assert result.token == own.token
            assert (await register(own, LOST)).token == own.token
        async with as_(master, token_of(master, LOST, "eve")) as other:
            with refused(UNAUTHENTICATED, "wrong token"):
                await register(other, LOST)


async def test_an_operator_who_registers_it_again_leaves_it_its_user(tmp_path: Path) -> None:
    async with running(tmp_path) as master:
        ada = (await made(master, AccessRole.SUBMITTER, name="ada")).token
        olga = (await made(master, AccessRole.OPERATOR, name="olga")).token
        async with as_(master, ada) as of_ada, as_(master, olga) as of_olga:
            first = await register(of_ada)
            again = await register(of_olga, first.application_id)
        assert again.token == first.token


async def test_an_id_that_this_master_makes_is_nobodys_before(tmp_path: Path) -> None:
    """Not even the cluster's token takes one, nor a token that was made for it."""
    await second(tmp_path)
    async with running(tmp_path) as master:
        for claimed in ("app-20990101000000-2-0001", "app-20990101000000-3-0001"):
            with refused(UNKNOWN, "no such application"):
                await register(master, claimed)
            async with as_(master, token_of(master, claimed, "ada")) as own:
                with refused(UNKNOWN, "no such application"):
                    await register(own, claimed)
        assert not master.interpreter.core.master_state.applications


async def test_queues_and_limits_hold_for_what_comes_back(tmp_path: Path) -> None:
    await second(tmp_path)
    closed = QueueSpec(name=QueueName("root.vip"), submitters=("boss",))
    queues = QueueConfig(specs=(closed,))
    async with running(tmp_path, queues=queues, applications_per_user=2) as master:
        for number, (queue, expected) in enumerate(
            [("root.vip", DENIED), ("root.gone", None), ("", None), ("", "limit")], 1
        ):
            name = LOST.replace("0001", f"000{number}")
            fields = {"queue": queue, "submission_key": name}
            async with as_(master, token_of(master, name, "zoe")) as own:
                if expected is None:
                    await register(own, name, **fields)
                    continue
                code = DENIED if expected is DENIED else grpc.StatusCode.RESOURCE_EXHAUSTED
                with refused(code, "may not submit" if code is DENIED else "applications_per_user"):
                    await register(own, name, **fields)
        found = master.interpreter.core.master_state.applications.values()
        assert sorted(x.record.queue for x in found) == ["root.default", "root.recovered"]


async def test_a_users_application_is_back_after_the_state_is_gone(tmp_path: Path) -> None:
    async with running(tmp_path) as master:
        ada = (await made(master, AccessRole.SUBMITTER, name="ada")).token
        async with as_(master, ada) as of_ada:
            first = await register(of_ada)
    shutil.rmtree(tmp_path / "master")
    async with running(tmp_path) as master, as_(master, first.token) as own:
        ask = identity_pb2.ListTokensRequest()
        assert not (await identities(master).ListTokens(ask, timeout=TIMEOUT_S)).tokens
        followed = {"followed_epoch": first.epoch, "followed_epoch_id": first.epoch_id}
        with refused(grpc.StatusCode.UNAVAILABLE, "register again"):
            await register(own, first.application_id, **followed)
        session = own.applications.Session(timeout=TIMEOUT_S)
        hello = application_pb2.AttachApplication(
            application_id=first.application_id, epoch=1, ownership_key=KEY
        )
        await session.write(application_pb2.ApplicationUpdate(attach=hello))
        with refused(grpc.StatusCode.ABORTED, "register again"):
            await session.read()
        await until(lambda: master.interpreter.core.epoch == 2, 10, "the later epoch")
        again = await register(own, first.application_id, **followed)
        assert (again.application_id, again.epoch) == (first.application_id, 2)
        assert user_of(master, first.application_id) == "ada"
