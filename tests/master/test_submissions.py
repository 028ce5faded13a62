"""Submissions over real gRPC: a client, a master, and a node that reports what a test orders."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import grpc
import pytest

from hrm import rpc
from hrm.config import QueueConfig
from hrm.core.messages.submissions import SubmissionRecord, SubmissionState
from hrm.core.tenancy.queue_spec import spec_from
from hrm.core.vocabulary.model import Resources
from hrm.errors import LimitReached
from hrm.master.interpreter import Interpreter
from hrm.master.submission_interpreter import Submissions
from hrm.spark_servers import CONNECT_CLASS, INTERNAL
from hrm.v1 import admin_pb2, submission_pb2_grpc
from hrm.v1 import submission_pb2 as pb
from tests.master.submitting import (
    ENDED,
    RUNNING,
    agent,
    application_is,
    lease,
    state_of,
    stub,
    submission,
)
from tests.master.test_services import Running, refused, registration, running


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


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        ({"max_running": 1}, "max_running"),
        ({"maximum": {"cores": 1}}, "maximum"),
    ],
)
async def test_a_driver_that_its_queue_keeps_says_why_at_once(
    tmp_path: Path, limits: dict[str, Any], reason: str
) -> None:
    spec = spec_from("root.etl", {**limits, "driver_share": 1.0})
    async with running(tmp_path, queues=QueueConfig((spec,))) as master, agent(master) as one:
        conf = [pb.SparkSetting(key="spark.hrm.queue", value="etl")]
        first = await stub(master).Submit(submission("k1", conf=conf))
        driver = await one.assigned()
        second = await stub(master).Submit(submission("k2", conf=conf))
        ask = pb.GetSubmissionRequest(submission_id=second.submission_id)
        why = (await stub(master).Get(ask)).message
        assert "root.etl" in why and reason in why
        watched = await state_of(master, second.submission_id, pb.SUBMISSION_STATE_SUBMITTED)
        assert watched.message == why
        await one.report_state(driver, RUNNING)
        await stub(master).Lease(lease(first.submission_id))
        await one.report_state(driver, ENDED)
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


async def test_nothing_without_the_token(master: Running) -> None:
    channel = rpc.channel(master.address, "wrong")
    with refused(grpc.StatusCode.UNAUTHENTICATED, "token"):
        await submission_pb2_grpc.SubmissionServiceStub(channel).Submit(submission())
    await channel.close(None)
