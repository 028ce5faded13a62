"""What the audit log of a real master takes for a change."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from hrm.identity.roles import AccessRole
from hrm.v1 import identity_pb2, pipeline_pb2, pipeline_pb2_grpc, queues_pb2
from hrm.wire import pipelines as pw
from tests.core.pipeline.building import pipeline, subtask
from tests.identity.calls import identities
from tests.identity.test_own_and_others import DENIED, UNKNOWN, People
from tests.master.test_services import TIMEOUT_S, refused, running


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
