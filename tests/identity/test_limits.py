"""Limits per identity: an identity that calls too much waits or is refused, and no other."""

from __future__ import annotations

import asyncio
import gc
import time
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from hrm import identity_limits, rpc, rpc_server
from hrm.config import MasterSettings
from hrm.identity.access import REGISTRATIONS
from hrm.identity.registry import TokenRegistry
from hrm.identity.roles import CLUSTER, AccessRole, Identity, IdentityKind
from hrm.identity_limits import (
    IDLE_MAX,
    LOG_STREAMS,
    NOTED_EACH_S,
    PATIENCE_S,
    IdentityLimits,
    OverLimit,
)
from hrm.rate_credit import BURST_S
from hrm.v1 import (
    admin_pb2,
    admin_pb2_grpc,
    application_pb2,
    application_pb2_grpc,
    common_pb2,
    events_pb2,
    events_pb2_grpc,
)
from hrm.v1 import identity_pb2 as pb
from tests.identity.calls import as_, identities, made, raw_reply
from tests.master.test_services import TIMEOUT_S, Running, refused, registration, running
from tests.spark.fake_master import until

EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED
ASK = admin_pb2.GetClusterRequest()
READ = "/hrm.v1.AdminService/GetCluster"
REGISTER = "/hrm.v1.ApplicationService/Register"


class Clock:
    now = 1_000.0

    def __call__(self) -> float:
        return self.now


def limits(clock: Any = None, **given: Any) -> IdentityLimits:
    values = {
        "requests_per_s": 1.0, "streams": 2, "calls": 1_000, "registrations_per_s": 1.0,
        "messages_per_s": 10.0, "log_streams": 1, "message_bytes": 1 << 20, **given,
    }  # fmt: skip
    return IdentityLimits(now=clock or Clock(), **values)


def person(name: str, token_id: str = "t1") -> Identity:
    return Identity(name=name, kind=IdentityKind.USER, role=AccessRole.SUBMITTER, token_id=token_id)


def application(number: int, user: str = "ada") -> Identity:
    return Identity(
        name=user, kind=IdentityKind.APPLICATION, role=AccessRole.APPLICATION, scope=f"app-{number}"
    )


def call(bounded: IdentityLimits, identity: Identity, method: str = READ) -> float:
    """The seconds that a call, which is over at once, has to wait."""
    share = bounded.share(identity, method, is_stream=False)
    with share as wait_s:
        share.check()
        return wait_s


def calls_until_refused(bounded: IdentityLimits, identity: Identity, method: str = READ) -> int:
    for number in range(10_000):
        try:
            call(bounded, identity, method)
        except OverLimit:
            return number
    return 10_000


# --- by a virtual clock ---------------------------------------------------------------------------


def test_calls_beyond_the_rate_wait_and_then_are_refused() -> None:
    clock = Clock()
    bounded = limits(clock)
    waits = [call(bounded, person("ada")) for _ in range(11)]
    assert waits == [0.0] * 10 + [1.0], "the one that is due within the second waits for it"
    with pytest.raises(OverLimit, match=r"user ada .* \(requests_per_s_per_identity\)"):
        call(bounded, person("ada"))
    assert call(bounded, person("bob")) == 0.0
    clock.now += 2.0
    assert call(bounded, person("ada")) == 0.0
    assert bounded.refused == 1


def test_who_makes_one_call_after_the_other_is_never_refused() -> None:
    clock = Clock()
    bounded = limits(clock)
    began = clock.now
    for _ in range(100):
        clock.now += call(bounded, person("ada"))
    assert clock.now - began == pytest.approx(100 - BURST_S)
    assert bounded.refused == 0


def test_more_tokens_or_another_kind_of_name_give_no_more_calls() -> None:
    bounded = limits()
    counted = [calls_until_refused(bounded, person("ada", f"t{x}")) for x in range(3)]
    assert counted == [11, 0, 0]
    service = Identity(name="ada", kind=IdentityKind.SERVICE, role=AccessRole.OPERATOR)
    assert calls_until_refused(bounded, service) == 0, "services share the names of users"
    node = Identity(name="ada", kind=IdentityKind.NODE, role=AccessRole.AGENT)
    assert calls_until_refused(bounded, node) == 11


