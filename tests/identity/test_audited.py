"""What the audit log of a real master takes for a change."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from hrm import rpc
from hrm.identity.access import rule_of
from hrm.identity.roles import AccessRole
from hrm.v1 import (
    admin_pb2,
    identity_pb2,
    pipeline_pb2,
    pipeline_pb2_grpc,
    queues_pb2,
    submission_pb2,
)
from hrm.wire import pipelines as pw
from tests.core.pipeline.building import pipeline, subtask
from tests.hostile.messages import methods
from tests.identity.calls import identities, made, raw_reply
from tests.identity.test_own_and_others import DENIED, UNKNOWN, People, registered
from tests.master.test_services import TIMEOUT_S, node, refused, running


@pytest.fixture
async def people(tmp_path: Path) -> AsyncIterator[People]:
    async with running(tmp_path) as master, AsyncExitStack() as stack:
        yield People(master, stack)


async def audited(people: People, rpc: str) -> list[str]:
    """What calls of this method have changed, by the audit log."""
    ask = identity_pb2.ReadAuditRequest()
    found = await identities(people.master).ReadAudit(ask, timeout=TIMEOUT_S)
    return [x.what for x in found.entries if x.method.endswith(rpc)]


async def test_a_dry_run_is_no_change_in_the_audit_log(people: People) -> None:
    stated = [queues_pb2.QueueStated(name="root.etl")]
    for dry_run in (True, False):
        ask = queues_pb2.ChangeQueuesRequest(queues=stated, create=True, dry_run=dry_run)
        await people.master.queues.ChangeQueues(ask, timeout=TIMEOUT_S)
        assert len(await audited(people, "ChangeQueues")) == (not dry_run)
    bob = await people.one("bob", AccessRole.SUBMITTER)
    ask.dry_run = True
    with refused(DENIED, "administers no queue"):
        await bob.queues.ChangeQueues(ask, timeout=TIMEOUT_S)
    assert len(await audited(people, "ChangeQueues")) == 2, "that it was refused is noted"


async def test_to_take_a_result_away_is_a_change_in_the_audit_log(people: People) -> None:
    ada = await people.one("ada", AccessRole.SUBMITTER)
    tasks = pipeline_pb2_grpc.PipelineServiceStub(ada.channel)
    spec = pw.from_pipeline(pipeline(subtask("a")))
    ask = pipeline_pb2.SubmitPipelineTaskRequest(task_id="t1", pipeline=spec)
    await tasks.Submit(ask, timeout=TIMEOUT_S)
    for forget in (False, True):
        get = pipeline_pb2.GetPipelineResultRequest(task_id="t1", forget=forget)
        with refused(UNKNOWN, ""):  # it has none yet
            await tasks.GetResult(get, timeout=TIMEOUT_S).read()
        assert bool(await audited(people, "GetResult")) is forget


@pytest.mark.parametrize(
    ("method", "role", "request_", "expected"),
    [
        ("AdminService/KillApplication", AccessRole.VIEWER,
         admin_pb2.KillApplicationRequest(application_id="app-7"), "app-7"),
        ("AdminService/GetApplication", AccessRole.SCHEDULER,
         admin_pb2.GetApplicationRequest(application_id="app-7"), "app-7"),
        ("AdminService/BindNode", AccessRole.SUBMITTER,
         admin_pb2.BindNodeRequest(name="n7"), "n7"),
        ("NodeService/Connect", AccessRole.SUBMITTER, node("n7"), "n7"),
        ("QueueService/ChangeQueues", AccessRole.VIEWER,
         queues_pb2.ChangeQueuesRequest(removed=["root.etl"]), "removed=root.etl"),
        ("QueueService/WhatIf", AccessRole.AGENT, queues_pb2.WhatIfRequest(queue="root.etl"),
         "root.etl"),
        ("SubmissionService/Kill", AccessRole.VIEWER,
         submission_pb2.KillSubmissionRequest(submission_id="driver-7"), "driver-7"),
        ("PipelineService/Watch", AccessRole.VIEWER,
         pipeline_pb2.WatchPipelineTasksRequest(task_ids=["t1", "t2"]), "t1, t2"),
    ],
)  # fmt: skip
async def test_what_a_role_may_not_do_names_its_object(
    people: People, method: str, role: AccessRole, request_: Any, expected: str
) -> None:
    token = (await made(people.master, role, name="eve")).token
    path, data = f"/hrm.v1.{method}", request_.SerializeToString()
    code, details = await raw_reply(people.master.address, path, token, [data])
    assert code is DENIED, details
    assert f"which has the role {role.value}" in details
    assert await audited(people, method) == [expected]


async def test_a_role_is_refused_whatever_it_sends(people: People) -> None:
    """Nothing, no message, and one that is large: its refusal says what there is to say."""
    token = (await made(people.master, AccessRole.VIEWER, name="eve")).token
    path = "/hrm.v1.SubmissionService/Submit"
    for messages in ([], [b"\xff\xff"], [b"\x0a" * (3 << 20)]):
        code, details = await raw_reply(people.master.address, path, token, messages)
        assert code is DENIED, details
    assert await audited(people, "SubmissionService/Submit") == ["", "", ""]
    async with rpc.channel(people.master.address, token) as channel:
        connect: Any = channel.stream_stream("/hrm.v1.NodeService/Connect")  # type: ignore[call-arg]
        silent = connect(timeout=TIMEOUT_S)
        with refused(DENIED, "which has the role viewer"):
            await silent.read()


async def test_reads_that_are_refused_name_their_object(people: People) -> None:
    ada = await people.one("ada", AccessRole.SUBMITTER)
    bob = await people.one("bob", AccessRole.SUBMITTER)
    application_id = await registered(ada)
    with refused(DENIED, "belongs to ada"):
        await bob.admin.ReadLogs(
            admin_pb2.ReadLogsRequest(application_id=application_id), timeout=TIMEOUT_S
        ).read()
    assert await audited(people, "ReadLogs") == [application_id]


OBJECTS = {
    "application_id", "submission_id", "task_id", "container_id", "token_id", "node", "queue",
    "policy", "sha256",
}  # fmt: skip


def test_every_method_that_has_a_field_for_an_object_names_it() -> None:
    for method in methods():
        path = f"/{method.containing_service.full_name}/{method.name}"
        if {field.name for field in method.input_type.fields} & OBJECTS:
            assert rule_of(path).names, f"{path}: hrm.identity.access"


def test_what_the_table_names_is_in_the_messages() -> None:
    for method in methods():
        path = f"/{method.containing_service.full_name}/{method.name}"
        for names in rule_of(path).names.split():
            descriptor: Any = method.input_type
            for name in names.removesuffix("=").split("."):
                assert name in descriptor.fields_by_name, (path, names)
                descriptor = descriptor.fields_by_name[name].message_type
