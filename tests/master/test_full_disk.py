"""A full disk pauses the master: what needs no write continues, the rest is refused, none lost."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from hrm.core.messages import commands as c
from hrm.core.messages import events as e
from hrm.core.vocabulary.model import (
    ApplicationId,
    ApplicationState,
    ContainerState,
    NodeName,
    NodeState,
    WorkloadClass,
)
from hrm.errors import DiskFull
from hrm.master import write_queue
from hrm.master.store import Store
from hrm.v1 import admin_pb2
from tests.master.test_interpreter import NODE, TIMEOUT_S, Master
from tests.master.test_services import (
    Running,
    asking_for,
    attach,
    node,
    refused,
    registration,
    running,
)
from tests.master.test_store import _run_time

BATCH, STREAM = WorkloadClass.BATCH, WorkloadClass.STREAM


class Disk:
    """Behind a store: it can be made full, and counts the tries meanwhile."""

    def __init__(self, store: Store) -> None:
        self.is_full = False
        self.tries = 0
        self.batches: list[Any] = []
        commit = store._writes._commit

        def commit_or_not(batch: Any) -> None:
            if self.is_full:
                self.tries += 1
                self.batches.append(batch)
                error = sqlite3.OperationalError("database or disk is full")
                error.sqlite_errorcode = sqlite3.SQLITE_FULL
                raise error
            commit(batch)

        store._writes._commit = commit_or_not  # type: ignore[method-assign]


class OnDisk(Master):
    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.store = store
        self.disk = Disk(store)

    async def until(self, paused: bool) -> None:
        async with asyncio.timeout(TIMEOUT_S):
            while (self.interpreter.full is not None) is not paused:  # noqa: ASYNC110
                await asyncio.sleep(0.005)

    async def fill(self) -> None:
        """Fill the disk, and wait until the master has noticed."""
        self.disk.is_full = True
        with pytest.raises(DiskFull, match=r"the master is paused: the disk of .* is full \("):
            await self.application(BATCH)
        assert self.interpreter.full is not None

    async def free_disk(self) -> None:
        self.disk.is_full = False
        await self.until(paused=False)

    async def attach(self, app: ApplicationId, session: int) -> None:
        master = self.interpreter
        result = await master.call(
            lambda call_id: e.ApplicationAttached(
                now=master.now(), call_id=call_id, application_id=app, session=session,
                epoch=master.core.epoch,
            )
        )  # fmt: skip
        assert isinstance(result, c.ApplicationAdmitted)

    def end(self, app: ApplicationId) -> None:
        self.interpreter.submit(
            e.KillRequested(now=self.interpreter.now(), call_id=-1, application_id=app, reason="")
        )


@pytest.fixture
async def master(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[OnDisk]:
    monkeypatch.setattr(write_queue, "RETRY_S", 0.02)
    store = Store(tmp_path / "store.sqlite")
    made = OnDisk(store)
    await made.start()
    yield made
    made.disk.is_full = False
    assert not made.interpreter.stopped.done()
    store.close()


async def test_what_was_on_its_way_is_refused_and_kept(master: OnDisk) -> None:
    await master.fill()
    known = list(master.interpreter.core.master_state.applications)
    assert len(known) == 1
    assert master.store.applications() == []
    await master.free_disk()
    async with asyncio.timeout(TIMEOUT_S):
        while not master.store.applications():  # noqa: ASYNC110 - the file notifies nothing
            await asyncio.sleep(0.005)
    assert [x.application_id for x in master.store.applications()] == known
    assert await master.application(BATCH) not in known


async def test_new_work_is_refused_before_it_changes_anything(master: OnDisk) -> None:
    app = await master.application(BATCH)
    await master.fill()
    before = len(master.interpreter.core.master_state.applications)
    now = master.interpreter.now()
    for make in (
        lambda call_id: e.KillRequested(now=now, call_id=call_id, application_id=app, reason=""),
        lambda call_id: e.DrainRequested(now=now, call_id=call_id, nodes=(NODE,), undo=False),
    ):
        with pytest.raises(DiskFull, match="free some space there, and it resumes by itself"):
            await master.interpreter.call(make)
    for _ in range(3):
        with pytest.raises(DiskFull):
            await master.application(BATCH)
    with pytest.raises(DiskFull):
        await master.start(NodeName("n2"))
    assert len(master.interpreter.core.master_state.applications) == before
    assert NodeName("n2") not in master.interpreter.core.master_state.nodes
    assert master.interpreter.core.master_state.applications[app].life.state.value == "submitted"


async def test_what_needs_no_write_goes_on(master: OnDisk) -> None:
    stream, other = await master.application(STREAM), await master.application(BATCH)
    await master.fill()
    await asyncio.wait_for(master.start(), TIMEOUT_S)  # its stream broke, and it reconnects
    master.ask(stream, 2)
    assert master.reported() == [stream] * 2
    for session in (1, 2):  # an AppMaster's session breaks and is reopened
        await asyncio.wait_for(master.attach(other, session), TIMEOUT_S)
        event = e.ApplicationDetached(
            now=master.interpreter.now(), application_id=other, session=session
        )
        master.interpreter.submit(event)
    assert master.interpreter.full is not None


async def test_a_lost_node_comes_back_when_it_can_be_written(master: OnDisk) -> None:
    """In service before, it would be granted containers that it does not learn of."""
    interpreter = master.interpreter
    node = interpreter.core.master_state.nodes[NODE]
    await master.fill()
    now = interpreter.now()
    master_state, timeout_s = interpreter.core.master_state, 10.0
    master_state.bounds = replace(master_state.bounds, node_timeout_s=timeout_s)
    for passed in range(int(4 * timeout_s)):
        interpreter.submit(e.Ticked(now=now + 0.5 * passed))
    lost: NodeState = node.state
    assert lost is NodeState.LOST
    beat = e.NodeReported(
        now=now + 2 * timeout_s, node=NODE, incarnation=node.incarnation,
        sequence=node.sequence + 1, containers=(),
    )  # fmt: skip
    held = len(interpreter.gate.held)
    interpreter.submit(beat)
    assert (node.state, len(interpreter.gate.held)) == (NodeState.LOST, held)
    await master.free_disk()
    interpreter.submit(replace(beat, now=now + 2 * timeout_s + 1.0))
    assert node.state is NodeState.ALIVE


async def test_containers_of_an_application_end_before_its_end_is_written(master: OnDisk) -> None:
    stream, other = await master.application(STREAM), await master.application(STREAM)
    master.ask(stream, 2)
    await master.fill()
    await asyncio.wait_for(master.outbox.take(), TIMEOUT_S)
    master.end(stream)
    stops = [x for x in master.outbox._messages if isinstance(x, c.StopContainer)]
    assert len(stops) == 2
    master.ask(other)
    assert master.reported() == [other], "and its node is not held up"


async def _undrained_on_a_full_disk(master: Running, disk: Disk) -> Any:
    """The admission of an application whose AppMaster is away, and whose container is granted on
    the end of a drain that is not on the disk: what is sent to the application waits."""
    admitted = await master.applications.Register(registration(), timeout=TIMEOUT_S)
    app = master.interpreter.core.master_state.applications[admitted.application_id]
    drain = admin_pb2.DrainNodesRequest(names=["n1"])
    await master.admin.DrainNodes(drain, timeout=TIMEOUT_S)
    session = await attach(master, admitted)
    await session.read()
    await session.write(asking_for(1))
    async with asyncio.timeout(TIMEOUT_S):
        while not app.containers:  # noqa: ASYNC110 - the core notifies nothing
            await asyncio.sleep(0.005)
        session.cancel()
        while app.session is not None:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        disk.is_full = True
        with refused(grpc.StatusCode.UNAVAILABLE, "the master is paused"):
            drain.undo = True
            await master.admin.DrainNodes(drain, timeout=TIMEOUT_S)
        while not app.in_state(ContainerState.ASSIGNED):  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    return admitted


async def test_an_application_whose_session_got_no_reply_is_detached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its AppMaster may never come back: then its grace period has to end."""
    monkeypatch.setattr(write_queue, "RETRY_S", 0.02)
    async with running(tmp_path) as master:
        stream = master.nodes.Connect(timeout=TIMEOUT_S)
        await stream.write(node())
        await stream.read()
        disk = Disk(master.interpreter.store)
        admitted = await _undrained_on_a_full_disk(master, disk)
        app = master.interpreter.core.master_state.applications[admitted.application_id]
        session = await attach(master, admitted)
        with refused(grpc.StatusCode.UNAVAILABLE, "the master is paused"):
            await session.read()
        assert (app.session, app.life.state) == (None, ApplicationState.DETACHED)
        assert app.away_since_s is not None
        assert app.application_id not in master.interpreter.application_outboxes

        disk.is_full = False
        async with asyncio.timeout(TIMEOUT_S):
            while master.interpreter.full is not None:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        session = await attach(master, admitted)
        assert (await session.read()).WhichOneof("notice") == "attached"
        session.cancel()
        stream.cancel()