def test_applications_count_for_themselves_but_register_for_their_user() -> None:
    bounded = limits()
    assert calls_until_refused(bounded, person("ada")) == 11
    assert [calls_until_refused(bounded, application(x)) for x in (1, 2)] == [11, 11]
    for method in sorted(REGISTRATIONS):
        bounded = limits(requests_per_s=1e6)
        counts = [calls_until_refused(bounded, application(x), method) for x in range(1_000)]
        assert sum(counts) == 11, "a thousand applications register no more often than one"
        assert calls_until_refused(bounded, person("ada"), method) == 0
        with pytest.raises(OverLimit, match=r"\(registrations_per_s_per_user\)"):
            call(bounded, application(7), method)
        assert calls_until_refused(bounded, application(1, "bob"), method) == 11


def test_open_streams_and_calls_and_logs_are_counted_by_identity() -> None:
    bounded = limits(requests_per_s=1e6, streams=2, calls=1)
    with ExitStack() as held:

        def hold(name: str, method: str = READ, *, is_stream: bool) -> None:
            held.enter_context(bounded.share(person(name), method, is_stream=is_stream))

        hold("ada", LOG_STREAMS, is_stream=True)
        with pytest.raises(OverLimit, match=r"1 logs open already \(log_streams_per_identity\)"):
            hold("ada", LOG_STREAMS, is_stream=True)
        hold("ada", is_stream=True)
        with pytest.raises(OverLimit, match=r"2 streams open already \(streams_per_identity\)"):
            hold("ada", is_stream=True)
        hold("ada", is_stream=False)
        with pytest.raises(OverLimit, match=r"1 calls under way already \(calls_per_identity\)"):
            hold("ada", is_stream=False)
        hold("bob", LOG_STREAMS, is_stream=True)
        hold("bob", is_stream=False)
    call(bounded, person("ada"))
    assert all(not known.has_open for known in bounded._known.values())


def test_a_refused_call_holds_nothing() -> None:
    bounded = limits()
    assert calls_until_refused(bounded, person("ada")) == 11
    for _ in range(100):
        with pytest.raises(OverLimit):
            call(bounded, person("ada"))
    assert [x.calls for x in bounded._known.values()] == [0]


def test_what_is_refused_for_its_rate_waits_for_that_as_a_call_under_way() -> None:
    bounded = limits(calls=20)
    assert calls_until_refused(bounded, person("ada")) == 11
    with ExitStack() as held:
        for _ in range(20):
            share = bounded.share(person("ada"), READ, is_stream=True)
            assert held.enter_context(share) == PATIENCE_S
            with pytest.raises(OverLimit, match="requests_per_s_per_identity"):
                share.check()
        with pytest.raises(OverLimit, match="requests_per_s_per_identity"):
            held.enter_context(bounded.share(person("ada"), READ, is_stream=True))
    assert [(x.calls, x.streams) for x in bounded._known.values()] == [(0, 0)]


def test_the_clusters_token_is_not_bound() -> None:
    bounded = limits()
    with ExitStack() as held:
        for _ in range(20_000):
            share = bounded.share(CLUSTER, REGISTER, is_stream=True)
            assert held.enter_context(share) == 0.0
            share.check_bytes(60 << 20, 64 << 20)
            assert share.message_wait_s() == 0.0
    assert bounded._known == {}


def test_messages_of_streams_wait_as_long_as_it_takes() -> None:
    clock = Clock()
    bounded = limits(clock)
    share = bounded.share(application(1), READ, is_stream=True)
    with share:
        waits = [share.message_wait_s() for _ in range(150)]
    assert waits[:100] == [0.0] * 100
    assert waits[100:] == pytest.approx([x / 10 for x in range(1, 51)])
    admin = Identity(name="root", kind=IdentityKind.USER, role=AccessRole.ADMIN)
    share = bounded.share(admin, READ, is_stream=True)
    with share:
        assert {share.message_wait_s() for _ in range(1_000)} == {0.0}, "many nodes may share it"


