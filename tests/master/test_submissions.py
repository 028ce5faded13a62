"""Submissions over real gRPC: a client, a master, and a node that reports what a test orders."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import grpc
import pytest

from hrm import ownership_keys, rpc
from hrm.core.messages import events as e
from hrm.core.messages.submissions import SubmissionRecord, SubmissionState
from hrm.core.vocabulary.model import ApplicationId, LaunchContext, Resources
from hrm.errors import HrmError, InvalidRequest, LimitReached, NotFound
from hrm.master import submission_interpreter
from hrm.master.driver_tokens import DriverTokens
from hrm.master.interpreter import Interpreter
from hrm.master.log_sources import LogSources
from hrm.master.submission_interpreter import Submissions
from hrm.spark import submit
from hrm.spark.submit_options import parse
from hrm.spark_servers import CONNECT_CLASS, INTERNAL
from hrm.v1 import admin_pb2, common_pb2, node_pb2, submission_pb2_grpc
from hrm.v1 import submission_pb2 as pb
from tests.master.test_services import TIMEOUT_S, Running, node, refused, registration, running

RUNNING = common_pb2.CONTAINER_STATE_RUNNING
ENDED = common_pb2.CONTAINER_STATE_ENDED


@pytest.fixture
async def master(tmp_path: Path) -> AsyncIterator[Running]:
    async with running(tmp_path, file_mib_max=1) as subject:
        yield subject


def stub(master: Running) -> Any:
    return submission_pb2_grpc.SubmissionServiceStub(master.channel)


async def state_of(master: Running, submission_id: str, state: Any) -> pb.Submission:
    """The submission once it is in this state."""
    async with asyncio.timeout(TIMEOUT_S):
        async for found in stub(master).Watch(pb.GetSubmissionRequest(submission_id=submission_id)):
            if found.state == state:
                return found  # type: ignore[no-any-return]
    raise AssertionError(f"it ended as {found.state}")


async def application_is(master: Running, application_id: Any, state: str) -> None:
    """Nothing is left of the application that the driver had registered."""
    app = master.interpreter.core.master_state.applications[application_id]
    async with asyncio.timeout(TIMEOUT_S):
        while app.record.state.value != state:  # noqa: ASYNC110 - nothing is notified
            await asyncio.sleep(0.01)


class Agent:
    """A node: accepts containers, and reports what a test orders."""

    def __init__(self, call: Any) -> None:
        self._call = call
        self._sequence = 1

    async def assigned(self) -> common_pb2.ContainerSpec:
        return (await self._next("assign")).assign  # type: ignore[no-any-return]

    async def stopped(self) -> node_pb2.StopContainer:
        return (await self._next("stop")).stop  # type: ignore[no-any-return]

    async def _next(self, kind: str) -> Any:
        async with asyncio.timeout(TIMEOUT_S):
            while (message := await self._call.read()).WhichOneof("message") != kind:
                pass
            return message

    async def report_state(self, spec: common_pb2.ContainerSpec, state: Any, code: int = 0) -> None:
        status = common_pb2.ContainerStatus(
            container_id=spec.container_id,
            application_id=spec.application_id,
            executor_id=spec.executor_id,
            workload_class=common_pb2.WORKLOAD_CLASS_BATCH,
            resources=spec.resources,
            state=state,
            node="n1",
            resource_unit_id=spec.resource_unit_id,
            started_at_s=1.0,
        )
        if state == ENDED:
            status.end.cause = common_pb2.END_CAUSE_EXITED
            status.end.exit_code = code
            status.end.message = f"exited with code {code}"
        self._sequence += 1
        await self._call.write(node_pb2.NodeMessage(sequence=self._sequence, container=status))


@asynccontextmanager
async def agent(master: Running, name: str = "n1", **fields: Any) -> AsyncIterator[Agent]:
    call = master.nodes.Connect()
    await call.write(node(name, f"identity-{name}", **fields))
    yield Agent(call)
    call.cancel()


def submission(key: str = "k1", **fields: Any) -> pb.SubmitRequest:
    main = pb.DriverResource(role=pb.RESOURCE_ROLE_MAIN, uri="local:/a.py")
    values: dict[str, Any] = {
        "name": "app", "user": "u", "vcores": 1, "memory_mib": 1024, "heap_mib": 512,
        "resources": [main], **fields,
    }  # fmt: skip
    return pb.SubmitRequest(key=key, driver=pb.DriverSpec(**values))


def lease(submission_id: str, attempt: int = 1, **fields: Any) -> pb.LeaseDriverRequest:
    return pb.LeaseDriverRequest(submission_id=submission_id, attempt=attempt, **fields)


async def test_a_driver_from_its_submission_to_its_end(master: Running) -> None:
    async with agent(master) as one:
        conf = [pb.SparkSetting(key="spark.secret", value="xyz")]
        sent = await stub(master).Submit(submission(conf=conf, arguments=["a", "b"]))
        submission_id = sent.submission_id
        assert sent.state == pb.SUBMISSION_STATE_SUBMITTED
        assert "xyz" not in str(sent), "its configuration is shown nowhere"
        spec = await one.assigned()
        assert (spec.application_id, spec.executor_id) == (submission_id, "1")
        assert (spec.resources.memory_mib, spec.heap_mib) == (1024, 512)
        document = json.loads(spec.launch.driver)
        assert document["conf"] == [["spark.secret", "xyz"]]
        assert document["arguments"] == ["a", "b"]

        await one.report_state(spec, RUNNING)
        launching = await state_of(master, submission_id, pb.SUBMISSION_STATE_LAUNCHING)
        assert launching.node == "n1"
        granted = await stub(master).Lease(lease(submission_id))
        assert (granted.lease_s, granted.renew_s > 0) == (0.0, True)

        known = await master.applications.Register(
            registration(submission_id=submission_id, submission_attempt=1)
        )
        found = await state_of(master, submission_id, pb.SUBMISSION_STATE_RUNNING)
        assert list(found.application_ids) == [known.application_id]
        await one.report_state(spec, ENDED)
        done = await state_of(master, submission_id, pb.SUBMISSION_STATE_FINISHED)
        assert done.exit_code == 0
        await application_is(master, known.application_id, "succeeded")
        listed = await stub(master).List(pb.ListSubmissionsRequest())
        assert not listed.submissions
        listed = await stub(master).List(pb.ListSubmissionsRequest(include_ended=True))
        assert len(listed.submissions) == 1
        with refused(grpc.StatusCode.ABORTED, "may not run: it is finished"):
            await stub(master).Lease(lease(submission_id))


async def test_a_driver_that_waits_for_others_says_so_and_starts_when_they_end(
    master: Running,
) -> None:
    async with agent(master) as one:
        first = await stub(master).Submit(submission("k1"))
        spec = await one.assigned()
        second = await stub(master).Submit(submission("k2"))
        ask = pb.GetSubmissionRequest(submission_id=second.submission_id)
        why = (await stub(master).Get(ask)).message
        assert "drivers hold 1 of the 4 vcores" in why and "20 % (driver_share)" in why
        admin = admin_pb2.ExplainApplicationRequest(application_id=second.submission_id)
        assert why in (await master.admin.ExplainApplication(admin)).summary
        await one.report_state(spec, RUNNING)
        await stub(master).Lease(lease(first.submission_id))
        await one.report_state(spec, ENDED)
        assert (await one.assigned()).application_id == second.submission_id
        assert (await stub(master).Get(ask)).message == ""


async def test_a_gang_that_fits_without_its_driver_alone_fails_at_once(master: Running) -> None:
    async with agent(master):
        conf = [pb.SparkSetting(key="spark.hrm.gang.min", value="4")]
        conf.append(pb.SparkSetting(key="spark.executor.memory", value="500m"))
        sent = await stub(master).Submit(submission(conf=conf))
        failed = await state_of(master, sent.submission_id, pb.SUBMISSION_STATE_FAILED)
        assert "the driver (1 vcore, 1024 MiB) is to start with 4 executors" in failed.message
        assert "holds 3 of them next to it" in failed.message


async def test_a_server_has_an_address_while_it_runs(master: Running) -> None:
    main = pb.DriverResource(role=pb.RESOURCE_ROLE_MAIN, uri=INTERNAL)
    conf = [pb.SparkSetting(key="spark.connect.grpc.binding.port", value="15012")]
    fields: dict[str, Any] = {"resources": [main], "main_class": CONNECT_CLASS}
    async with agent(master, host="10.0.0.1") as one:
        sent = await stub(master).Submit(submission(conf=conf, **fields))
        spec = await one.assigned()
        await one.report_state(spec, RUNNING)
        launching = await state_of(master, sent.submission_id, pb.SUBMISSION_STATE_LAUNCHING)
        assert launching.server_address == ""
        await stub(master).Lease(lease(sent.submission_id))
        serving = await state_of(master, sent.submission_id, pb.SUBMISSION_STATE_RUNNING)
        assert serving.server_address == "sc://10.0.0.1:15012"
        await one.report_state(spec, ENDED, 143)
        done = await state_of(master, sent.submission_id, pb.SUBMISSION_STATE_FAILED)
        assert done.server_address == ""
        conf[0].value = "0"
        with refused(grpc.StatusCode.INVALID_ARGUMENT, "give one from 1 to 65535"):
            await stub(master).Submit(submission("k2", conf=conf, **fields))


async def test_a_failed_driver_is_started_again_and_its_stale_self_shut_out(
    tmp_path: Path,
) -> None:
    async with (
        running(tmp_path, driver_restart_delay_s=0.1, driver_lease_s=2) as master,
        agent(master) as one,
    ):
        sent = await stub(master).Submit(submission(supervise=True))
        first = await one.assigned()
        await one.report_state(first, RUNNING)
        granted = await stub(master).Lease(lease(sent.submission_id))
        assert granted.lease_s == 2.0
        await one.report_state(first, ENDED, 1)
        second = await one.assigned()
        assert second.executor_id == "2"
        assert second.container_id != first.container_id
        with refused(grpc.StatusCode.ABORTED, "driver 2 has taken its place"):
            await stub(master).Lease(lease(sent.submission_id))
        await one.report_state(second, RUNNING)
        await stub(master).Lease(lease(sent.submission_id, 2))
        with refused(grpc.StatusCode.NOT_FOUND, "may not register"):
            await master.applications.Register(
                registration(submission_id=sent.submission_id, submission_attempt=1)
            )
        known = await master.applications.Register(
            registration(submission_id=sent.submission_id, submission_attempt=2)
        )
        killed = await stub(master).Kill(pb.KillSubmissionRequest(submission_id=sent.submission_id))
        assert killed.state == pb.SUBMISSION_STATE_KILLING
        assert (await one.stopped()).container_id == second.container_id
        await application_is(master, known.application_id, "killed")
        await one.report_state(second, ENDED, 143)
        await state_of(master, sent.submission_id, pb.SUBMISSION_STATE_KILLED)


async def two_drivers(master: Running, one: Agent) -> tuple[str, list[str]]:
    """A submission whose first driver fails and whose second succeeds, and their applications."""
    sent = await stub(master).Submit(submission(supervise=True))
    applications = []
    for attempt, code in ((1, 7), (2, 0)):
        spec = await one.assigned()
        await one.report_state(spec, RUNNING)
        await stub(master).Lease(lease(sent.submission_id, attempt))
        known = await master.applications.Register(
            registration(
                submission_key=f"key-{attempt}",
                submission_id=sent.submission_id,
                submission_attempt=attempt,
            )
        )
        applications.append(known.application_id)
        await one.report_state(spec, ENDED, code)
    await state_of(master, sent.submission_id, pb.SUBMISSION_STATE_FINISHED)
    return sent.submission_id, applications


async def containers_of_logs(master: Running, *asked: tuple[str, str]) -> list[str]:
    sources = LogSources(master.interpreter)
    return [(await sources.find(ApplicationId(app), executor))[0] for app, executor in asked]


async def test_drivers_logs_are_found_while_they_are_known_and_when_all_is_forgotten(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, driver_restart_delay_s=0.1) as master, agent(master) as one:
        driver, (first, second) = await two_drivers(master, one)
        asked = (
            (first, "driver"), (second, "driver"), (second, "driver/1"),
            (driver, "driver"), (driver, "driver/1"), (driver, "1"),
        )  # fmt: skip
        found = [f"{driver}-x{attempt}" for attempt in (1, 2, 1, 2, 1, 1)]
        assert await containers_of_logs(master, *asked) == found
        with pytest.raises(NotFound, match="has no driver 3 that ran on a node"):
            await containers_of_logs(master, (second, "driver/3"))
        known = master.interpreter.core.master_state.applications
        async with asyncio.timeout(TIMEOUT_S):  # their ends follow that of the submission
            while not all(x.record.state.ended for x in known.values()):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    forgetful = {"ended_applications_kept": 0, "ended_submissions_kept": 0}
    async with running(tmp_path, **forgetful) as master, agent(master):
        master.interpreter.submit(e.Ticked(now=master.interpreter.now()))
        known = master.interpreter.core.master_state.applications
        everything = pb.ListSubmissionsRequest(include_ended=True)
        assert not {ApplicationId(x) for x in (driver, first, second)} & known.keys()
        async with asyncio.timeout(TIMEOUT_S):
            while (await stub(master).List(everything)).submissions:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert await containers_of_logs(master, *asked) == found
        request = admin_pb2.ReadLogsRequest(application_id=first, executor_id="driver")
        # No server is at the endpoint of this node: the test is that it is called at all.
        with refused(grpc.StatusCode.FAILED_PRECONDITION, "the agent of n1"):
            await master.admin.ReadLogs(request, timeout=TIMEOUT_S).read()
        with pytest.raises(NotFound, match="driver-nobody has no driver that ran"):
            await containers_of_logs(master, ("driver-nobody", "driver"))


async def test_a_driver_that_ran_where_it_was_submitted_has_its_log_there(tmp_path: Path) -> None:
    async with running(tmp_path) as master:
        known = await master.applications.Register(registration(driver_host="laptop.example"))
        with pytest.raises(NotFound, match=r"ran where it was submitted, on laptop\.example"):
            await containers_of_logs(master, (known.application_id, "driver"))
        kill = admin_pb2.KillApplicationRequest(application_id=known.application_id)
        await master.admin.KillApplication(kill, timeout=TIMEOUT_S)
    async with running(tmp_path, ended_applications_kept=0) as master:
        master.interpreter.submit(e.Ticked(now=master.interpreter.now()))
        with pytest.raises(NotFound, match="ran where it was submitted, and on no node"):
            await containers_of_logs(master, (known.application_id, "driver"))
        with pytest.raises(NotFound, match="no such application"):
            await containers_of_logs(master, ("app-of-nobody", "driver"))


async def test_a_driver_that_is_lost_with_its_node_is_fenced(tmp_path: Path) -> None:
    times = {"node_timeout_s": 4.0, "heartbeat_interval_s": 0.2, "driver_restart_delay_s": 0.1}
    async with running(tmp_path, driver_lease_s=60, **times) as master:
        async with agent(master) as one:
            sent = await stub(master).Submit(submission(supervise=True))
            await one.report_state(await one.assigned(), RUNNING)
            await stub(master).Lease(lease(sent.submission_id))
        waiting = pb.SUBMISSION_STATE_WAITING_TO_RESTART
        lost = await state_of(master, sent.submission_id, waiting)
        assert lost.restart_at_s - lost.submitted_at_s > 60, "for its lease goes on"
        with refused(grpc.StatusCode.ABORTED, "it was abandoned"):
            await stub(master).Lease(lease(sent.submission_id))
        async with agent(master, "n2") as other:
            await stub(master).Lease(lease(sent.submission_id, gone=True))
            assert (await other.assigned()).executor_id == "2"


async def test_to_kill_the_application_of_a_driver_ends_its_submission(master: Running) -> None:
    async with agent(master) as one:
        sent = await stub(master).Submit(submission(supervise=True))
        await one.report_state(await one.assigned(), RUNNING)
        await stub(master).Lease(lease(sent.submission_id))
        from hrm.v1 import admin_pb2

        request = admin_pb2.KillApplicationRequest(application_id=sent.submission_id, reason="no")
        await master.admin.KillApplication(request)
        killed = await state_of(master, sent.submission_id, pb.SUBMISSION_STATE_KILLED)
        assert killed.message == "no"


async def test_a_call_that_comes_twice_submits_once(master: Running) -> None:
    sent = await asyncio.gather(*(stub(master).Submit(submission()) for _ in range(3)))
    assert len({each.submission_id for each in sent}) == 1
    listed = await stub(master).List(pb.ListSubmissionsRequest())
    assert len(listed.submissions) == 1


def tokens_of(submission_id: str, **fields: Any) -> pb.GetTokensRequest:
    return pb.GetTokensRequest(submission_id=submission_id, attempt=1, **fields)


def files_with(text: bytes, directory: Path) -> list[Path]:
    return [x for x in directory.rglob("*") if x.is_file() and text in x.read_bytes()]


async def test_tokens_are_for_the_driver_with_the_lease_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = DriverTokens()
    monkeypatch.setattr(submission_interpreter, "DriverTokens", lambda: held)
    key, other = ownership_keys.new_key(), ownership_keys.new_key()
    request = submission()
    request.ownership_key, request.tokens = key, b"the-tokens-of-ada"
    async with running(tmp_path) as master, agent(master) as one:
        submission_id = (await stub(master).Submit(request)).submission_id
        spec = await one.assigned()
        assert "the-tokens" not in spec.launch.driver
        assert json.loads(spec.launch.driver)["has_tokens"]
        await one.report_state(spec, RUNNING)
        await state_of(master, submission_id, pb.SUBMISSION_STATE_LAUNCHING)
        with refused(grpc.StatusCode.NOT_FOUND, "may not register"):
            await stub(master).GetTokens(tokens_of(submission_id, ownership_key=key))
        await stub(master).Lease(lease(submission_id, ownership_key=key))
        with refused(grpc.StatusCode.PERMISSION_DENIED, "its ownership key is not this one"):
            await stub(master).GetTokens(tokens_of(submission_id, ownership_key=other))
        found = await stub(master).GetTokens(tokens_of(submission_id, ownership_key=key))
        assert found.tokens == b"the-tokens-of-ada"
        assert held.of(submission_id)
        assert not files_with(b"the-tokens", tmp_path)
        await one.report_state(spec, ENDED)
        await state_of(master, submission_id, pb.SUBMISSION_STATE_FINISHED)
        async with asyncio.timeout(TIMEOUT_S):
            while held._tokens:  # noqa: ASYNC110 - dropped once the end is on the disk
                await asyncio.sleep(0.01)
    with pytest.raises(NotFound, match="are gone"):
        held.of(submission_id)


async def test_the_next_master_has_no_tokens_and_says_what_to_do(tmp_path: Path) -> None:
    request = submission()
    request.tokens = b"x"
    async with running(tmp_path) as first, agent(first) as one:
        submission_id = (await stub(first).Submit(request)).submission_id
        spec = await one.assigned()
        await one.report_state(spec, RUNNING)
        await stub(first).Lease(lease(submission_id))
    async with running(tmp_path) as second, agent(second) as one:
        await one.report_state(spec, RUNNING)
        await stub(second).Lease(lease(submission_id))
        with refused(grpc.StatusCode.NOT_FOUND, "submit again, or with a keytab"):
            await stub(second).GetTokens(tokens_of(submission_id))


def test_tokens_in_all_have_a_bound() -> None:
    held = DriverTokens(held_bytes_max=3)
    held.check(b"ab")
    held.keep("driver-1", b"ab")
    with pytest.raises(LimitReached, match="submit again when some have ended"):
        held.check(b"cd")
    held.drop("driver-1")
    held.check(b"cd")


async def test_a_driver_that_no_node_can_run_fails_at_once(master: Running) -> None:
    async with agent(master):
        sent = await stub(master).Submit(submission(vcores=64))
        failed = await state_of(master, sent.submission_id, pb.SUBMISSION_STATE_FAILED)
        assert "the driver requests 64 vcores" in failed.message
        assert "spark.driver.cores" in failed.message


async def test_a_watcher_gets_the_end_that_comes_while_it_takes_the_state_before() -> None:
    record = SubmissionRecord(
        submission_id="driver-1", key="k", name="app", user="ada", driver="{}",
        resources=Resources(1, 1024), state=SubmissionState.RUNNING,
    )  # fmt: skip
    entry = SimpleNamespace(record=record)
    submissions = Submissions.__new__(Submissions)
    submissions.core = cast("Any", SimpleNamespace(entries={"driver-1": entry}))
    submissions._watchers = defaultdict(set)
    states = submissions.watch("driver-1")
    seen = [(await anext(states)).record.state]
    entry.record = replace(record, state=SubmissionState.FINISHED)
    for changed in submissions._watchers["driver-1"]:
        changed.set()
    seen += [each.record.state async for each in states]
    assert seen == [SubmissionState.RUNNING, SubmissionState.FINISHED]


async def test_another_master_knows_what_was_submitted(tmp_path: Path) -> None:
    async with running(tmp_path) as first, agent(first) as one:
        sent = await stub(first).Submit(submission())
        spec = await one.assigned()
        await one.report_state(spec, RUNNING)
        await stub(first).Lease(lease(sent.submission_id))
        await state_of(first, sent.submission_id, pb.SUBMISSION_STATE_RUNNING)
    async with running(tmp_path) as second:
        found = await stub(second).Get(pb.GetSubmissionRequest(submission_id=sent.submission_id))
        assert (found.state, found.attempt) == (pb.SUBMISSION_STATE_RUNNING, 1)
        async with agent(second) as one:
            await one.report_state(spec, RUNNING)
            await stub(second).Lease(lease(sent.submission_id))
            await one.report_state(spec, ENDED)
            await state_of(second, sent.submission_id, pb.SUBMISSION_STATE_FINISHED)


async def test_one_that_the_next_master_refuses_ends_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as first:
        sent = await stub(first).Submit(submission())

    async def refuse(self: Interpreter, make: Any) -> None:
        raise LimitReached("too many applications")

    monkeypatch.setattr(Interpreter, "call", refuse)
    async with running(tmp_path) as second:
        ended = await state_of(second, sent.submission_id, pb.SUBMISSION_STATE_KILLED)
        assert "cannot continue it: too many applications" in ended.message
        assert not second.interpreter.stopped.done()


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"vcores": 0}, "vcores"),
        ({"heap_mib": 2048}, "heap of 2048 MiB in 1024 MiB"),
        ({"resources": []}, "exactly one resource of role MAIN"),
        ({"resources": [pb.DriverResource(uri="x")]}, "role"),
        ({"resources": [pb.DriverResource(role=pb.RESOURCE_ROLE_MAIN)]}, "a file or a URI"),
    ],
)
async def test_fields_out_of_range_are_refused(
    master: Running, fields: dict[str, Any], expected: str
) -> None:
    with refused(grpc.StatusCode.INVALID_ARGUMENT, expected):
        await stub(master).Submit(submission(**fields))


@pytest.mark.parametrize("name", ["", "..", "a/b", "a,b", "x" * 256])
async def test_names_that_lead_out_of_the_directory_are_refused(master: Running, name: str) -> None:
    digest = pb.FileDigest(sha256="0" * 64, size_bytes=1)
    main = pb.DriverResource(role=pb.RESOURCE_ROLE_MAIN, name=name, file=digest)
    with refused(grpc.StatusCode.INVALID_ARGUMENT, "cannot name a file"):
        await stub(master).Submit(submission(resources=[main]))


async def test_files_that_were_not_sent_are_missed(master: Running) -> None:
    digest = pb.FileDigest(sha256="0" * 64, size_bytes=1)
    main = pb.DriverResource(role=pb.RESOURCE_ROLE_MAIN, name="a.jar", file=digest)
    with refused(grpc.StatusCode.NOT_FOUND, "send it first"):
        await stub(master).Submit(submission(resources=[main]))
    with refused(grpc.StatusCode.NOT_FOUND, "no such submission"):
        await stub(master).Get(pb.GetSubmissionRequest(submission_id="driver-1"))


async def test_nothing_without_the_token(master: Running) -> None:
    channel = rpc.channel(master.address, "wrong")
    with refused(grpc.StatusCode.UNAUTHENTICATED, "token"):
        await submission_pb2_grpc.SubmissionServiceStub(channel).Submit(submission())
    await channel.close(None)


class Sender:
    """The client of spark-submit, off the loop of the master."""

    def __init__(self, master: Running) -> None:
        self.address, self.token = master.address, master.settings.token_file

    async def send(self, *arguments: str, before: Any = None) -> pb.Submission:
        return await asyncio.to_thread(self._send, arguments, before)

    def _send(self, arguments: tuple[str, ...], before: Any) -> pb.Submission:
        spec, files = submit.driver_spec(parse(arguments, {}))
        with submit.connect(self.address, self.token, None) as (client, _):
            if before is not None:
                before(client, files)
            return client.submit(spec, files)


@pytest.fixture
def app(tmp_path: Path) -> Path:
    path = tmp_path / "app.py"
    path.write_text("print(1)\n" * 200_000 + "#")
    path.write_text(path.read_text()[: 1024 * 1024])
    return path


async def test_a_client_sends_each_file_once(master: Running, app: Path, tmp_path: Path) -> None:
    other = tmp_path / "data.txt"
    other.write_bytes(b"")
    sender = Sender(master)
    await sender.send("--files", str(other), str(app))
    await sender.send("--files", f"{other},local:/on/nodes,hdfs://h/x", str(app), "argument")
    listed = await stub(master).List(pb.ListSubmissionsRequest())
    assert [each.name for each in listed.submissions] == ["app.py", "app.py"]
    kept = sorted(p.stat().st_size for p in (master.settings.state_dir / "files").iterdir())
    assert kept == [0, 1024 * 1024]


async def test_an_interrupted_upload_goes_on(master: Running, app: Path) -> None:
    def half(client: Any, files: dict[str, submit.LocalFile]) -> None:
        file = files["app.py"]
        file.read_digest()
        data = app.read_bytes()[: 512 * 1024]
        client.call("PutPiece", pb.PutPieceRequest(file=file.message(), offset=0, data=data))

    sent = await Sender(master).send(str(app), before=half)
    assert sent.submission_id.startswith("driver-")


async def test_a_file_over_the_limit_is_never_read(master: Running, tmp_path: Path) -> None:
    large = tmp_path / "large.jar"
    with large.open("wb") as file:
        file.truncate(2 << 30)
    with pytest.raises(InvalidRequest, match=r"2048\.0 MiB, more than the 1 MiB .*file_mib_max"):
        await Sender(master).send(str(large))


@pytest.mark.parametrize("how", ["it grows", "other bytes of the same size and age"])
async def test_a_file_that_changes_while_it_is_sent_is_refused(
    master: Running, app: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = submit.LocalFile.read_digest

    def then_change(file: submit.LocalFile) -> None:
        digest(file)
        if how == "it grows":
            with app.open("a") as more:
                more.write("#")
        else:
            import os

            app.write_bytes(b"#" * file.size)
            os.utime(app, ns=(file.changed_ns, file.changed_ns))

    monkeypatch.setattr(submit.LocalFile, "read_digest", then_change)
    with pytest.raises(InvalidRequest, match="has changed while it was sent"):
        await Sender(master).send(str(app))
    assert not (await stub(master).List(pb.ListSubmissionsRequest())).submissions


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["/no/such.py"], "/no/such.py does not exist here"),
        (["--jars", "/no/*.jar", "{app}"], "no file matches"),
        (["--files", "{directory}", "{app}"], "is no file"),
        ([], "name the application"),
        (["pyspark-shell"], "cannot run pyspark-shell"),
        (["--driver-memory", "much", "{app}"], "spark.driver.memory is 'much'"),
        (["--driver-cores", "0", "{app}"], "spark.driver.cores"),
        (["--jars", "{other}", "{app}"], "have one name"),
        (["--py-files", "{app}", "{app}"], "is named in two lists"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_sent(
    tmp_path: Path, app: Path, arguments: list[str], expected: str
) -> None:
    other = tmp_path / "other" / "app.py"
    other.parent.mkdir()
    other.touch()
    places = {"app": str(app), "directory": str(tmp_path), "other": str(other)}
    with pytest.raises(HrmError, match=expected):
        submit.driver_spec(parse([x.format(**places) for x in arguments], {}))


@pytest.mark.parametrize(
    ("main", "conf", "memory_mib"),
    [
        ("local:/a.jar", {}, 1024 + 384),
        ("local:/a.jar", {"spark.driver.memory": "8g"}, 8192 + 819),
        ("local:/a.py", {"spark.driver.memory": "8g"}, 8192 + 3276),
        ("local:/a.py", {"spark.driver.memoryOverhead": "1g"}, 2048),
        ("local:/a.jar", {"spark.driver.memoryOverheadFactor": "0.5"}, 1024 + 512),
        ("local:/a.jar", {"spark.driver.minMemoryOverhead": "500m"}, 1024 + 500),
    ],
)
def test_a_driver_holds_its_heap_and_what_is_next_to_it(
    main: str, conf: dict[str, str], memory_mib: int
) -> None:
    given = [f"--conf={key}={value}" for key, value in conf.items()]
    spec, files = submit.driver_spec(parse([*given, main], {}))
    assert (spec.memory_mib, files) == (memory_mib, {})
    assert spec.resources[0].uri == main


async def test_a_file_of_a_live_application_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submission_interpreter, "CLEAN_INTERVAL_S", 0.01)
    contents = [b"of the application", b"of nothing"]
    digests = [hashlib.sha256(data).hexdigest() for data in contents]
    async with running(tmp_path) as master:
        for digest, data in zip(digests, contents, strict=True):
            file = pb.FileDigest(sha256=digest, size_bytes=len(data), name="f")
            await stub(master).PutPiece(pb.PutPieceRequest(file=file, data=data))
        early = common_pb2.LaunchFile(sha256=digests[0], size_bytes=18, name="agent.jar")
        launch = common_pb2.SparkLaunch(files=[early])
        found = await master.applications.Register(registration(launch=launch), timeout=TIMEOUT_S)
        kept = [master.settings.state_dir / "files" / digest for digest in digests]
        await all_gone(kept[1:])
        assert kept[0].exists()
        app = master.interpreter.core.master_state.applications[found.application_id]
        assert [file.sha256 for file in app.launch.files] == digests[:1]
        app.launch = LaunchContext()
        await all_gone(kept[:1])


async def all_gone(paths: list[Path]) -> None:
    """As soon as their last use is long ago."""
    async with asyncio.timeout(TIMEOUT_S):
        while any(path.exists() for path in paths):
            for path in paths:
                with contextlib.suppress(FileNotFoundError):
                    os.utime(path, (0, 0))
            await asyncio.sleep(0.02)