async def test_a_pause_holds_one_write_a_row(master: OnDisk) -> None:
    app = await master.application(BATCH)
    await master.fill()
    record = master.interpreter.core.master_state.applications[app].record
    for number in range(1_000):
        master.store.put_run_time(_run_time("etl", float(number)))
        master.store.put_application(record)
        master.store.put_node(NODE) if number % 2 else master.store.forget_node(NODE)
    pending = master.store._writes._pending
    assert len(pending) <= 5
    assert max(len(row.writes) for row in pending.values()) <= 2
    tries = master.disk.tries
    async with asyncio.timeout(TIMEOUT_S):
        while master.disk.tries < tries + 2:  # noqa: ASYNC110 - until they are one batch again
            await asyncio.sleep(0.005)
    assert max(len(row.done) for row in master.store._writes._pending.values()) <= 3
    await master.free_disk()
    await master.store.put_node(NODE)
    assert [row.mean_s for row in master.store.run_times()] == [999.0]
    assert master.store.nodes() == {NODE: ""}


async def test_another_failure_of_the_disk_ends_the_master(tmp_path: Path) -> None:
    store = Store(tmp_path / "store.sqlite")
    master = Master(store)
    await master.start()
    with sqlite3.connect(tmp_path / "store.sqlite") as db:
        db.execute("DROP TABLE applications")
    asking = asyncio.create_task(master.application(BATCH))
    error = await asyncio.wait_for(master.interpreter.stopped, TIMEOUT_S)
    assert error is not None
    assert "hrm master --repair" in error.message
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    store.close()


async def test_a_store_that_closes_on_a_full_disk_gives_up_in_time(tmp_path: Path) -> None:
    store = Store(tmp_path / "store.sqlite")
    disk = Disk(store)
    disk.is_full = True
    write = store.put_node(NODE)
    await asyncio.wait_for(asyncio.to_thread(store.close), TIMEOUT_S)
    with pytest.raises(DiskFull):
        await write
