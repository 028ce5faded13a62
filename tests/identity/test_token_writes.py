"""Changes of tokens while the disk is slow, or fails: what was acknowledged is there afterwards."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from hrm.identity import registry
from hrm.identity.roles import CLUSTER, AccessRole, IdentityKind
from hrm.identity.tokens import TokenRecord
from hrm.master.store import Store
from hrm.master.token_writes import TokenWrites
from hrm.master.write_queue import WriteQueue
from hrm.v1 import identity_pb2, queues_pb2
from tests.identity.calls import as_, identities, made
from tests.master.test_services import TIMEOUT_S, Running, refused, running
from tests.spark.fake_master import until


class SlowDisk:
    """Commits wait while it is ``held``; ``begun`` counts them, ``error`` fails them."""

    def __init__(self) -> None:
        self.held = threading.Event()
        self.held.set()
        self.begun = 0
        self.error: Exception | None = None

    def hold(self) -> None:
        self.held.clear()

    def go_on(self) -> None:
        self.held.set()


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowDisk]:
    subject, commit = SlowDisk(), WriteQueue._commit

    def slow(self: WriteQueue, batch: Any) -> None:
        subject.begun += 1
        subject.held.wait(TIMEOUT_S)
        if subject.error is not None:
            raise subject.error
        commit(self, batch)

    monkeypatch.setattr(WriteQueue, "_commit", slow)
    yield subject
    subject.go_on()


def revoke(master: Running, token_id: str) -> asyncio.Task[Any]:
    ask = identity_pb2.RevokeTokenRequest(token_id=token_id)
    return asyncio.ensure_future(_result(identities(master).RevokeToken(ask, timeout=TIMEOUT_S)))


async def _result(call: Any) -> Any:
    return await call


def on_disk(directory: Path) -> dict[str, TokenRecord]:
    store = Store(directory / "master" / "hrm.sqlite")
    try:
        return {record.name: record for record in store.tokens()}
    finally:
        store.close()


async def tokens(master: Running, name: str) -> list[Any]:
    ask = identity_pb2.ListTokensRequest(name=name)
    return list((await identities(master).ListTokens(ask, timeout=TIMEOUT_S)).tokens)


async def test_a_node_that_is_revoked_while_it_enrols_stays_so(
    tmp_path: Path, disk: SlowDisk
) -> None:
    async with running(tmp_path) as master:
        join = (await made(master, AccessRole.JOINING, name="")).token
        disk.hold()
        before = disk.begun
        async with as_(master, join) as joining:
            ask = identity_pb2.EnrolNodeRequest(node="n1")
            enrolling = asyncio.ensure_future(
                _result(identities(joining).EnrolNode(ask, timeout=TIMEOUT_S))
            )
            await until(lambda: disk.begun > before, 10, "the first write has begun")
            (token,) = await tokens(master, "n1")
            revoking = revoke(master, token.token_id)
            await asyncio.sleep(0.2)
            disk.go_on()
            assert (await revoking).state == "revoked"
            await enrolling
    assert on_disk(tmp_path)["n1"].revoked_at_s


async def test_a_second_revocation_is_not_acknowledged_before_the_first_is_on_the_disk(
    tmp_path: Path, disk: SlowDisk
) -> None:
    async with running(tmp_path) as master:
        token_id = (await made(master, AccessRole.VIEWER, name="eve")).info.token_id
        disk.hold()
        first, second = revoke(master, token_id), revoke(master, token_id)
        done, _ = await asyncio.wait([first, second], timeout=0.5)
        assert not done
        first.cancel()
        await asyncio.sleep(0.2)
        disk.go_on()
        assert (await second).state == "revoked"
    assert on_disk(tmp_path)["eve"].revoked_at_s


async def test_what_could_not_be_written_is_written_by_the_next_try(
    tmp_path: Path, disk: SlowDisk
) -> None:
    async with running(tmp_path) as master:
        token_id = (await made(master, AccessRole.VIEWER, name="eve")).info.token_id
        on_error = master.interpreter.store._writes.on_disk
        master.interpreter.store._writes.on_disk = lambda _: None
        disk.error = OSError("no such luck")
        with refused(grpc.StatusCode.INVALID_ARGUMENT, "no such luck"):
            await revoke(master, token_id)
        disk.error = None
        master.interpreter.store._writes.on_disk = on_error
        assert (await revoke(master, token_id)).state == "revoked"
    assert on_disk(tmp_path)["eve"].revoked_at_s


async def test_an_enrolment_is_in_one_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A master that is killed between two would have used the join token for nothing."""
    commits: list[set[str]] = []
    commit, put = WriteQueue._commit, WriteQueue._queued

    def noted(self: WriteQueue, batch: Any) -> None:
        commits.append({key[0] for table, key in batch if table == "tokens"})
        commit(self, batch)

    def slowly(self: WriteQueue, *arguments: Any) -> Any:
        write = put(self, *arguments)
        time.sleep(0.05)  # the thread takes what it may
        return write

    monkeypatch.setattr(WriteQueue, "_commit", noted)
    monkeypatch.setattr(WriteQueue, "_queued", slowly)
    async with running(tmp_path) as master:
        join = await made(master, AccessRole.JOINING, name="")
        async with as_(master, join.token) as joining:
            ask = identity_pb2.EnrolNodeRequest(node="n1")
            own = await identities(joining).EnrolNode(ask, timeout=TIMEOUT_S)
    assert {join.info.token_id, own.info.token_id} in commits


