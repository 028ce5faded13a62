"""Two users, an operator and a viewer of one cluster: what each may do with whose applications."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from hrm import ownership_keys
from hrm.identity.registry import TokenRegistry
from hrm.identity.roles import AccessRole
from hrm.v1 import (
    admin_pb2,
    application_pb2,
    common_pb2,
    events_pb2,
    events_pb2_grpc,
    identity_pb2,
    pipeline_pb2,
    pipeline_pb2_grpc,
    scheduler_pb2,
    scheduler_pb2_grpc,
)
from hrm.v1 import submission_pb2 as pb
from hrm.wire import pipelines as pw
from tests.core.pipeline.building import pipeline, subtask
from tests.identity.calls import as_, identities, made
from tests.master.submitting import ENDED, RUNNING, agent, lease, state_of, stub, submission
from tests.master.test_services import TIMEOUT_S, Running, node, refused, registration, running

DENIED = grpc.StatusCode.PERMISSION_DENIED
UNKNOWN = grpc.StatusCode.NOT_FOUND


class People:
    """A master, and its channel for each caller."""

    def __init__(self, master: Running, stack: AsyncExitStack) -> None:
        self.master = master
        self._stack = stack

    async def with_token(self, token: str) -> Running:
        return await self._stack.enter_async_context(as_(self.master, token))

    async def one(self, name: str, role: AccessRole) -> Running:
        return await self.with_token((await made(self.master, role, name=name)).token)

    async def driver(self, submission_id: str) -> Running:
        """Its driver, with the token that its node gives it."""
        tokens = TokenRegistry(self.master.token).applications
        found = await stub(self.master).Get(pb.GetSubmissionRequest(submission_id=submission_id))
        return await self.with_token(tokens.token_of(submission_id, found.user))

    async def application(self, application_id: str, user: str) -> Running:
        """Its AppMaster, with the token that it gets when it registers."""
        tokens = TokenRegistry(self.master.token).applications
        return await self.with_token(tokens.token_of(application_id, user))


@pytest.fixture
async def people(tmp_path: Path) -> AsyncIterator[People]:
    async with running(tmp_path) as master, AsyncExitStack() as stack:
        yield People(master, stack)


async def registered(of: Running, user: str = "", **fields: Any) -> str:
    ask = registration(user=user, **fields)
    return str((await of.applications.Register(ask, timeout=TIMEOUT_S)).application_id)


def kill(application_id: str) -> admin_pb2.KillApplicationRequest:
    return admin_pb2.KillApplicationRequest(application_id=application_id)


async def test_the_user_of_an_application_is_the_tokens(people: People) -> None:
    ada = await people.one("ada", AccessRole.SUBMITTER)
    state = people.master.interpreter.core.master_state
    for claimed in ("", "ada"):
        app = await registered(ada, claimed, submission_key=f"key-{claimed}")
        assert state.applications[app].record.user == "ada"  # type: ignore[index]
    with refused(DENIED, "names the user 'bob'; submit as ada (SPARK_USER=ada)"):
        await registered(ada, "bob", submission_key="key-bob")
    assert len(state.applications) == 2
    app = await registered(people.master, "whoever", submission_key="key-root")
    assert state.applications[app].record.user == "whoever"  # type: ignore[index]


async def test_the_user_of_a_submission_is_the_tokens(people: People) -> None:
    ada = await people.one("ada", AccessRole.SUBMITTER)
    assert (await stub(ada).Submit(submission("k1", user=""), timeout=TIMEOUT_S)).user == "ada"
    with refused(DENIED, "names the user 'bob'"):
        await stub(ada).Submit(submission("k2", user="bob"), timeout=TIMEOUT_S)
    service = (await made(people.master, AccessRole.SUBMITTER, name="air", kind="service")).token
    air = await people.with_token(service)
    assert (await stub(air).Submit(submission("k3", user="air"), timeout=TIMEOUT_S)).user == "air"
    assert len((await stub(ada).List(pb.ListSubmissionsRequest())).submissions) == 2
    with refused(DENIED, "belongs to ada"):
        await stub(air).Submit(submission("k1", user=""), timeout=TIMEOUT_S)


async def test_all_see_names_and_states_and_details_of_their_own_alone(people: People) -> None:
    ada = await people.one("ada", AccessRole.SUBMITTER)
    bob = await people.one("bob", AccessRole.SUBMITTER)
    operator = await people.one("olga", AccessRole.OPERATOR)
    private = {"driver_host": "h", "web_url": "http://h:4040", "driver_start": "cold: /secret"}
    app = await registered(ada, name="secret-count", **private)
    ask = admin_pb2.GetApplicationRequest(application_id=app)
    for who, sees in ((ada, True), (bob, False), (operator, True)):
        found = await who.admin.GetApplication(ask, timeout=TIMEOUT_S)
        assert (found.name, found.user) == ("secret-count", "ada")
        assert found.state == common_pb2.APPLICATION_STATE_SUBMITTED
        assert bool(found.driver_host) is bool(found.web_url) is bool(found.driver_start) is sees
        assert found.hidden is not sees
        listed = await who.admin.ListApplications(admin_pb2.ListApplicationsRequest())
        (one,) = listed.applications
        assert one.name == "secret-count" and bool(one.web_url) is sees
    explain = admin_pb2.ExplainApplicationRequest(application_id=app)
    assert (await ada.admin.ExplainApplication(explain)).summary
    with refused(DENIED, f"{app} belongs to ada, and the token is that of user bob"):
        await bob.admin.ExplainApplication(explain)


async def test_users_kill_their_own_applications_and_operators_all(people: People) -> None:
    ada = await people.one("ada", AccessRole.SUBMITTER)
    bob = await people.one("bob", AccessRole.SUBMITTER)
    operator = await people.one("olga", AccessRole.OPERATOR)
    apps = [await registered(ada, submission_key=f"key-{number}") for number in range(2)]
    with refused(DENIED, "belongs to ada"):
        await bob.admin.KillApplication(kill(apps[0]), timeout=TIMEOUT_S)
    live = people.master.interpreter.core.master_state.live
    assert set(live) == set(apps)
    await ada.admin.KillApplication(kill(apps[0]), timeout=TIMEOUT_S)
    await operator.admin.KillApplication(kill(apps[1]), timeout=TIMEOUT_S)
    assert not live
    with refused(UNKNOWN, "no such application"):
        await bob.admin.KillApplication(kill("app-of-nobody"), timeout=TIMEOUT_S)
    found = await ada.admin.GetApplication(
        admin_pb2.GetApplicationRequest(application_id=apps[0]), timeout=TIMEOUT_S
    )
    theirs = await bob.admin.GetApplication(
        admin_pb2.GetApplicationRequest(application_id=apps[0]), timeout=TIMEOUT_S
    )
    assert found.message == "killed by user ada" and not theirs.message
    watch = events_pb2_grpc.EventServiceStub(ada.channel).WatchEvents
    pages: Any = watch(events_pb2.WatchEventsRequest(), timeout=TIMEOUT_S)
    shown = [x async for page in pages for x in page.events]
    killed = {x.application_id: x.actor for x in shown if x.to_state == "killed"}
    assert killed == {apps[0]: "user ada", apps[1]: "administrator"}


async def test_users_kill_their_own_submissions_and_operators_all(people: People) -> None:
    ada = await people.one("ada", AccessRole.SUBMITTER)
    bob = await people.one("bob", AccessRole.SUBMITTER)
    sent = await stub(ada).Submit(submission(user="ada"), timeout=TIMEOUT_S)
    ask = pb.KillSubmissionRequest(submission_id=sent.submission_id)
    tie = pb.TieSubmissionRequest(submission_id=sent.submission_id)
    for call in (stub(bob).Kill(ask), stub(bob).Tie(tie)):
        with refused(DENIED, f"{sent.submission_id} belongs to ada"):
            await call
    await stub(ada).Kill(ask, timeout=TIMEOUT_S)
    get = pb.GetSubmissionRequest(submission_id=sent.submission_id)
    own, theirs = await stub(ada).Get(get), await stub(bob).Get(get)
    assert own.state == theirs.state == pb.SUBMISSION_STATE_KILLED
    assert own.message == "killed by user ada" and not theirs.message


async def test_logs_are_their_users_and_the_operators(people: People) -> None:
    ada = await people.one("ada", AccessRole.SUBMITTER)
    viewer = await people.one("vera", AccessRole.VIEWER)
    operator = await people.one("olga", AccessRole.OPERATOR)
    app = await registered(ada)
    for who in (ada, operator):  # nothing has run: they get as far as that
        with refused(UNKNOWN, "has no executor that ran on a node"):
            await who.admin.LinkLog(admin_pb2.LinkLogRequest(application_id=app))
        with refused(UNKNOWN, "has no executor that ran on a node"):
            await who.admin.ReadLogs(admin_pb2.ReadLogsRequest(application_id=app)).read()
    with refused(DENIED, "belongs to ada"):
        await viewer.admin.LinkLog(admin_pb2.LinkLogRequest(application_id=app))
    with refused(DENIED, "belongs to ada"):
        await viewer.admin.ReadLogs(admin_pb2.ReadLogsRequest(application_id=app)).read()
    with refused(UNKNOWN, "operators also see what it has forgotten"):
        await ada.admin.ReadLogs(admin_pb2.ReadLogsRequest(application_id="app-old")).read()


async def reasons(who: Running, application_id: str) -> list[tuple[str, str]]:
    watch = events_pb2_grpc.EventServiceStub(who.channel).WatchEvents
    ask = events_pb2.WatchEventsRequest(application_id=application_id)
    pages: Any = watch(ask, timeout=TIMEOUT_S)
    return [(x.to_state, x.reason) async for page in pages for x in page.events]


async def test_events_of_others_come_without_their_reasons(people: People) -> None:
    ada = await people.one("ada", AccessRole.SUBMITTER)
    bob = await people.one("bob", AccessRole.VIEWER)
    app = await registered(ada)
    ask = admin_pb2.KillApplicationRequest(application_id=app, reason="it read salaries.csv")
    await ada.admin.KillApplication(ask, timeout=TIMEOUT_S)
    own, theirs = await reasons(ada, app), await reasons(bob, app)
    assert [state for state, _ in own] == [state for state, _ in theirs] != []
    assert any("salaries.csv" in reason for _, reason in own)
    assert {reason for _, reason in theirs} == {""}


async def test_a_session_of_anothers_application_is_refused_even_with_its_key(
    people: People,
) -> None:
    ada = await people.one("ada", AccessRole.SUBMITTER)
    bob = await people.one("bob", AccessRole.SUBMITTER)
    key = ownership_keys.new_key()
    ask = registration(user="", ownership_key=key)
    result = await ada.applications.Register(ask, timeout=TIMEOUT_S)
    hello = application_pb2.AttachApplication(
        application_id=result.application_id, epoch=result.epoch, ownership_key=key
    )
    session = bob.applications.Session(timeout=TIMEOUT_S)
    with refused(DENIED, "belongs to ada"):
        await session.write(application_pb2.ApplicationUpdate(attach=hello))
        await session.read()
    session = ada.applications.Session(timeout=TIMEOUT_S)
    await session.write(application_pb2.ApplicationUpdate(attach=hello))
    assert (await session.read()).WhichOneof("notice") == "attached"
    session.cancel()


async def put_file(of: Running, content: bytes) -> pb.FileDigest:
    digest = pb.FileDigest(
        sha256=hashlib.sha256(content).hexdigest(), size_bytes=len(content), name="data.txt"
    )
    await stub(of).PutPiece(pb.PutPieceRequest(file=digest, offset=0, data=content))
    return digest


async def fetched(of: Running, digest: pb.FileDigest) -> bytes:
    pieces: Any = stub(of).GetFile(pb.GetFileRequest(sha256=digest.sha256), timeout=TIMEOUT_S)
    return b"".join([piece.data async for piece in pieces])


async def test_files_are_fetched_by_whose_they_are_and_where_they_are_needed(
    people: People,
) -> None:
    ada = await people.one("ada", AccessRole.SUBMITTER)
    bob = await people.one("bob", AccessRole.SUBMITTER)
    digest = await put_file(ada, b"salaries")
    with refused(UNKNOWN, "of yours is here"):
        await fetched(ada, digest)  # nothing of ada's needs it yet
    main = pb.DriverResource(role=pb.RESOURCE_ROLE_MAIN, uri="local:/a.py")
    data = pb.DriverResource(role=pb.RESOURCE_ROLE_FILE, name="data.txt", file=digest)
    ask = submission(user="", resources=[main, data])
    async with agent(people.master) as one:
        sent = await stub(ada).Submit(ask, timeout=TIMEOUT_S)
        await one.assigned()
        assert await fetched(ada, digest) == b"salaries"
        assert await fetched(await people.driver(sent.submission_id), digest) == b"salaries"
        assert await fetched(await people.one("n1", AccessRole.AGENT), digest) == b"salaries"
        other = await stub(bob).Submit(submission("k2", user=""), timeout=TIMEOUT_S)
        for who in (
            bob,
            await people.one("n2", AccessRole.AGENT),
            await people.driver(other.submission_id),
        ):
            with refused(UNKNOWN, "of yours is here"):
                await fetched(who, digest)


async def test_a_driver_speaks_for_its_own_submission_until_that_ends(people: People) -> None:
    master = people.master
    ada = await people.one("ada", AccessRole.SUBMITTER)
    async with agent(master) as one:
        sent = await stub(ada).Submit(submission(user=""), timeout=TIMEOUT_S)
        spec = await one.assigned()
        await one.report_state(spec, RUNNING)
        driver = await people.driver(sent.submission_id)
        other = await stub(ada).Submit(submission("k2", user=""), timeout=TIMEOUT_S)
        with refused(DENIED, "speaks for that alone"):
            await stub(driver).Lease(lease(other.submission_id), timeout=TIMEOUT_S)
        with refused(DENIED, "speaks for that alone"):
            await stub(driver).GetTokens(pb.GetTokensRequest(submission_id=other.submission_id))
        with refused(DENIED, "speaks for that alone"):
            await registered(driver, "ada")
        with refused(DENIED, "has the role application"):
            await driver.admin.KillApplication(kill(sent.submission_id))
        await stub(driver).Lease(lease(sent.submission_id), timeout=TIMEOUT_S)
        own = {"submission_id": sent.submission_id, "submission_attempt": 1}
        app = await registered(driver, "root", **own)
        state = master.interpreter.core.master_state
        assert state.applications[app].record.user == "ada"  # type: ignore[index]
        await one.report_state(spec, ENDED)
        await state_of(master, sent.submission_id, pb.SUBMISSION_STATE_FINISHED)
        with refused(UNKNOWN, f"the token of {sent.submission_id} has ended with it"):
            await stub(driver).Lease(lease(sent.submission_id), timeout=TIMEOUT_S)


async def test_what_was_measured_of_steps_is_their_users(people: People) -> None:
    ada = await people.one("ada", AccessRole.SUBMITTER)
    bob = await people.one("bob", AccessRole.VIEWER)
    oda = await people.one("oda", AccessRole.OPERATOR)
    of_ada, of_bob, of_oda = (
        pipeline_pb2_grpc.PipelineServiceStub(x.channel) for x in (ada, bob, oda)
    )
    ask = pipeline_pb2.GetPipelineProfilesRequest(name="p", asker="root")
    assert not (await of_ada.GetProfiles(ask)).profiles, "its own, whoever its process runs as"
    with refused(grpc.StatusCode.INVALID_ARGUMENT, "name: give a pipeline"):
        await of_ada.GetProfiles(pipeline_pb2.GetPipelineProfilesRequest())
    ask.user = "ada"
    with refused(DENIED, "what was measured belongs to ada"):
        await of_bob.GetProfiles(ask)
    await of_oda.GetProfiles(ask)


async def test_tasks_of_pipelines_are_their_users(people: People) -> None:
    ada = await people.one("ada", AccessRole.SUBMITTER)
    bob = await people.one("bob", AccessRole.SUBMITTER)
    spec = pw.from_pipeline(pipeline(subtask("a")))
    of_ada, of_bob = (pipeline_pb2_grpc.PipelineServiceStub(x.channel) for x in (ada, bob))
    ask = pipeline_pb2.SubmitPipelineTaskRequest(task_id="t1", pipeline=spec, payload=b"x")
    await of_ada.Submit(ask, timeout=TIMEOUT_S)
    ask.user, ask.task_id = "ada", "t2"
    with refused(DENIED, "names the user 'ada'"):
        await of_bob.Submit(ask, timeout=TIMEOUT_S)
    cancel = pipeline_pb2.CancelPipelineTaskRequest(task_id="t1")
    with refused(DENIED, "pipeline task t1 belongs to ada"):
        await of_bob.Cancel(cancel, timeout=TIMEOUT_S)
    with refused(DENIED, "belongs to ada"):
        await of_bob.Watch(pipeline_pb2.WatchPipelineTasksRequest(task_ids=["t1"])).read()
    with refused(DENIED, "belongs to ada"):
        await of_bob.GetResult(pipeline_pb2.GetPipelineResultRequest(task_id="t1")).read()
    with refused(UNKNOWN, "no pipeline task"):
        await of_bob.Cancel(pipeline_pb2.CancelPipelineTaskRequest(task_id="t9"))
    explain = admin_pb2.ExplainApplicationRequest(application_id="t1")
    with refused(DENIED, "belongs to ada"):
        await bob.admin.ExplainApplication(explain, timeout=TIMEOUT_S)
    (task,) = (await of_bob.List(pipeline_pb2.ListPipelineTasksRequest())).tasks
    assert (task.task_id, task.user, task.state) == ("t1", "ada", "it waits for a worker")
    await of_ada.Cancel(cancel, timeout=TIMEOUT_S)


async def test_why_others_tasks_failed_and_where_they_ran_is_not_listed(people: People) -> None:
    ada = await people.one("ada", AccessRole.SUBMITTER)
    vera = await people.one("vera", AccessRole.VIEWER)
    of_ada, of_vera = (pipeline_pb2_grpc.PipelineServiceStub(x.channel) for x in (ada, vera))
    spec = pw.from_pipeline(pipeline(subtask("a")))
    ask = pipeline_pb2.SubmitPipelineTaskRequest(task_id="t1", pipeline=spec, payload=b"salary")
    await of_ada.Submit(ask, timeout=TIMEOUT_S)
    why = "salaries.csv: 41000"
    cancel = pipeline_pb2.CancelPipelineTaskRequest(task_id="t1", reason=why)
    await of_ada.Cancel(cancel, timeout=TIMEOUT_S)
    listing = pipeline_pb2.ListPipelineTasksRequest(all=True)
    (own,) = (await of_ada.List(listing, timeout=TIMEOUT_S)).tasks
    (theirs,) = (await of_vera.List(listing, timeout=TIMEOUT_S)).tasks
    assert why in own.state and own.size_mb
    assert theirs == pipeline_pb2.PipelineTaskInfo(
        task_id="t1", pipeline=own.pipeline, submitted_at_s=own.submitted_at_s,
        outcome=own.outcome, user="ada", state="cancelled", application_id=own.application_id,
    )  # fmt: skip


async def test_a_drivers_tasks_are_not_another_drivers_of_the_same_user(people: People) -> None:
    ada = await people.one("ada", AccessRole.SUBMITTER)
    sent = [
        await stub(ada).Submit(submission(f"k{number}", user=""), timeout=TIMEOUT_S)
        for number in range(2)
    ]
    first, second = [await people.driver(x.submission_id) for x in sent]
    spec = pw.from_pipeline(pipeline(subtask("a")))
    ask = pipeline_pb2.SubmitPipelineTaskRequest(task_id="t1", pipeline=spec, user="root")
    stubs = [pipeline_pb2_grpc.PipelineServiceStub(x.channel) for x in (first, second, ada)]
    await stubs[0].Submit(ask, timeout=TIMEOUT_S)
    cancel = pipeline_pb2.CancelPipelineTaskRequest(task_id="t1")
    with refused(DENIED, "pipeline task t1 belongs to ada"):
        await stubs[1].Cancel(cancel, timeout=TIMEOUT_S)
    (task,) = (await stubs[2].List(pipeline_pb2.ListPipelineTasksRequest())).tasks
    assert task.user == "ada"
    await stubs[0].Cancel(cancel, timeout=TIMEOUT_S)


async def test_a_node_and_a_scheduler_cannot_claim_anothers_name(people: People) -> None:
    n1 = await people.one("n1", AccessRole.AGENT)
    for name, claims in (("n2", True), ("n1", False)):
        stream: Any = n1.nodes.Connect()
        await stream.write(node(name, f"identity-{name}"))
        if claims:
            with refused(DENIED, "the token is that of node n1, and node 'n2' is not its name"):
                await stream.read()
        else:
            assert (await stream.read()).WhichOneof("message") == "registered"
            stream.cancel()
    assert list(people.master.interpreter.core.master_state.nodes) == ["n1"]
    tasks = pipeline_pb2_grpc.PipelineServiceStub(n1.channel).Connect()
    capacity = pipeline_pb2.PipelineCapacity(
        node="n2", cores=1, memory_mib=64, cpu_speed=1.0, gpu_speed=1.0
    )
    load = pipeline_pb2.PipelineLoad(free_cores=1, free_memory_mib=64)
    register = pipeline_pb2.RegisterPipelineNode(capacity=capacity, identity="i", load=load)
    await tasks.write(pipeline_pb2.NodePipelineMessage(register=register))
    with refused(DENIED, "Connect takes one of: admin, application"):
        await tasks.read()
    s1 = await people.one("s1", AccessRole.SCHEDULER)
    subscribe = scheduler_pb2_grpc.SharedStateServiceStub(s1.channel).Subscribe
    with refused(DENIED, "hrm token create --scheduler s2"):
        await subscribe(scheduler_pb2.SubscribeRequest(name="s2")).read()
    stream = subscribe(scheduler_pb2.SubscribeRequest(name="s1"))
    assert (await stream.read()).WhichOneof("message") == "subscribed"
    stream.cancel()


async def test_a_stream_ends_when_its_token_is_revoked(people: People) -> None:
    token = await made(people.master, AccessRole.AGENT, name="n1")
    n1 = await people.with_token(token.token)
    stream: Any = n1.nodes.Connect()
    await stream.write(node("n1", "identity"))
    await stream.read()
    watch = await made(people.master, AccessRole.VIEWER, name="vera")
    vera = await people.with_token(watch.token)
    pages: Any = events_pb2_grpc.EventServiceStub(vera.channel).WatchEvents(
        events_pb2.WatchEventsRequest(follow=True)
    )
    await pages.read()
    for token_id, call in ((token.info.token_id, stream), (watch.info.token_id, pages)):
        ask = identity_pb2.RevokeTokenRequest(token_id=token_id)
        await identities(people.master).RevokeToken(ask, timeout=TIMEOUT_S)
        with refused(grpc.StatusCode.UNAUTHENTICATED, "was revoked at"):
            async with asyncio.timeout(TIMEOUT_S):
                while await call.read() is not grpc.aio.EOF:  # type: ignore[attr-defined]
                    pass


async def test_a_join_token_enrols_one_node_and_cannot_be_replayed(people: People) -> None:
    joining = await people.one("", AccessRole.JOINING)
    ask = identity_pb2.EnrolNodeRequest(node="n1")
    enrolled = await identities(joining).EnrolNode(ask, timeout=TIMEOUT_S)
    assert (enrolled.info.name, enrolled.info.role) == ("n1", "agent")
    with refused(grpc.StatusCode.UNAUTHENTICATED, "works once, and node n1 has used it"):
        await identities(joining).EnrolNode(ask, timeout=TIMEOUT_S)
    n1 = await people.with_token(enrolled.token)
    stream: Any = n1.nodes.Connect()
    await stream.write(node("n1", "identity"))
    assert (await stream.read()).WhichOneof("message") == "registered"
    stream.cancel()
    again = await people.one("", AccessRole.JOINING)
    with refused(grpc.StatusCode.ALREADY_EXISTS, "node 'n1' has enrolled"):
        await identities(again).EnrolNode(ask, timeout=TIMEOUT_S)
    ask.node = "n2"
    await identities(again).EnrolNode(ask, timeout=TIMEOUT_S)


async def test_a_join_token_that_is_used_twice_at_once_enrols_one_node(people: People) -> None:
    joining = identities(await people.one("", AccessRole.JOINING))
    asks = [identity_pb2.EnrolNodeRequest(node=f"n{number}") for number in range(8)]
    done = await asyncio.gather(
        *(joining.EnrolNode(ask, timeout=TIMEOUT_S) for ask in asks), return_exceptions=True
    )
    enrolled = [x for x in done if isinstance(x, identity_pb2.CreatedToken)]
    assert len(enrolled) == 1
    listed = await identities(people.master).ListTokens(identity_pb2.ListTokensRequest())
    assert [x.role for x in listed.tokens] == ["agent"]


async def test_a_join_token_for_a_name_is_for_that_name(people: People) -> None:
    mine = identities(await people.one("n1", AccessRole.JOINING))
    with refused(DENIED, "is for node n1, and not for 'n2'"):
        await mine.EnrolNode(identity_pb2.EnrolNodeRequest(node="n2"), timeout=TIMEOUT_S)
    await mine.EnrolNode(identity_pb2.EnrolNodeRequest(node="n1"), timeout=TIMEOUT_S)


async def test_tokens_outlive_the_master_and_so_does_their_end(tmp_path: Path) -> None:
    async with running(tmp_path) as master:
        valid = await made(master, AccessRole.VIEWER, name="ada")
        revoked = await made(master, AccessRole.VIEWER, name="bob")
        join = await made(master, AccessRole.JOINING, name="")
        ask = identity_pb2.RevokeTokenRequest(token_id=revoked.info.token_id)
        await identities(master).RevokeToken(ask, timeout=TIMEOUT_S)
        enrol = identity_pb2.EnrolNodeRequest(node="n1")
        async with as_(master, join.token) as joining:
            await identities(joining).EnrolNode(enrol, timeout=TIMEOUT_S)
        stored = (tmp_path / "master" / "hrm.sqlite").read_bytes()
        stored += (tmp_path / "master" / "hrm.sqlite-wal").read_bytes()
        for token in (valid.token, revoked.token, join.token):
            assert token.encode() not in stored
    async with running(tmp_path) as master:
        who = identity_pb2.WhoAmIRequest()
        async with as_(master, valid.token) as ada:
            assert (await identities(ada).WhoAmI(who)).name == "ada"
        async with as_(master, revoked.token) as bob:
            with refused(grpc.StatusCode.UNAUTHENTICATED, "was revoked at"):
                await identities(bob).WhoAmI(who)
        async with as_(master, join.token) as joining:
            with refused(grpc.StatusCode.UNAUTHENTICATED, "works once"):
                await identities(joining).EnrolNode(enrol)


async def test_a_submission_key_of_another_user_gives_nothing_away(people: People) -> None:
    """Without an ownership key, as an older client registers, or with a stolen one."""
    ada = await people.one("ada", AccessRole.SUBMITTER)
    bob = await people.one("bob", AccessRole.SUBMITTER)
    apps = people.master.interpreter.core.master_state.applications
    for key in ("", "k" * 40):
        fields = {"submission_key": f"same-{key}", "ownership_key": key}
        ask: dict[str, Any] = {**fields, "launch": {"environment": {"OF": "ada"}}}
        first = await registered(ada, **ask)
        with refused(DENIED, "is that of another's application"):
            await registered(bob, **fields)
        assert apps[first].record.user == "ada"  # type: ignore[index]
        assert dict(apps[first].launch.environment) == {"OF": "ada"}  # type: ignore[index]
        assert await registered(ada, **ask) == first


async def test_where_anothers_driver_is_and_how_it_ended_is_not_shown(people: People) -> None:
    ada = await people.one("ada", AccessRole.SUBMITTER)
    vera = await people.one("vera", AccessRole.VIEWER)
    async with agent(people.master) as one:
        sent = await stub(ada).Submit(submission(user="ada"), timeout=TIMEOUT_S)
        spec = await one.assigned()
        await one.report_state(spec, RUNNING)
        get = pb.GetSubmissionRequest(submission_id=sent.submission_id)
        async with asyncio.timeout(TIMEOUT_S):
            while not (await stub(ada).Get(get, timeout=TIMEOUT_S)).node:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert not (await stub(vera).Get(get, timeout=TIMEOUT_S)).node
        await one.report_state(spec, ENDED, 3)
        await state_of(people.master, sent.submission_id, pb.SUBMISSION_STATE_FAILED)
        assert (await stub(ada).Get(get, timeout=TIMEOUT_S)).exit_code == 3
        theirs = await stub(vera).Get(get, timeout=TIMEOUT_S)
        assert (theirs.node, theirs.exit_code) == ("", -1)

    async def events(who: Running, **fields: Any) -> list[events_pb2.StateEvent]:
        watch = events_pb2_grpc.EventServiceStub(who.channel).WatchEvents
        pages: Any = watch(events_pb2.WatchEventsRequest(**fields), timeout=TIMEOUT_S)
        return [x async for page in pages for x in page.events]

    own: list[events_pb2.StateEvent] = []
    async with asyncio.timeout(TIMEOUT_S):  # they are written a little later
        while not own or own[-1].to_state != "failed":
            own = await events(ada, application_id=sent.submission_id)
    seen = await events(vera, application_id=sent.submission_id)
    assert [x.to_state for x in own] == [x.to_state for x in seen]
    assert any(x.node for x in own) and any(x.cause for x in own)
    assert any(x.actor.startswith("node ") for x in own)
    assert {(x.node, x.cause, x.exit_code, x.reason) for x in seen} == {("", "", -1, "")}
    assert not any(x.actor.startswith("node ") for x in seen)
    at_node = await events(vera, node="n1")
    assert at_node and not any(x.application_id for x in at_node), "a node's events stay for all"
    assert any(x.application_id for x in await events(ada, node="n1"))


async def test_a_stream_that_an_application_has_opened_ends_with_it(people: People) -> None:
    ada = await people.one("ada", AccessRole.SUBMITTER)
    streams: list[Any] = []
    apps = [await registered(ada, submission_key=f"k{number}") for number in range(2)]
    for app in apps:
        health = health_pb2_grpc.HealthStub((await people.application(app, "ada")).channel)
        streams.append(health.Watch(health_pb2.HealthCheckRequest()))
        await streams[-1].read()
    await ada.admin.KillApplication(kill(apps[0]), timeout=TIMEOUT_S)
    with refused(UNKNOWN, f"the token of {apps[0]} has ended with it"):
        async with asyncio.timeout(3.0):
            await streams[0].read()
    assert not streams[1].done(), "another's goes on"
    streams[1].cancel()


async def test_tasks_of_pipelines_are_cancelled_with_the_application_that_submits_them(
    people: People,
) -> None:
    ada = await people.one("ada", AccessRole.SUBMITTER)
    result = await ada.applications.Register(registration(user=""), timeout=TIMEOUT_S)
    driver = await people.application(result.application_id, "ada")
    spec = pw.from_pipeline(pipeline(subtask("a")))
    for who, task_id in ((driver, "t1"), (ada, "t2")):
        ask = pipeline_pb2.SubmitPipelineTaskRequest(task_id=task_id, pipeline=spec)
        tasks = pipeline_pb2_grpc.PipelineServiceStub(who.channel)
        await tasks.Submit(ask, timeout=TIMEOUT_S)
    watch = pipeline_pb2.WatchPipelineTasksRequest(task_ids=["t1"])
    call: Any = tasks.Watch(watch)
    assert (await call.read()).queued
    await ada.admin.KillApplication(kill(result.application_id), timeout=TIMEOUT_S)
    async with asyncio.timeout(3.0):
        end = await call.read()
        while not end.HasField("ended"):
            end = await call.read()
    assert end.ended.outcome == pipeline_pb2.PIPELINE_TASK_OUTCOME_CANCELLED
    listed = await tasks.List(pipeline_pb2.ListPipelineTasksRequest(), timeout=TIMEOUT_S)
    assert [x.task_id for x in listed.tasks] == ["t2"], "a user's own go on"