@pytest.mark.parametrize("advance_s", [0.0, 0.01])
def test_a_hundred_thousand_identities_take_bounded_memory(advance_s: float) -> None:
    clock = Clock()
    bounded = limits(clock)
    spent = person("ada")
    with bounded.share(application(0), READ, is_stream=True):
        for number in range(1, 100_001):
            clock.now += advance_s
            call(bounded, application(number))
            if number == 99_000 and advance_s:
                assert calls_until_refused(bounded, spent) == 11
        assert len(bounded._known) <= IDLE_MAX
        assert "application app-0" in bounded._known
    if advance_s:
        clock.now -= 1_000 * advance_s
        assert calls_until_refused(bounded, spent) == 0, "it is forgotten once it has its credit"


def test_one_refusal_of_an_identity_and_minute_is_noted() -> None:
    clock = Clock()
    bounded = limits(clock)

    def flood(name: str, calls: int) -> list[str]:
        noted = []
        for _ in range(calls):
            try:
                call(bounded, person(name))
            except OverLimit as error:
                noted += [error.message] * error.is_noted
        return noted

    assert [len(flood(x, 100)) for x in ("ada", "bob", "ada")] == [1, 1, 0]
    clock.now += NOTED_EACH_S + 1.0
    (line,) = flood("ada", 1_000)
    before = 100 - 11 - 1 + 100
    assert f"; {before} more calls were refused since the last such line" in line
    assert bounded.refused == 2 * (100 - 11) + 100 + (1_000 - 11)


def test_the_defaults_let_all_applications_of_one_user_come_back_at_once() -> None:
    """After a restart of the master, with the user's token and with their own."""
    settings = MasterSettings()
    applications = settings.applications_per_user
    assert BURST_S * settings.registrations_per_s_per_user >= applications
    assert BURST_S * settings.requests_per_s_per_identity >= applications
    assert settings.streams_per_identity >= 2 * applications, "of as many hrm submit that wait"
    assert settings.message_mib_per_identity > settings.pipeline_payload_mib


# --- on a real master -----------------------------------------------------------------------------


async def audited(master: Running, name: str) -> list[str]:
    ask = pb.ReadAuditRequest(name=name)
    found = await identities(master).ReadAudit(ask, timeout=TIMEOUT_S)
    return [x.result for x in found.entries]


async def test_a_flood_is_refused_and_another_behind_the_same_address_is_served(
    tmp_path: Path,
) -> None:
    limit = {"requests_per_s_per_identity": 10.0}
    async with running(tmp_path, **limit) as master, AsyncExitStack() as stack:
        ada, bob = [(await made(master, AccessRole.VIEWER, name=x)).token for x in ("ada", "bob")]
        channels = [
            await stack.enter_async_context(rpc.channel(master.address, ada)) for _ in range(4)
        ]
        outcomes: list[str] = []

        async def flood(channel: grpc.aio.Channel) -> None:
            stub: Any = admin_pb2_grpc.AdminServiceStub(channel)
            for _ in range(5):
                try:
                    await stub.GetCluster(ASK, timeout=TIMEOUT_S)
                    outcomes.append("served")
                except grpc.aio.AioRpcError as error:
                    assert error.code() is EXHAUSTED, error
                    outcomes.append(error.details() or "")

        flooding = asyncio.gather(*(flood(x) for x in channels for _ in range(25)))
        waits_s: list[float] = []
        async with as_(master, bob) as other:
            while not flooding.done() and len(waits_s) < 100:
                began_s = time.monotonic()
                await other.admin.GetCluster(ASK, timeout=TIMEOUT_S)
                waits_s.append(time.monotonic() - began_s)
        await flooding
        assert len(outcomes) == 500
        refusals = [x for x in outcomes if x != "served"]
        assert len(refusals) > 250
        assert all("(requests_per_s_per_identity)" in x for x in refusals)
        assert len(waits_s) > 3
        assert max(waits_s) < 2.0
        noted = await audited(master, "ada")
        assert len(noted) <= 1 + int(TIMEOUT_S / NOTED_EACH_S), noted
        assert noted[0].startswith("RESOURCE_EXHAUSTED: user ada has more than 10 calls a second")
        cluster = await master.admin.GetCluster(ASK, timeout=TIMEOUT_S)
        assert cluster.calls_refused == len(refusals)
        assert await audited(master, "bob") == []


