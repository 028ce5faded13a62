"""Two clients with one cluster's token: what one must not do under the other's id."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from hrm import ownership_keys, rpc
from hrm.v1 import (
    admin_pb2,
    application_pb2,
    application_pb2_grpc,
    common_pb2,
    node_pb2,
    node_pb2_grpc,
    scheduler_pb2,
    scheduler_pb2_grpc,
    submission_pb2,
)
from tests.master.submitting import RUNNING, agent, lease, stub, submission
from tests.master.test_services import TIMEOUT_S, Running, node, refused, registration
from tests.master.test_services import running as master_here
from tests.scheduler.test_daemon import Cluster, until

KEY, OTHER = ownership_keys.new_key(), ownership_keys.new_key()
DENIED = grpc.StatusCode.PERMISSION_DENIED


async def attach(applications: Any, result: Any, key: str) -> Any:
    """A session."""
    session = applications.Session(timeout=TIMEOUT_S)
    hello = application_pb2.AttachApplication(
        application_id=result.application_id, epoch=result.epoch, ownership_key=key
    )
    await session.write(application_pb2.ApplicationUpdate(attach=hello))
    assert (await session.read()).WhichOneof("notice") == "attached"
    return session


def asking_for_too_much() -> application_pb2.ApplicationUpdate:
    message = application_pb2.ContainerRequest(
        executor_id="1", resources=common_pb2.Resources(vcores=99, memory_mib=512)
    )
    return application_pb2.ApplicationUpdate(
        request=application_pb2.RequestContainers(containers=[message])
    )


async def refused_to_attach(applications: Any, result: Any, key: str) -> None:
    session = applications.Session(timeout=TIMEOUT_S)
    hello = application_pb2.AttachApplication(
        application_id=result.application_id, epoch=result.epoch, ownership_key=key
    )
    with refused(DENIED, result.application_id):
        await session.write(application_pb2.ApplicationUpdate(attach=hello))
        await session.read()


async def test_an_application_and_its_node_on_a_real_master_stay_their_owners(
    tmp_path: Path,
) -> None:
    cluster = Cluster(tmp_path)
    try:
        await cluster.start_master()
        port = cluster.address.rpartition(":")[2]
        mine = cluster.applications
        ask = registration(ownership_key=KEY)
        result = await mine.Register(ask, timeout=TIMEOUT_S)
        session = await attach(mine, result, KEY)
        async with rpc.channel(cluster.address, rpc.read_token(tmp_path / "token")) as channel:
            theirs: Any = application_pb2_grpc.ApplicationServiceStub(channel)
            await _impostor_gets_nothing(theirs, result)
        agent_of = await _join(cluster, KEY)
        await session.write(asking_for_too_much())
        notice = await session.read()
        assert notice.WhichOneof("notice") == "refused", "its session is its own"

        # While it is disconnected, and on the next master, too.
        session.cancel()
        await _detached(cluster, result.application_id)
        await _impostor_gets_nothing(mine, result)
        agent_of.cancel()
        cluster.master.send_signal(signal.SIGKILL)
        cluster.master.wait()
        await cluster.channel.close(None)
        (tmp_path / "master" / "address").unlink()
        await cluster.start_master(port=port)
        mine = cluster.applications
        await _impostor_gets_nothing(mine, result, attaches=False)
        with refused(grpc.StatusCode.UNAVAILABLE, "waits for the agent"):
            await _join(cluster, OTHER)
        await _join(cluster, KEY)
        ask = registration(ownership_key=KEY, application_id=result.application_id)
        again = await mine.Register(ask, timeout=TIMEOUT_S)
        await refused_to_attach(mine, again, OTHER)
        await attach(mine, again, KEY)
        stored = (tmp_path / "master" / "hrm.sqlite").read_bytes()
        stored += (tmp_path / "master" / "hrm.sqlite-wal").read_bytes()
        assert ownership_keys.owner_of(KEY).encode() in stored
        assert KEY.encode() not in stored
        reported = b"".join(cluster.log(number).read_bytes() for number in range(2))
        reported += (tmp_path / "master" / "events.sqlite").read_bytes()
        assert (
            KEY.encode() not in reported and ownership_keys.owner_of(KEY).encode() not in reported
        )
    finally:
        await cluster.close()


async def _impostor_gets_nothing(applications: Any, result: Any, *, attaches: bool = True) -> None:
    for key in ("", OTHER):
        ask = registration(application_id=result.application_id, ownership_key=key)
        with refused(DENIED, result.application_id):
            await applications.Register(ask, timeout=TIMEOUT_S)
        if attaches:
            await refused_to_attach(applications, result, key)


async def _join(cluster: Cluster, key: str) -> Any:
    stream: Any = node_pb2_grpc.NodeServiceStub(cluster.channel).Connect()
    await stream.write(node(ownership_key=key))
    first = await stream.read()
    assert first.WhichOneof("message") == "registered"
    return stream


async def _detached(cluster: Cluster, application_id: str) -> None:
    async def away() -> bool:
        found = await cluster.show(application_id)
        return found.state == common_pb2.APPLICATION_STATE_DETACHED

    await until(away, "the session's end")


async def test_a_refused_session_misses_its_owner_nothing(tmp_path: Path) -> None:
    """Notices that arrive while an impostor is refused go to the owner."""
    async with master_here(tmp_path) as master:
        result = await master.applications.Register(registration(ownership_key=KEY))
        await attach(master.applications, result, KEY)
        mine = master.interpreter.application_outboxes[result.application_id]
        seen: list[bool] = []
        call = master.interpreter.call

        async def watched(make: Any) -> Any:
            done = asyncio.ensure_future(call(make))
            outboxes = master.interpreter.application_outboxes
            seen.append(outboxes[result.application_id] is mine)
            return await done

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(master.interpreter, "call", watched)
            await refused_to_attach(master.applications, result, OTHER)
        assert all(seen)
        assert master.interpreter.application_outboxes[result.application_id] is mine
        assert not mine.closed


async def test_keys_that_are_none_are_refused_and_not_repeated(tmp_path: Path) -> None:
    async with master_here(tmp_path) as master:
        for key in ("short", "x" * 31, "y" * 129, "z" * 40 + "\n"):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await master.applications.Register(registration(ownership_key=key))
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert key.strip() not in (caught.value.details() or "")


async def test_a_nodes_stream_is_not_taken_by_its_identity(tmp_path: Path) -> None:
    async with master_here(tmp_path) as master:
        stream = master.nodes.Connect()
        await stream.write(node(ownership_key=KEY))
        await stream.read()
        mine = dict(master.interpreter.node_outboxes)
        for key in ("", OTHER):
            impostor = master.nodes.Connect(timeout=TIMEOUT_S)
            with refused(DENIED, "n1"):
                await impostor.write(node(ownership_key=key))
                await impostor.read()
        assert master.interpreter.node_outboxes == mine


async def test_a_driver_that_is_not_the_submissions_own_gets_no_lease(tmp_path: Path) -> None:
    async with master_here(tmp_path) as master, agent(master) as one:
        request = submission(supervise=True)
        request.ownership_key = KEY
        submitted = await stub(master).Submit(request)
        submission_id = submitted.submission_id
        assert KEY not in str(submitted)
        spec = await one.assigned()
        assert f'"ownership_key": "{KEY}"' in spec.launch.driver, "its node is given it"
        await one.report_state(spec, RUNNING)
        for key in ("", OTHER):
            for gone in (False, True):
                with refused(DENIED, submission_id):
                    await stub(master).Lease(lease(submission_id, gone=gone, ownership_key=key))
        assert (await stub(master).Lease(lease(submission_id, ownership_key=KEY))).lease_s > 0
        as_driver = {"submission_id": submission_id, "submission_attempt": 1}
        with refused(DENIED, submission_id):
            await master.applications.Register(registration(**as_driver))
        await master.applications.Register(
            registration(**as_driver, submission_ownership_key=KEY), timeout=TIMEOUT_S
        )
        await _is_shown_nowhere(master, submission_id)


async def _is_shown_nowhere(master: Running, submission_id: str) -> None:
    request = submission_pb2.GetSubmissionRequest(submission_id=submission_id)
    shown = str(await stub(master).Get(request))
    shown += str(await master.admin.GetApplication(
        admin_pb2.GetApplicationRequest(application_id=submission_id)
    ))  # fmt: skip
    nodes = await master.admin.ListNodes(admin_pb2.ListNodesRequest())
    assert KEY not in shown + str(nodes)


async def test_a_schedulers_session_is_a_secret(tmp_path: Path) -> None:
    """Its number permits proposals as that scheduler, so it must not be guessable by counting."""
    async with master_here(tmp_path) as master:
        schedulers: Any = scheduler_pb2_grpc.SharedStateServiceStub(master.channel)
        numbers = []
        for name in ("east", "west"):
            call = schedulers.Subscribe(scheduler_pb2.SubscribeRequest(name=name))
            numbers.append((await call.read()).subscribed.session)
        first, second = numbers
        assert abs(first - second) > 1 << 20
        guess = scheduler_pb2.AcquireLeaseRequest(
            scheduler="west", session=first + 1, application_id="app-1"
        )
        with refused(grpc.StatusCode.NOT_FOUND, "no scheduler west is subscribed"):
            await schedulers.AcquireLease(guess, timeout=TIMEOUT_S)


async def test_nodes_of_a_store_of_schema_4_have_no_owner_yet(tmp_path: Path) -> None:
    (tmp_path / "master").mkdir()
    with sqlite3.connect(tmp_path / "master" / "hrm.sqlite") as old:
        old.execute("CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL)")
        old.execute("INSERT INTO meta VALUES ('schema', '4'), ('epoch', '1')")
        old.execute("CREATE TABLE nodes (name TEXT PRIMARY KEY) WITHOUT ROWID")
        old.execute("INSERT INTO nodes VALUES ('n1')")
    old.close()
    async with master_here(tmp_path) as master:
        stream = master.nodes.Connect()
        await stream.write(node(ownership_key=KEY))
        assert isinstance(await stream.read(), node_pb2.MasterMessage)
        assert master.interpreter.store.nodes() == {"n1": ownership_keys.owner_of(KEY)}