async def test_where_there_are_too_many_those_that_ended_first_make_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as master:
        ids = {}
        for name in ("a", "b", "c"):
            ids[name] = (await made(master, AccessRole.VIEWER, name=name)).info.token_id
        join = (await made(master, AccessRole.JOINING, name="")).token
        monkeypatch.setattr(registry, "TOKENS_MAX", 4)
        with refused(grpc.StatusCode.RESOURCE_EXHAUSTED, "there are 4 tokens"):
            await made(master, AccessRole.VIEWER, name="d")
        for name in ("b", "a"):
            await revoke(master, ids[name])
        await made(master, AccessRole.VIEWER, name="d")
        assert set(await names(master)) == {"a", "c", "", "d"}
        async with as_(master, join) as joining:
            ask = identity_pb2.EnrolNodeRequest(node="n1")
            await identities(joining).EnrolNode(ask, timeout=TIMEOUT_S)
        assert set(await names(master)) == {"c", "", "d", "n1"}
    assert set(on_disk(tmp_path)) == {"c", "", "d", "n1"}


async def names(master: Running) -> list[str]:
    ask = identity_pb2.ListTokensRequest(include_ended=True)
    found = await identities(master).ListTokens(ask, timeout=TIMEOUT_S)
    return [x.name for x in found.tokens]


async def test_what_changes_nothing_is_neither_written_nor_a_change(
    tmp_path: Path, disk: SlowDisk
) -> None:
    async with running(tmp_path) as master:
        token = await made(master, AccessRole.VIEWER, name="eve")
        token_id = (await made(master, AccessRole.VIEWER, name="eve")).info.token_id
        async with as_(master, token.token) as eve:
            await revoke(eve, token_id)
            before = disk.begun
            for _ in range(5):
                assert (await revoke(eve, token_id)).state == "revoked"
            assert disk.begun == before
            with refused(grpc.StatusCode.NOT_FOUND, "no such token"):
                await revoke(eve, "0" * 10)
        trial = queues_pb2.ChangeQueuesRequest(
            create=True, dry_run=True, queues=[queues_pb2.QueueStated(name="root.q")]
        )
        await master.queues.ChangeQueues(trial, timeout=TIMEOUT_S)
        trial.dry_run = False
        await master.queues.ChangeQueues(trial, timeout=TIMEOUT_S)
        found = await identities(master).ReadAudit(
            identity_pb2.ReadAuditRequest(), timeout=TIMEOUT_S
        )
        entries = [(x.method.partition("/")[2], x.result.partition(":")[0]) for x in found.entries]
        assert entries == [
            ("CreateToken", "ok"), ("CreateToken", "ok"), ("RevokeToken", "ok"),
            ("RevokeToken", "NOT_FOUND"), ("ChangeQueues", "ok"),
        ]  # fmt: skip


async def test_a_write_that_ends_just_as_its_turn_comes_is_seen() -> None:
    """The future of the second is done, and its callbacks have not run yet."""
    loop = asyncio.get_running_loop()
    tokens = registry.TokenRegistry("c" * 40)
    record, _ = tokens.draft(
        name="eve", kind=IdentityKind.USER, role=AccessRole.VIEWER, lifetime_s=0.0, by=CLUSTER
    )
    futures: list[asyncio.Future[None]] = []

    class Puts:
        def put_tokens(self, _records: Any) -> asyncio.Future[None]:
            futures.append(loop.create_future())
            return futures[-1]

    store: Any = Puts()
    writes = TokenWrites(tokens, store)
    first, second = (asyncio.create_task(writes.keep(record)) for _ in range(2))
    await asyncio.sleep(0)
    loop.call_soon(lambda: loop.call_soon(futures[1].set_result, None))
    futures[0].set_result(None)
    await asyncio.gather(first, second)
    await writes.written(record.token_id)
    assert len(futures) == 2