async def test_the_clusters_token_may_flood_a_master_whose_limits_are_low(tmp_path: Path) -> None:
    few = {"requests_per_s_per_identity": 0.1, "registrations_per_s_per_user": 0.1}
    async with running(tmp_path, **few) as master:
        await asyncio.gather(*(master.admin.GetCluster(ASK, timeout=TIMEOUT_S) for _ in range(50)))
        for number in range(5):
            ask = registration(submission_key=f"key-{number}")
            await master.applications.Register(ask, timeout=TIMEOUT_S)
        assert (await master.admin.GetCluster(ASK, timeout=TIMEOUT_S)).calls_refused == 0


async def test_open_streams_of_one_identity_are_bounded(tmp_path: Path) -> None:
    few = {"streams_per_identity": 2, "event_followers_per_identity": 1}
    async with running(tmp_path, **few) as master, AsyncExitStack() as stack:
        ada, bob = [(await made(master, AccessRole.VIEWER, name=x)).token for x in ("ada", "bob")]
        ask = events_pb2.WatchEventsRequest(follow=True)

        async def follow(token: str) -> Any:
            of = await stack.enter_async_context(as_(master, token))
            call: Any = events_pb2_grpc.EventServiceStub(of.channel).WatchEvents(ask)
            await call.read()
            return call

        first = await follow(ada)
        with refused(EXHAUSTED, "of user ada follow already (event_followers_per_identity)"):
            await follow(ada)
        health: Any = await stack.enter_async_context(as_(master, ada))
        watch = health.channel.unary_stream("/grpc.health.v1.Health/Watch")
        second = watch(b"")
        await second.read()
        with refused(EXHAUSTED, "user ada has 2 streams open already (streams_per_identity)"):
            await watch(b"").read()
        await follow(bob)
        first.cancel()
        second.cancel()

        async with asyncio.timeout(TIMEOUT_S):
            while True:  # until the master has noticed that both have ended
                try:
                    await follow(ada)
                    break
                except grpc.aio.AioRpcError as error:
                    assert error.code() is EXHAUSTED


async def test_a_stream_that_floods_messages_is_read_no_faster_than_it_may(tmp_path: Path) -> None:
    few = {"messages_per_s_per_identity": 100.0}
    async with running(tmp_path, **few) as master, AsyncExitStack() as stack:
        ada = await stack.enter_async_context(
            as_(master, (await made(master, AccessRole.SUBMITTER)).token)
        )
        known = await ada.applications.Register(registration(user=""), timeout=TIMEOUT_S)
        own = await stack.enter_async_context(as_(master, known.token))
        session = own.applications.Session(timeout=TIMEOUT_S)
        attach = application_pb2.AttachApplication(
            application_id=known.application_id, epoch=known.epoch
        )
        await session.write(application_pb2.ApplicationUpdate(attach=attach))
        assert (await session.read()).WhichOneof("notice") == "attached"
        beat = application_pb2.ApplicationUpdate(heartbeat=application_pb2.ApplicationHeartbeat())
        began_s = time.monotonic()
        for _ in range(int(100 * BURST_S) + 50):
            await session.write(beat)
        end = application_pb2.ApplicationFinished(state=common_pb2.APPLICATION_STATE_SUCCEEDED)
        await session.write(application_pb2.ApplicationUpdate(finished=end))
        await session.done_writing()
        assert await session.code() is grpc.StatusCode.OK, "once it has read all of them"
        assert time.monotonic() - began_s > 0.45, "of these 50 beyond the credit, each waited"


async def test_how_large_a_message_may_be_depends_on_the_role(tmp_path: Path) -> None:
    few = {"message_mib_per_identity": 1, "pipeline_payload_mib": 1}
    async with running(tmp_path, **few) as master:
        sent = {
            AccessRole.VIEWER: ("AdminService/ListNodes", 20 << 10, "viewer at most 16384"),
            AccessRole.SUBMITTER: ("PipelineService/Submit", 6 << 20, "submitter at most 5242880"),
            AccessRole.OPERATOR: ("PipelineService/Submit", 6 << 20, "operator at most 5242880"),
        }
        for role, (method, size, expected) in sent.items():
            token = (await made(master, role, name=f"a-{role.value}")).token
            for bytes_sent in (size, size // 2):
                code, details = await raw_reply(
                    master.address, f"/hrm.v1.{method}", token, [b"\xff" * bytes_sent]
                )
                is_over = bytes_sent == size
                assert (code is EXHAUSTED) is is_over, details
                assert (expected in details) is is_over, details
        node = (await made(master, AccessRole.AGENT, name="n1")).token
        for token in (node, master.token):
            code, details = await raw_reply(
                master.address, "/hrm.v1.NodeService/Connect", token, [b"\xff" * (6 << 20)]
            )
            assert code is grpc.StatusCode.INVALID_ARGUMENT, details
            assert "malformed" in details


class Accepting(application_pb2_grpc.ApplicationServiceServicer):
    async def Register(self, request: Any, context: Any) -> Any:  # noqa: N802
        return application_pb2.RegisterApplicationResponse()


@pytest.mark.parametrize("end", ["role", "rate", "cancelled", "calls", "size"])
async def test_refused_calls_leave_no_stream_open(
    end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is over at once, not only when Python collects garbage."""
    monkeypatch.setattr(identity_limits, "PATIENCE_S", 600.0 if end == "cancelled" else 0.01)
    registry = TokenRegistry("the-cluster's-token")
    role = AccessRole.VIEWER if end == "role" else AccessRole.SUBMITTER
    record, token = registry.draft(
        name="ada", kind=IdentityKind.USER, role=role, lifetime_s=0.0, by=CLUSTER
    )
    registry.put(record)
    few: dict[str, dict[str, Any]] = {
        "rate": {"requests_per_s": 1e-6}, "calls": {"calls": 0}, "size": {"message_bytes": 1},
        "cancelled": {"requests_per_s": 1e-6},
    }  # fmt: skip
    bounded = limits(
        time.monotonic, **{"requests_per_s": 1e6, "registrations_per_s": 1e6, **few.get(end, {})}
    )
    server = rpc_server.server(registry, streams_max=4, connections_max=16, own_limits=bounded)
    application_pb2_grpc.add_ApplicationServiceServicer_to_server(Accepting(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    expected = {"role": grpc.StatusCode.PERMISSION_DENIED, "cancelled": grpc.StatusCode.CANCELLED}
    gc.collect()
    gc.disable()
    try:
        async with rpc.channel(f"127.0.0.1:{port}", token) as channel:
            method: Any = channel.unary_unary("/hrm.v1.ApplicationService/Register")  # type: ignore[call-arg]
            if end in ("rate", "cancelled"):
                await method(b"")  # with it the credit is gone
            for number in range(40):
                call = method(b"\x0a\x01a")
                async with asyncio.timeout(TIMEOUT_S):
                    if end == "cancelled":
                        await until(lambda n=number: bounded.refused > n)  # type: ignore[misc]
                        call.cancel()
                    assert await call.code() is expected.get(end, EXHAUSTED)
    finally:
        gc.enable()
        await server.stop(None)
    assert not any(known.has_open for known in bounded._known.values())
